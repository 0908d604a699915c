"""The questions that the tables must answer in one call, against what the sources say."""

from __future__ import annotations

from functools import cache

from deploykit.answers.capability_answers import Query, answer
from deploykit.tables.capabilities import CompatRow
from deploykit_qualcomm.carriers import binary_rows, judge_loading
from deploykit_qualcomm.compat import compat_rows
from tables import each_row

LEGACY = "qnn-onnx-converter"


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


def test_old_and_never_released_spellings_bring_the_right_one() -> None:
    assert ask("--act_bw", tool=LEGACY)[0].feature == "flag --act_bitwidth"
    never, right = ask("--desired_input_shape", "2.50")
    assert (str(never.status), never.renamed_to) == ("unsupported", "flag --source_model_input_shape")
    assert (str(right.status), right.feature) == ("supported", "flag --source_model_input_shape")
    found = ask("key devices[].soc_id", "2.48")
    assert [(row.feature, str(row.status)) for row in found][-1] == ("key devices[].soc_model", "supported")
    assert "2.49" in found[0].contradicts


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
