"""What the tables of chips and SDKs answer, and what of them is published."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deploykit.answers.capability_answers import Query, answer
from deploykit.backend.backend import Situation
from deploykit.errors import InputError, UnknownTargetError
from deploykit.findings import Finding
from deploykit.tables.capabilities import CompatRow
from deploykit.tables.devices import Device, load_device, search_devices
from deploykit_qualcomm.carriers import binary_rows, judge_loading
from deploykit_qualcomm.compat import compat_rows
from deploykit_qualcomm.devices import (
    arch_number,
    capability,
    has,
    known_archs,
    lacks,
    qualcomm_device,
    qualcomm_devices,
)
from deploykit_qualcomm.rules import published
from deploykit_qualcomm.tables import DATA
from rule_cases import check_pairs
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


@each_row(
    ("feature", "sdk", "expected"),
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
)
def test_precisions_per_architecture(feature: str, sdk: str, expected: str) -> None:
    letters = {"supported": "S", "unsupported": "N", "unknown": "?", "broken": "B"}
    archs = ("v68", "v69", "v73", "v75", "v79", "v81")
    for backend in ("qnn-htp", "ort-qnn"):
        found = [r for r in ask(feature, sdk, backend=backend) if r.feature == feature and not r.tool]
        assert "".join(letters[str(r.status)] for arch in archs for r in found if r.arch == arch) == expected


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


STORED = {"w": ("float", (4, 4, 1, 1), 0.1)}


def case(graph: str, **extra: Any) -> dict[str, Any]:
    return {"graph": graph, "stored": STORED, **extra}


SAME = case("g (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Conv <strides = [1, 1]> (x, w) }")
KNOWN = case("g (float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Conv (x, w) y = Identity (a) }")
OTHER = case("g (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Conv <dilations = [2, 2]> (x, w) }")
LARGER = case("g (float[1,4,9,8] x) => (float[1,4,9,8] y) { y = Conv (x, w) }")
OPEN = case("g (float[n,4,8,8] x) => (float[n,4,8,8] y) { y = Conv (x, w) }")
CASES = {"QNN330": (SAME, OTHER)}


@pytest.fixture
def one_network(monkeypatch: pytest.MonkeyPatch, situation: Callable[[Any], Situation]) -> None:
    known = situation(KNOWN)
    chip = known.target.device.id
    row = published.PublishedNetwork(
        name="net",
        structure=(published.structure_of(known.facts),),
        times={chip: {"float": {"onnx": 1.8, "dlc": 2.06}, "w8a8": {"onnx": 0.65}}},
    )
    table = published.PublishedTable(
        schema=1, source="who", licence="any", ways={"onnx": "by the one", "dlc": "by the other"}, network=(row,)
    )
    monkeypatch.setattr(published, "published_networks", lambda: table)


@pytest.mark.usefixtures("one_network")
def test_the_same_network_is_told_and_no_other(lint: Callable[[Any], dict[str, list[Finding]]]) -> None:
    check_pairs(CASES, run=lambda code, case: lint(case).get(code, []))
    found = lint(SAME)["QNN330"]
    assert "1.8 ms in float, 0.65 ms in w8a8 by the one; 2.06 ms in float by the other; this is net" in found[0].message
    assert found[0].sources[-1] == "who"
    assert not any("QNN330" in lint(other) for other in (OTHER, LARGER, OPEN))


DEVICES = {device.id: device for device in qualcomm_devices()}


@each_row("device", *qualcomm_devices())
def test_every_fact_has_a_source_and_the_names_resolve(device: Device) -> None:
    assert device.backends == ("qnn-htp", "ort-qnn")
    for name, fact in device.facts.items():
        assert fact.source and all(len(source) > 3 for source in fact.source), name
    assert ("marketing" in device.facts) == bool(device.marketing)
    assert not device.marketing or device.facts["marketing"].value == device.marketing
    for name in (device.id.upper(), device.name, *device.aliases):
        assert qualcomm_device(name).id == device.id


@each_row(
    ("name", "expected"),
    ("sa8775", "sa8775p"),
    ("Snapdragon 8 Gen 3", "sm8650"),
    ("snapdragon-8-elite", "sm8750"),
    ("RB3 Gen 2", "qcs6490"),
    ("sm8250", "sdm865"),
    # Chipsets and devices of qualcomm/ai-hub-models, devices_and_chipsets.yaml, and machines with Windows.
    ("qualcomm-snapdragon-8gen3", "sm8650"),
    ("qualcomm-qcs8550-proxy", "qcs8550"),
    ("qualcomm-snapdragon-x-plus-8-core", "sc8340xp"),
    ("qualcomm-snapdragon-8-elite-for-galaxy", "sm8750"),
    ("Samsung Galaxy S24 Ultra", "sm8650"),
    ("Dragonwing IQ-9075 EVK", "qcs9075"),
    ("SA8295P ADP", "sa8295"),
    ("Surface Laptop 7", "sc8380xp"),
)
def test_names_people_use(name: str, expected: str) -> None:
    assert qualcomm_device(name).id == expected


@each_row("name", "X2 Elite", "../archs", "sm8650/../sm8750", "", "sm8650.toml", "sm865O0")
def test_another_name_is_none_and_never_a_path(name: str) -> None:
    with pytest.raises(UnknownTargetError) as caught:
        qualcomm_device(name)
    assert caught.value.exit_status == 4 and (name != "sm865O0" or "sm8650" in str(caught.value))


@each_row(
    ("words", "found"),
    ("8 gen 3", ["sm8650"]),
    ("SoC 90", ["qcs8625"]),
    ("soc_model 57", ["sm8650"]),
    ("soc id 69", ["sm8750"]),
    ("no such chip", []),
)
def test_search_by_name_number_and_architecture(words: str, found: list[str]) -> None:
    assert [device.id for device in search_devices(DEVICES.values(), words)] == found
    of_arch = {device.id for device in search_devices(DEVICES.values(), "v75")}
    assert of_arch >= {"qcs8275", "qcs8300", "sa7255", "sm8650"} and "sm8550" not in of_arch
    assert "sm8650" in {device.id for device in search_devices(DEVICES.values(), "snapdragon v75")}


def test_what_follows_from_an_architecture() -> None:
    assert {"v65", "v73", "v81"} <= set(known_archs())
    assert (arch_number("v73"), arch_number("v74")) == (73, None)
    fact = capability("fp16", arch="v68")
    assert fact is not None and fact.value is False and str(fact.confidence) == "reported"
    assert capability("fp16", arch="v99") is capability("flying", arch="v73") is None
    assert DEVICES["sm8350"].fact("precisions") == ("w8a16",)
    assert DEVICES["sm8650"].fact("precisions") == ("w8a16", "w16a16", "fp16", "lpbq")
    assert "bf16" in DEVICES["sm8850"].fact("precisions") and has("fp16", DEVICES["sm8650"])
    assert all(lacks("htp", DEVICES[name]) for name in ("sdm865", "aic100", "sdm845", "sdm660", "qcs2290"))
    assert (DEVICES["sdm845"].fact("arch"), DEVICES["sdm660"].fact("arch")) == ("v65", None)
    # The compiler of 2.51 answers "The SocModel doesn't support FP16" for them, in every architecture.
    for name in ("sm7635", "sm8735", "sm7475", "sar2230p"):
        assert lacks("fp16", DEVICES[name]) and "fp16" not in DEVICES[name].fact("precisions")


def test_an_unknown_architecture_stays_unknown() -> None:
    device = DEVICES["sc7280x"]
    assert device.fact("arch") is None and not has("htp", device) and not lacks("htp", device)
    assert capability("fp16", device=device) is None and "precisions" not in device.facts


@each_row(
    ("old", "new", "path"),
    ('confidence = "observed"', 'confidence = "sure"', "facts.soc_model.confidence"),
    ("value = 57", "values = 57", "facts.soc_model.values"),
    ('source = ["', 'source = "', None),
    ('id = "sm8650"', 'id = "sm8651"', "id"),
    ("schema = 1", "schema = true", "schema"),
)
def test_a_wrong_entry_is_named_by_its_path(old: str, new: str, path: str | None, tmp_path: Path) -> None:
    (tmp_path / "devices").mkdir()
    text = (DATA / "devices/sm8650.toml").read_text()
    assert old in text
    (tmp_path / "devices/sm8650.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match="not TOML" if path is None else f"devices/sm8650.toml: {path}: "):
        load_device(tmp_path / "devices/sm8650.toml")
