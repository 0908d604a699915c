from __future__ import annotations

from pathlib import Path

import pytest

from deploykit.errors import InputError, UnknownTargetError
from deploykit.tables.devices import Device, load_device, search_devices
from deploykit_qualcomm.devices import (
    arch_number,
    capability,
    has,
    known_archs,
    lacks,
    qualcomm_device,
    qualcomm_devices,
)
from deploykit_qualcomm.tables import DATA
from tables import each_row

DEVICES = {device.id: device for device in qualcomm_devices()}


@each_row("device", qualcomm_devices())
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
    [
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
    ],
)
def test_names_people_use(name: str, expected: str) -> None:
    assert qualcomm_device(name).id == expected


@each_row("name", ["X2 Elite", "../archs", "sm8650/../sm8750", "", "sm8650.toml", "sm865O0"])
def test_another_name_is_none_and_never_a_path(name: str) -> None:
    with pytest.raises(UnknownTargetError) as caught:
        qualcomm_device(name)
    assert caught.value.exit_status == 4 and (name != "sm865O0" or "sm8650" in str(caught.value))


@each_row(
    ("words", "found"),
    [
        ("8 gen 3", ["sm8650"]),
        ("SoC 90", ["qcs8625"]),
        ("soc_model 57", ["sm8650"]),
        ("soc id 69", ["sm8750"]),
        ("no such chip", []),
    ],
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
    [
        ('confidence = "observed"', 'confidence = "sure"', "facts.soc_model.confidence"),
        ("value = 57", "values = 57", "facts.soc_model.values"),
        ('source = ["', 'source = "', None),
        ('id = "sm8650"', 'id = "sm8651"', "id"),
        ("schema = 1", "schema = true", "schema"),
    ],
)
def test_a_wrong_entry_is_named_by_its_path(old: str, new: str, path: str | None, tmp_path: Path) -> None:
    (tmp_path / "devices").mkdir()
    text = (DATA / "devices/sm8650.toml").read_text()
    assert old in text
    (tmp_path / "devices/sm8650.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match="not TOML" if path is None else f"devices/sm8650.toml: {path}: "):
        load_device(tmp_path / "devices/sm8650.toml")
