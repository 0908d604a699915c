from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploykit.errors import InputError
from deploykit.tables.capabilities import ConfigKey, Feature, Flag, SdkTable, Status
from deploykit.tables.reading import parse_rows
from deploykit_qualcomm.tables import DATA, Tables, load_sdk_table, tables

LEGACY = "qnn-onnx-converter"
ROWS: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "data/qualcomm/rows.toml").read_text())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A copy of the shipped data, to be damaged."""
    return shutil.copytree(DATA, tmp_path / "data")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_every_release_has_a_file() -> None:
    assert set(ROWS["releases"]) <= set(tables().versions)
    assert len(ROWS["releases"]) == 30
    assert {"2.49.40", "2.50.40", "2.51.0"} <= set(tables().versions)


def test_releases_without_argument_lists_have_no_rows() -> None:
    without = [version for version in tables().versions if not tables().table(version).flags]
    assert without == ["2.20.0", "2.22", "2.25.0", "2.26.2", "2.27.0", "2.28"]
    assert tables().all()[0].version == "2.29.0"


def test_every_alias_finds_its_flag() -> None:
    newest = tables().all()[-1]
    for tool, aliases in ROWS["aliases"].items():
        assert [alias for alias in aliases if newest.flag(tool, alias) is None] == []


def test_every_key_case_rule_and_wheel_is_there() -> None:
    shelf = tables()
    assert set(ROWS["keys"]) <= {row.path for row in load_sdk_table("2.33.0").config_keys}
    assert len(ROWS["keys"]) == 59
    assert [case.id for case in shelf.missing_encodings] == ROWS["missing_encodings"]
    assert [rule.topic for rule in shelf.compat_rules] == ROWS["rules"]
    assert [f"{wheel.version} {wheel.sdk}" for wheel in shelf.wheels] == ROWS["wheels"]


@pytest.mark.parametrize("table", tables().all(), ids=lambda table: table.version)
def test_every_row_says_who_and_since_when(table: SdkTable) -> None:
    rows: list[Flag | Feature | ConfigKey] = [*table.flags, *table.features, *table.config_keys]
    for row in rows:
        assert row.source
        assert all(len(source) > 6 or "#" in source for source in row.source), row  # short names are written out
        assert row.since in tables().with_rows
    for change in table.changes:
        assert change.source


def test_a_list_that_was_read_at_a_later_release_is_inferred_for_earlier_ones() -> None:
    before, after = load_sdk_table("2.33.0"), load_sdk_table("2.35.0")
    for table, confidence, since in ((before, "inferred", "2.29.0"), (after, "documented", "2.35.0")):
        row = table.flag("qairt-converter", "--float_bitwidth")
        assert row is not None
        assert (row.confidence, row.since) == (confidence, since)
    assert "2.35.0" in (before.flag("qairt-converter", "--float_bitwidth") or after).confidence_note  # type: ignore[union-attr]


def test_soc_id_is_gone_from_2_48_on() -> None:
    before, after = (load_sdk_table(version).key("devices[].soc_id") for version in ("2.47.1", "2.48.0"))
    assert before is not None
    assert after is not None
    assert (before.status, after.status) == (Status.SUPPORTED, Status.UNSUPPORTED)
    assert before.lifecycle == after.lifecycle == "deprecated"
    assert after.renamed_to == "devices[].soc_model"
    assert "2.49" in after.contradicts


def test_facts_speak_of_their_own_release_only() -> None:
    assert load_sdk_table("2.49.0").facts["context_blob"].value == "4.0"
    assert "context_blob" not in load_sdk_table("2.48.0").facts


BROKEN: dict[str, tuple[str, str, str, str]] = {
    "bad key": (
        "sdks/2.33.0.toml",
        "[[feature]]\nfeature =",
        "[[feature]]\nfeatures =",
        "feature[0].features: unknown",
    ),
    "bad confidence": ("sdks/2.38.0.toml", 'confidence = "inferred"', 'confidence = "sure"', "feature[0].confidence:"),
    "bad status": ("sdks/2.34.0.toml", 'status = "unknown"', 'status = "maybe"', "flag[0].status:"),
    "missing source": ("sdks/2.41.toml", 'note = "all runs', 'notes = "all runs', "feature[0].notes: unknown key"),
    "dangling extends": ("sdks/2.33.0.toml", 'extends = "2.32.6"', 'extends = "2.32.7"', "extends: there is no"),
    "later extends": ("sdks/2.33.0.toml", 'extends = "2.32.6"', 'extends = "2.34.0"', "extends: 2.34.0 is not an"),
    "own extends": ("sdks/2.33.0.toml", 'extends = "2.32.6"', 'extends = "2.33.0"', "extends: 2.33.0 is not an"),
    "empty extends": ("sdks/2.30.toml", 'extends = "2.29.0"', 'extends = "2.28"', "extends: 2.28 has no rows"),
    "other version": ("sdks/2.33.0.toml", 'version = "2.33.0"', 'version = "2.33.1"', "version: '2.33.1' differs"),
    "not TOML": ("sdks/2.33.0.toml", "schema = 1", "schema = = 1", "not TOML"),
    "extent by hand": ("sdks/2.33.0.toml", "[[feature]]\n", '[[feature]]\nextent = ["2.33"]\n', "feature[0].extent:"),
    "since by hand": ("sdks/2.33.0.toml", "[[feature]]\n", '[[feature]]\nsince = "2.30"\n', "feature[0].since:"),
}


@pytest.mark.parametrize("case", sorted(BROKEN))
def test_one_wrong_row_is_named_by_its_path(case: str, data: Path) -> None:
    name, old, new, path = BROKEN[case]
    edit(data / name, old, new)
    with pytest.raises(InputError) as caught:
        Tables(data).all()
    assert str(caught.value).startswith((f"{name}: {path}", f"{data / name}: {path}"))


WRONG_FILES: dict[str, tuple[Callable[[Tables], object], str, str]] = {
    "tools/qairt-converter.toml: flag[2].kind": (lambda t: t.tools, 'kind = "values"', 'kind = "many"'),
    "wheels.toml: wheel[11].onnxruntime[0].status": (lambda t: t.wheels, 'status = "supported"', 'status = "ok"'),
    "wheels.toml: wheel[0].host[0].runs[0]": (lambda t: t.wheels, '"wine-x86-64"', '"wine"'),
    "wheels.toml: wheel[0].provider": (lambda t: t.wheels, 'provider = "built-in"', 'provider = "some"'),
    "series.toml: below_oldest": (lambda t: t.series, 'below_oldest = "error"', 'below_oldest = "shrug"'),
    "compat_rules.toml: rule[0].topics": (lambda t: t.compat_rules, "\ntopic =", "\ntopics ="),
    "missing_encoding.toml: case[0].status": (lambda t: t.missing_encodings, 'status = "supported"', "status = 1"),
    "archs.toml: arch.v66.numbers": (lambda t: t.archs, "number = 66", "numbers = 66"),
}


@pytest.mark.parametrize("path", sorted(WRONG_FILES))
def test_every_kind_of_file_is_checked(path: str, data: Path) -> None:
    read, old, new = WRONG_FILES[path]
    edit(data / path.split(":", 1)[0], old, new)
    with pytest.raises(InputError) as caught:
        read(Tables(data))
    assert str(caught.value).startswith(path)


def test_a_row_that_stands_twice_is_refused(data: Path) -> None:
    path = data / "sdks/2.30.toml"
    rows = path.read_text()
    path.write_text(rows + rows[rows.index("[[flag]]") :])
    with pytest.raises(InputError, match=r"sdks/2.30.toml: flag\[1\]: the same row occurs twice"):
        Tables(data).table("2.30")


def test_a_tool_file_holds_its_own_tool_only(data: Path) -> None:
    path = data / "tools/qnn-net-run.toml"
    edit(path, "[[flag]]\n", '[[flag]]\ntool = "other"\n')
    with pytest.raises(InputError, match=r"flag\[0\].tool"):
        Tables(data).table("2.33.0")


def test_loading_is_light_and_lazy() -> None:
    code = (
        "import sys, deploykit_qualcomm.resolving as r, deploykit_qualcomm.compat as c\n"
        "r.resolve_target('sm8650', '2.33', 'qnn-htp'); list(c.compat_rows('qnn-htp'))\n"
        "print([name for name in ('onnx', 'onnxruntime', 'numpy', 'importlib.metadata') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == "[]"


def test_a_table_reads_no_later_release() -> None:
    shelf = Tables()
    shelf.table("2.31.0")
    assert shelf.versions.index(max(shelf._files, key=shelf.versions.index)) == shelf.versions.index("2.31.0")


def test_what_an_architecture_can_do_stands_in_one_file() -> None:
    """A row of ``features.toml`` about such a capability differs from ``archs.toml``, or it would say it twice."""
    shelf = tables()
    said = {
        (name.replace("_", "-"), arch): row.facts[name].value is True
        for arch, row in shelf.archs.arch.items()
        for name in shelf.archs.features
        if name in row.facts
    }
    assert said["fp16", "v68"] is False
    assert said["lpbq", "v69"] is True
    oldest = shelf.all()[0]
    twice = []
    for row in parse_rows(Feature, read_rows(shelf.data / "features.toml")["feature"], where="features.toml"):
        if (row.feature, row.arch) in said:
            assert row.status is not (Status.SUPPORTED if said[row.feature, row.arch] else Status.UNSUPPORTED)
            twice.append((row.feature, row.arch))
    assert twice == [("bf16", "v81")]
    for (feature, arch), can in said.items():
        if (feature, arch) not in twice:
            assert oldest.status(feature, arch=arch) is (Status.SUPPORTED if can else Status.UNSUPPORTED)


def read_rows(path: Path) -> dict[str, Any]:
    """A file of feature rows, with the column that the loader fills."""
    document = tomllib.loads(path.read_text("utf-8"))
    for row in document["feature"]:
        row["since"] = ""
    return document
