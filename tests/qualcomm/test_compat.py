"""What the tables of chips and SDKs answer, and what of them is published."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploykit.backend.backend import Situation
from deploykit.errors import InputError
from deploykit.findings import Finding
from deploykit.tables.devices import load_device, search_devices
from deploykit_qualcomm.devices import arch_number, capability, has, known_archs, lacks, qualcomm_devices
from deploykit_qualcomm.rules import published
from deploykit_qualcomm.tables import DATA
from rule_cases import check_pairs
from tables import each_row

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


def test_what_follows_from_an_architecture() -> None:
    assert {"v65", "v73", "v81"} <= set(known_archs())
    of_arch = {device.id for device in search_devices(DEVICES.values(), "v75")}
    assert of_arch >= {"qcs8275", "qcs8300", "sa7255", "sm8650"} and "sm8550" not in of_arch
    assert (arch_number("v73"), arch_number("v74")) == (73, None)
    fact = capability("fp16", arch="v68")
    assert fact is not None and fact.value is False and str(fact.confidence) == "reported"
    assert capability("fp16", arch="v99") is capability("flying", arch="v73") is None
    assert DEVICES["sm8350"].fact("precisions") == ("w8a16",)
    assert DEVICES["sm8650"].fact("precisions") == ("w8a16", "w16a16", "fp16", "lpbq")
    known = DEVICES["sm8650"].facts["precisions"]
    assert (str(known.confidence), known.note) == ("inferred", "of the architecture v75, beside w8a8")
    assert "bf16" in DEVICES["sm8850"].fact("precisions") and has("fp16", DEVICES["sm8650"])
    assert all(lacks("htp", DEVICES[name]) for name in ("sdm865", "aic100", "sdm845", "sdm660", "qcs2290"))
    assert (DEVICES["sdm845"].fact("arch"), DEVICES["sdm660"].fact("arch")) == ("v65", None)
    # The compiler of 2.51 answers "The SocModel doesn't support FP16" for them, in every architecture.
    for name in ("sm7635", "sm8735", "sm7475", "sar2230p"):
        assert lacks("fp16", DEVICES[name]) and "fp16" not in DEVICES[name].fact("precisions")


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
