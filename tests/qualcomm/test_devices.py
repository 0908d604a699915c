from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from deploykit.errors import InputError, UnknownTargetError
from deploykit.tables.devices import Device, load_device, load_devices, search_devices
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

ROWS: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "data/qualcomm/rows.toml").read_text())
DEVICES = {device.id: device for device in qualcomm_devices()}


def of_chip(chip: str) -> Device:
    return qualcomm_device(chip)


def test_every_chip_has_one_file() -> None:
    assert len(ROWS["devices"]) == 113
    assert {of_chip(chip).id for chip in ROWS["devices"]} <= set(DEVICES)
    assert len({of_chip(chip).id for chip in ROWS["devices"]}) == 113


def test_soc_models_and_architectures() -> None:
    for line in ROWS["soc_models"]:
        chip, number = line.split()
        assert of_chip(chip).fact("soc_model") == int(number), chip
    with_arch = dict(line.split() for line in ROWS["with_arch"])
    assert len(with_arch) == 42
    for chip, arch in with_arch.items():
        assert of_chip(chip).fact("arch") == arch, chip


@each_row(
    ("name", "soc_model", "arch", "vtcm_mb"),
    [
        ("sm7550", 64, "v73", 2),
        ("sm7450", 41, "v69", 2),
        ("sa7255", 67, "v75", 8),
        ("sm8635", 68, "v73", 4),
        ("sm8735", 85, "v73", 8),
        ("qcm6690", 78, "v73", 2),
        ("sc8280x", 37, "v68", 4),
        ("qcs8845", 109, "v81", 8),
    ],
)
def test_what_the_soc_table_of_the_wheels_says(name: str, soc_model: int, arch: str, vtcm_mb: int) -> None:
    device = DEVICES[name]
    assert (device.fact("soc_model"), device.fact("arch"), device.fact("vtcm_mb")) == (soc_model, arch, vtcm_mb)
    assert any("SoC table inside onnxruntime-qnn" in source for source in device.facts["arch"].source)


def test_chips_that_the_soc_table_gives_no_architecture() -> None:
    for name in ("sdm660", "sm4635", "qcs2290"):
        assert lacks("htp", DEVICES[name])
        assert DEVICES[name].fact("arch") is None
    assert lacks("htp", DEVICES["sdm845"])
    assert DEVICES["sdm845"].fact("arch") == "v65"


@each_row("device", qualcomm_devices(), ids=lambda device: device.id)
def test_every_fact_has_a_source_and_the_names_resolve(device: Device) -> None:
    assert device.backends == ("qnn-htp", "ort-qnn")
    for name, fact in device.facts.items():
        assert fact.source, name
        assert all(len(source) > 3 for source in fact.source)
    assert ("marketing" in device.facts) == bool(device.marketing)
    if device.marketing:
        assert device.facts["marketing"].value == device.marketing
    for name in (device.id, device.id.upper(), device.name, *device.aliases):
        assert qualcomm_device(name).id == device.id


@each_row(
    ("name", "expected"),
    [
        ("sa8775", "sa8775p"),
        ("SA8775P", "sa8775p"),
        ("Snapdragon 8 Gen 3", "sm8650"),
        ("snapdragon-8-elite", "sm8750"),
        ("RB3 Gen 2", "qcs6490"),
        ("X2 Elite", None),
        ("Snapdragon X Elite", "sc8380xp"),
        ("sm8250", "sdm865"),
    ],
)
def test_names_people_use(name: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(UnknownTargetError):
            qualcomm_device(name)
    else:
        assert qualcomm_device(name).id == expected


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownTargetError, match="sm8650") as caught:
        qualcomm_device("sm865O0")
    assert caught.value.exit_status == 4


@pytest.mark.parametrize("name", ["../archs", "sm8650/../sm8750", "", "sm8650.toml"])
def test_a_name_is_never_a_path(name: str) -> None:
    with pytest.raises(UnknownTargetError):
        qualcomm_device(name)


def test_search_by_name_architecture_and_phrase() -> None:
    found = {device.id for device in search_devices(DEVICES.values(), "v75")}
    assert found >= {"qcs8275", "qcs8300", "qcs8625", "sa7255", "sm8650"}
    assert "sm8550" not in found
    assert [device.id for device in search_devices(DEVICES.values(), "8 gen 3")] == ["sm8650"]
    assert "sm8650" in {device.id for device in search_devices(DEVICES.values(), "snapdragon v75")}
    assert search_devices(DEVICES.values(), "no such chip") == ()


def test_contradictions_are_kept_with_both_sides() -> None:
    soc = DEVICES["qcs6490"].facts["soc_model"]
    assert (soc.value, soc.alternatives) == (35, (93,))
    arch = DEVICES["sc8480xp"].facts["arch"]
    assert (arch.value, arch.alternatives, str(arch.confidence)) == ("v81", ("v75",), "observed")
    assert "88" in DEVICES["sm8850"].facts["bf16"].contradicts
    assert DEVICES["sm8850"].fact("android_soc_id") == 660


def test_an_unknown_architecture_stays_unknown() -> None:
    device = DEVICES["sc7280x"]
    assert device.fact("arch") is None
    assert not has("htp", device) and not lacks("htp", device)
    assert capability("fp16", device=device) is None
    assert "precisions" not in device.facts


def test_precisions_follow_from_the_architecture() -> None:
    assert DEVICES["sm8350"].fact("precisions") == ("w8a16",)
    assert DEVICES["sm8650"].fact("precisions") == ("w8a16", "w16a16", "fp16", "lpbq")
    assert "bf16" in DEVICES["sm8850"].fact("precisions")
    assert lacks("htp", DEVICES["sdm865"])
    assert lacks("htp", DEVICES["aic100"])


def test_architectures() -> None:
    assert known_archs() == ("v65", "v66", "v68", "v69", "v73", "v75", "v79", "v81")
    assert arch_number("v73") == 73
    assert arch_number("v74") is None
    fact = capability("fp16", arch="v68")
    assert fact is not None
    assert fact.value is False
    assert str(fact.confidence) == "reported"
    assert capability("fp16", arch="v99") is None
    assert capability("flying", arch="v73") is None


@pytest.mark.parametrize(
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
    folder = tmp_path / "devices"
    folder.mkdir()
    text = (DATA / "devices/sm8650.toml").read_text()
    assert old in text
    (folder / "sm8650.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match="not TOML" if path is None else f"devices/sm8650.toml: {path}: "):
        load_device(folder / "sm8650.toml")


def test_folders_load_in_order_of_id() -> None:
    ids = [device.id for device in load_devices(DATA / "devices")]
    assert ids == sorted(ids)


@each_row(
    ("name", "device"),
    [
        ("qualcomm-sa8295p", "sa8295"),
        ("qualcomm-snapdragon-8gen3", "sm8650"),
        ("qualcomm-qcs8550-proxy", "qcs8550"),
        ("qualcomm-snapdragon-x-elite", "sc8380xp"),
        ("qualcomm-snapdragon-x-plus-8-core", "sc8340xp"),
        ("qualcomm-snapdragon-8-elite-for-galaxy", "sm8750"),
        ("qualcomm-snapdragon-8-elite-gen5", "sm8850"),
        ("qualcomm-snapdragon-7gen4", "sm7750"),
        ("qualcomm-qcs6490", "qcs6490"),
        ("Samsung Galaxy S24 Ultra", "sm8650"),
        ("Dragonwing IQ-9075 EVK", "qcs9075"),
        ("Snapdragon X2 Elite CRD", "sc8480xp"),
        ("SA8295P ADP", "sa8295"),
        ("Surface Pro 9 5G", "sc8280x"),
        ("Surface Laptop 7", "sc8380xp"),
    ],
)
def test_the_names_of_ai_hub_are_known(name: str, device: str) -> None:
    """Chipsets and devices of qualcomm/ai-hub-models, devices_and_chipsets.yaml, and machines with Windows."""
    assert of_chip(name).id == device


@pytest.mark.parametrize(
    ("words", "device"), [("SoC 90", "qcs8625"), ("soc_model 57", "sm8650"), ("soc id 69", "sm8750")]
)
def test_the_number_of_a_chip_is_a_key(words: str, device: str) -> None:
    assert [found.id for found in search_devices(qualcomm_devices(), words)] == [device]


@pytest.mark.parametrize("chip", ["sm7635", "sm8735", "sm7475", "sar2230p"])
def test_chips_without_float16_on_an_architecture_that_has_it(chip: str) -> None:
    """The compiler of 2.51 answers 'The SocModel doesn't support FP16' for them, in every architecture."""
    device = of_chip(chip)
    assert lacks("fp16", device) and "fp16" not in device.fact("precisions")
    assert has("fp16", of_chip("sm8650")) and "fp16" in of_chip("sm8650").fact("precisions")
