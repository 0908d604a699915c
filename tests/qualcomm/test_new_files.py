"""A new release or device is one file: added to a frozen folder it appears everywhere, no code or test changes."""

import shutil
from pathlib import Path

import pytest

from deploykit.errors import InputError
from deploykit_qualcomm.compat import compat_rows
from deploykit_qualcomm.devices import qualcomm_device, qualcomm_devices
from deploykit_qualcomm.resolving import resolve_sdk, resolve_target
from deploykit_qualcomm.tables import Tables

FROZEN = Path(__file__).parents[1] / "data/tables"
RELEASE = """schema = 1
sdk = "qairt"
version = "2.52.0"
extends = "2.51.0"
builds = ["2.52.0.261101"]
source = ["a test"]
confidence = "reported"

[[feature]]
feature = "turbo"
status = "broken"
source = ["a test"]
confidence = "reported"

[[flag]]
tool = "maker"
flags = ["--new"]
meaning = "something new"
source = ["a test"]
confidence = "documented"
"""
DEVICE = """schema = 1
id = "sm0002"
name = "SM0002"
vendor = "Nobody"
backends = ["qnn-htp"]
aliases = ["next-chip"]

[facts.arch]
value = "v68"
source = ["a test"]
confidence = "documented"

[facts.soc_model]
value = 2
source = ["a test"]
confidence = "documented"
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return shutil.copytree(FROZEN, tmp_path / "data")


def test_a_new_release_is_one_file(data: Path) -> None:
    assert resolve_sdk("2.52", source=Tables(data))[0].version == "2.51.0"
    (data / "sdks/2.52.0.toml").write_text(RELEASE)
    (data / "sdks/2.53.0.toml").write_text(RELEASE)
    with pytest.raises(InputError, match="differs from the file name"):
        Tables(data).file("2.53.0")
    (data / "sdks/2.53.0.toml").unlink()
    shelf = Tables(data)
    for typed in ("2.52", "2.52.0", "2.52.0.261101", None):
        table, findings = resolve_sdk(typed, source=shelf)
        assert (table.version, findings) == ("2.52.0", ())
    assert shelf.table("2.52.0").has_flag("maker", "--new")
    assert shelf.table("2.52.0").has_flag("maker", "--out"), "what is not said is inherited"
    assert not shelf.table("2.51.0").has_flag("maker", "--new")
    rows = [row for row in compat_rows("qnn-htp", source=shelf) if row.feature in ("turbo", "flag --new")]
    assert [(row.feature, row.since, row.until, str(row.status)) for row in rows] == [
        ("turbo", "2.29.0", "2.33.0", "unknown"),
        ("turbo", "2.36", "2.51.0", "supported"),
        ("turbo", "2.52.0", "", "broken"),
        ("flag --new", "2.52.0", "", "supported"),
    ]


def test_a_new_device_is_one_file_among_those_of_a_test(data: Path) -> None:
    (data / "devices/sm0002.toml").write_text(DEVICE)
    assert [device.id for device in qualcomm_devices(data)] == ["sm0001", "sm0002"]
    assert qualcomm_device("next-chip", data).id == "sm0002"
    target = resolve_target("sm0002", "2.36", "qnn-htp", source=Tables(data))
    assert target.device.fact("soc_model") == 2
    assert {finding.code for finding in target.findings} == {"QNN015", "QNN016"}
