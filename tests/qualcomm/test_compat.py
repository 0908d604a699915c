"""The questions that the tables must answer in one call, against what the sources say."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest

from deploykit.answers.capability_answers import Query, answer, differences
from deploykit.tables.capabilities import CompatRow
from deploykit_qualcomm.carriers import binary_rows, judge_loading
from deploykit_qualcomm.compat import compat_rows
from tables import each_row

LEGACY, CONVERTER, QUANTIZER = "qnn-onnx-converter", "qairt-converter", "qairt-quantizer"
GENERATOR = "qnn-context-binary-generator"


@cache
def rows(backend: str = "qnn-htp") -> tuple[CompatRow, ...]:
    return tuple(compat_rows(backend))


def ask(
    words: str, sdk: str = "", *, tool: str = "", arch: str | None = None, backend: str = "qnn-htp"
) -> list[CompatRow]:
    query = Query(words=tuple(words.split()), sdk=sdk, tool=tool, archs=None if arch is None else (arch,))
    return list(answer(rows(backend), query).rows)


def status(feature: str, sdk: str, *, tool: str = "", arch: str = "", backend: str = "qnn-htp") -> str:
    found = [r for r in ask(feature, sdk, tool=tool, backend=backend) if r.feature == feature and r.arch == arch]
    (one,) = [r for r in found if r.tool == tool]
    return str(one.status)


@pytest.mark.parametrize("backend", ["qnn-htp", "ort-qnn"])
def test_every_row_carries_source_and_confidence(backend: str) -> None:
    assert len(rows(backend)) > 100
    for row in rows(backend):
        assert row.source, row
        assert row.confidence is not None, row
        assert row.backend == backend


SINCE_2_37 = ["unsupported", "unsupported", "supported", "supported", "broken", "unknown"]
SINCE_2_33 = ["unknown", "unknown", *["supported"] * 4]


@each_row(
    ("version", "tool", "expected"),
    [
        *(("0.6.1", tool, ["supported"] * 6) for tool in (LEGACY, CONVERTER)),
        *(("1.0.0", tool, SINCE_2_33) for tool in (LEGACY, CONVERTER)),
        ("2.0.0", LEGACY, SINCE_2_37),
        ("2.0.0", CONVERTER, ["unknown", "unknown", *SINCE_2_37[2:]]),
    ],
)
def test_encodings_per_tool_and_sdk(version: str, tool: str, expected: list[str]) -> None:
    releases = ("2.29", "2.33", "2.37", "2.44", "2.48", "2.50")
    assert [status(f"encodings-{version}", sdk, tool=tool) for sdk in releases] == expected


def test_the_contradiction_about_quantizer_v2_is_shown_on_both_sides() -> None:
    found = {row.since: row for row in ask("quantizer-v2", tool=LEGACY) if row.feature == "quantizer-v2"}
    # The argument lists end with 2.50: what is said beyond is an inference, and says so.
    newest = found.pop("2.51.0")
    assert str(newest.confidence) == "inferred" and "2.25 to 2.50" in newest.note
    states = [f"{since} {row.status}" for since, row in found.items()]
    assert states == ["2.29.0 unsupported", "2.34.0 unknown", "2.35.0 unknown", "2.37.0 supported"]
    assert "2.37" in found["2.35.0"].contradicts and "2.35.0" in found["2.37.0"].contradicts
    flag = [row for row in ask("--use_quantize_v2", tool=LEGACY) if row.feature == "flag --use_quantize_v2"]
    assert [row.until for row in flag] == ["2.33.0", "2.34.0", "2.36.1", ""]


def test_float_fallback() -> None:
    at_2_33 = {row.tool: row for row in ask("float-fallback", "2.33") if row.feature == "float-fallback"}
    assert str(at_2_33[LEGACY].status) == "supported"
    assert str(at_2_33[LEGACY].confidence) == "reported" and "2026-06-08" in at_2_33[LEGACY].note
    assert "--input_list" in at_2_33[LEGACY].note
    assert status("float-fallback", "2.48", tool=QUANTIZER) == "broken"
    assert status("float-fallback-with-input-list", "2.33", tool=LEGACY) == "unsupported"


@each_row(
    ("feature", "sdk", "expected"),
    [
        ("fp16", "2.33", "NSSSSS"),
        ("a16w16", "2.33", "NNSSSS"),
        ("matmul-16bit", "2.33", "NNSSSS"),
        ("lpbq", "2.33", "NSSSSS"),
        ("extended-udma", "2.33", "NNNNNS"),
        ("bf16", "2.33", "NNNNN?"),
        ("bf16", "2.44", "NNNNNS"),
        ("bq", "2.33", "??????"),
        ("bq", "2.47", "NSSBSS"),
        ("bq", "2.48", "NSSSSS"),
        ("htp-arch", "2.33", "SSSSS?"),
        ("htp-arch", "2.47", "SSSSSS"),
    ],
)
def test_precisions_per_architecture(feature: str, sdk: str, expected: str) -> None:
    letters = {"supported": "S", "unsupported": "N", "unknown": "?", "broken": "B"}
    archs = ("v68", "v69", "v73", "v75", "v79", "v81")
    for backend in ("qnn-htp", "ort-qnn"):
        assert "".join(letters[status(feature, sdk, arch=arch, backend=backend)] for arch in archs) == expected


@each_row(
    ("feature", "tool", "before", "after", "states"),
    [
        ("w4a16", "", "2.43", "2.44", ["unknown", "supported"]),
        ("lora-weight-sharing", GENERATOR, "2.38", "2.39", ["unsupported", "supported"]),
        ("external-spill-fill-buffer", "qnn-net-run", "2.47", "2.48", ["unknown", "broken"]),
        ("explicit-float-entries", LEGACY, "2.33", "2.34", ["broken", "unknown"]),
        ("explicit-float-entries", CONVERTER, "2.33", "2.48", ["supported", "supported"]),
        ("run-time-keys-in-prepare-file", GENERATOR, "2.42", "2.48", ["supported", "unsupported"]),
        ("python-3.12", "", "2.46", "2.47", ["unsupported", "supported"]),
        ("onnx-opset-22", CONVERTER, "2.38", "2.39", ["unknown", "supported"]),
    ],
)
def test_what_a_release_brought(feature: str, tool: str, before: str, after: str, states: list[str]) -> None:
    assert [status(feature, sdk, tool=tool) for sdk in (before, after)] == states


def test_old_and_never_released_spellings_bring_the_right_one() -> None:
    assert ask("--act_bw", tool=LEGACY)[0].feature == "flag --act_bitwidth"
    never, right = ask("--desired_input_shape", "2.50")
    assert (str(never.status), never.renamed_to) == ("unsupported", "flag --source_model_input_shape")
    assert (str(right.status), right.feature) == ("supported", "flag --source_model_input_shape")
    found = ask("key devices[].soc_id", "2.48")
    assert [(row.feature, str(row.status)) for row in found][-1] == ("key devices[].soc_model", "supported")
    assert "2.49" in found[0].contradicts


def test_wheels() -> None:
    found = ask("onnxruntime-qnn 2.3.0", backend="ort-qnn")
    tried = [
        row for row in found if row.feature == "wheel onnxruntime-qnn 2.3.0" and row.tool.startswith("onnxruntime")
    ]
    assert {row.tool: str(row.status) for row in tried} == {
        "onnxruntime 1.24.2": "supported",
        "onnxruntime 1.25.1": "supported",
        "onnxruntime 1.28.0": "broken",
        "onnxruntime 1.31.1": "broken",
    }
    (carried,) = {row.feature for row in ask("2.51.0", backend="ort-qnn") if row.feature.startswith("wheel")}
    assert carried == "wheel onnxruntime-qnn 2.7.0"


@each_row(
    ("built", "built_for", "runtime", "arch", "expected"),
    [
        ("2.48", "v73", "2.51", "v73", "supported"),
        ("2.48", "v73", "2.51", "v79", "supported"),
        ("2.48", "v68", "2.48", "v73", "supported"),
        ("2.48.0.260626", "v73", "2.48", "v73", "supported"),
        ("2.51", "v73", "2.48", "v73", "unsupported"),
        ("2.49", "v73", "2.48", "v73", "unsupported"),
        ("2.48.1", "v73", "2.48.0", "v73", "unsupported"),
        ("2.48", "v81", "2.51", "v68", "unsupported"),
        ("2.48", "v73", "2.51", "", "unknown"),
        ("2.51", "v73", "2.48", "", "unsupported"),
    ],
)
def test_will_a_context_binary_load(built: str, built_for: str, runtime: str, arch: str, expected: str) -> None:
    whole, release, architecture = binary_rows("qnn-htp", built, built_for, runtime, arch)
    assert str(whole.status) == expected
    assert release.source
    assert ("indeterminate" in whole.contradicts) is (built_for < arch)
    assert architecture.arch == arch


def test_a_series_may_be_older_and_the_blob_version_is_named_where_it_decides() -> None:
    for built, runtime, wanted in (
        ("2.33.2", "2.33", "unknown"),
        ("2.33.0", "2.33", "supported"),
        ("2.33.2", "2.33.2.250410", "supported"),
    ):
        assert judge_loading(built, "v73", runtime, "v73")[0].status == wanted
    release, _ = judge_loading("2.49.40", "v73", "2.42.0", "v73")
    assert "4.0.4" in release.why and "3.3.4" in release.why
    same, _ = judge_loading("2.49.40", "v73", "2.48.40", "v73")
    assert str(same.status) == "unsupported" and "blob" not in same.why


def test_loading_by_release_as_measured_with_five_wheels() -> None:
    """All 25 pairs of builder and runtime, on the emulator: a binary loads where the runtime is at least as new."""
    releases = ("2.47.0", "2.48.40", "2.49.40", "2.50.40", "2.51.0")
    for built, runtime in product(range(5), repeat=2):
        release, _ = judge_loading(releases[built], "v75", releases[runtime], "v75")
        assert (str(release.status) == "supported") is (built <= runtime)


def test_what_changes_for_a_v75_device_from_2_33_to_2_37() -> None:
    changes = differences(rows(), "2.33", "2.37", Query(archs=("v75",)))
    states = {
        (c.row.feature, c.row.tool): (str(c.before and c.before.status), str(c.after and c.after.status))
        for c in changes
    }
    assert states["quantizer-v2", LEGACY] == ("unsupported", "supported")
    assert states["flag --use_quantize_v2", LEGACY] == ("unsupported", "supported")
    assert states["encodings-2.0.0", LEGACY] == ("unsupported", "supported")
    assert states["key graphs[].fp16_relaxed_precision", "htp-config-inner"] == ("supported", "supported")
    assert ("flag --float_bitwidth", CONVERTER) not in states


@each_row(
    ("word", "told"),
    [
        ("IrQuantizerV2", "--use_quantize_v2"),
        ("QNN_HTP_GRAPH_CONFIG_OPTION_PRECISION", "fp16_relaxed_precision"),
        ("convert_bq_to_lpbq", "enable_block_quant_weight_optimization"),
        ("memory_alloc_limit", "3670016"),
    ],
)
def test_names_of_the_threads_are_answered(word: str, told: str) -> None:
    """Names of qualcomm/aimet#4102, #4090, #4086, of the provider's pull request 307, and of the compiler's log."""
    rows = ask(word)
    assert rows and told in rows[0].note
