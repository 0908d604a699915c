"""A chip that no table has: its file is drafted, and known from then on."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from deploykit.backend.on_device import Place
from deploykit.backend.plugins import load_backend
from deploykit.devices.places import draft_device
from deploykit.errors import InputError
from deploykit_qualcomm.devices import device_of_id, qualcomm_device, qualcomm_devices


def place(soc: str) -> Place:
    return Place(kind="adb", system="Android", machine="aarch64", folder="/data/local/tmp/x", soc=soc)


@pytest.mark.parametrize("soc", ["", "SM8650", "sm8650", "SM8750-AC"])
def test_a_chip_that_is_known_has_no_draft(soc: str) -> None:
    assert draft_device(place(soc), load_backend("qnn-htp"), "sm8650") == ""


def test_a_draft_is_a_device_that_is_known_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = draft_device(place('SM8750P "x"'), load_backend("qnn-htp"), "sm8750")
    told = tomllib.loads(text)
    assert (told["id"], told["name"], told["facts"]["arch"]["value"]) == ("sm8750p-x", 'SM8750P "x"', "v79")
    assert {fact["confidence"] for fact in told["facts"].values()} == {"inferred"}
    (tmp_path / "sm8750p-x.toml").write_text(text, "utf-8")
    monkeypatch.setenv("DEPLOYKIT_DEVICES", str(tmp_path))
    qualcomm_devices.cache_clear()
    try:
        assert qualcomm_device("SM8750P-x").fact("soc_model") == 69
        found = device_of_id("sm8750p-x")
        assert found is not None and "w8a16" in found.fact("precisions")
        assert draft_device(place("SM8750P-X"), load_backend("ort-qnn"), "sm8750") == ""
        (tmp_path / "sm8650.toml").write_text("schema = 1\n", "utf-8")
        with pytest.raises(InputError, match=r"sm8650\.toml"):
            device_of_id("sm8650")
        monkeypatch.setenv("DEPLOYKIT_DEVICES", str(tmp_path / "absent"))
        with pytest.raises(InputError, match="no such folder"):
            device_of_id("sm8650")
    finally:
        qualcomm_devices.cache_clear()
