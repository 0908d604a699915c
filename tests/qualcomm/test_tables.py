"""The shared tables: nothing that was collected is lost, a wrong row is answered with its place, sources bound rows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from packaging.version import Version

from deploykit.answers.rule_pages import all_rules
from deploykit.errors import InputError
from deploykit.findings import Confidence, Finding, Severity, Subject, SubjectKind
from deploykit.flow.rules import CORE_REGISTRIES
from deploykit.tables.capabilities import ConfigKey, Feature, Flag, Status
from deploykit.tables.reading import parse_rows, structure
from deploykit.tables.sources import extent_of
from deploykit_qualcomm.devices import qualcomm_device
from deploykit_qualcomm.rules.constraints import ConstraintTable, constraint, constraints, rated
from deploykit_qualcomm.rules.registries import PROVIDER
from deploykit_qualcomm.tables import DATA, Tables, load_sdk_table, tables
from schemas import SCHEMAS
from tables import each_row

ROWS: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "data/qualcomm/rows.toml").read_text())


# Read here on its own, so that the loader is not tested against itself.
SOURCES = tomllib.loads((DATA / "sources.toml").read_text("utf-8"))


EXTENTS = {SOURCES["sources"].get(name, name): (given[0], given[-1]) for name, given in SOURCES["extent"].items()}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A copy of the shipped data, to be damaged."""
    return shutil.copytree(DATA, tmp_path / "data")


@contextmanager
def edited(path: Path, old: str, new: str) -> Iterator[None]:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    yield
    path.write_text(text)


def test_nothing_that_was_collected_is_lost() -> None:
    """Chips, releases, flags and keys as they were written down apart from the data files."""
    shelf, newest = tables(), tables().all()[-1]
    assert len({qualcomm_device(chip).id for chip in ROWS["devices"]}) == 113
    for kind, lines in (("soc_model", ROWS["soc_models"]), ("arch", ROWS["with_arch"])):
        for chip, value in map(str.split, lines):
            assert str(qualcomm_device(chip).fact(kind)) == value, chip
    assert {*ROWS["releases"], "2.49.40", "2.50.40", "2.51.0"} <= set(shelf.versions)
    assert set(ROWS["keys"]) <= {row.path for row in load_sdk_table("2.33.0").config_keys}
    for tool, names in (*ROWS["flags"].items(), *ROWS["aliases"].items()):
        assert not [name for name in names if all(table.flag(tool, name) is None for table in shelf.all())], tool
    assert not [name for name in ROWS["aliases"]["qairt-converter"] if newest.flag("qairt-converter", name) is None]
    assert [case.id for case in shelf.missing_encodings] == ROWS["missing_encodings"]
    assert [rule.topic for rule in shelf.compat_rules] == ROWS["rules"]
    assert [f"{wheel.version} {wheel.sdk}" for wheel in shelf.wheels] == ROWS["wheels"]
    without = [version for version in shelf.versions if not shelf.table(version).flags]
    assert without == ["2.20.0", "2.22", "2.25.0", "2.26.2", "2.27.0", "2.28"] and shelf.all()[0].version == "2.29.0"


def test_every_row_says_who_and_since_when_and_speaks_for_no_release_that_its_sources_do_not_know() -> None:
    chips = {(name.replace("_", "-"), arch) for arch, row in tables().archs.arch.items() for name in row.facts}
    for table in tables().all():
        rows: list[Flag | Feature | ConfigKey] = [*table.flags, *table.features, *table.config_keys]
        for row in rows:
            assert row.source and all(len(source) > 6 or "#" in source for source in row.source), row
            assert row.since in tables().with_rows
        assert all(change.source for change in table.changes)
        for row in table.features:
            if row.confidence is Confidence.INFERRED:
                assert row.note or row.confidence_note or row.contradicts, f"{row.feature}: inferred from what?"
                continue
            bounds = [bound for source in row.source for start, bound in EXTENTS.items() if source.startswith(start)]
            if len(bounds) >= len(row.source) and (row.feature, row.arch) not in chips:
                first = min(Version(bound[0]).release[:2] for bound in bounds)
                last = max(Version(bound[1] or "99.0").release[:2] for bound in bounds)
                assert first <= Version(table.version).release[:2] <= last, (table.version, row)


@each_row(
    ("sources", "expected"),
    [
        (["TOOLS"], None),
        (["qualcomm/aimet#4102"], ("2.33", "2.33")),
        (["qualcomm/aimet#4102 (a comment)", "qualcomm/aimet#4090"], ("2.33", "2.44")),
        (["qualcomm/aimet#4102", "somebody's notes"], None),
        (["onnxruntime/onnxruntime-qnn#476", "qualcomm/aimet#4090"], ("2.41", "")),
        ([], None),
    ],
)
def test_sources_speak_together(sources: list[str], expected: tuple[str, str] | None) -> None:
    assert extent_of(sources, EXTENTS) == expected


def test_what_is_known_of_a_later_release_is_inferred_for_earlier_ones() -> None:
    found = [load_sdk_table(version).flag("qairt-converter", "--float_bitwidth") for version in ("2.33.0", "2.35.0")]
    told = [(str(row.confidence), row.since) for row in found if row is not None]
    assert told == [("inferred", "2.29.0"), ("documented", "2.35.0")]
    assert found[0] is not None and "2.35.0" in found[0].confidence_note
    releases = ("2.29.0", "2.32.6", "2.33.0")
    rows = [tables().table(release).feature("encodings-2.0.0", tool="qnn-onnx-converter") for release in releases]
    assert [str(row.confidence) for row in rows if row is not None] == ["inferred", "inferred", "reported"]


def test_soc_id_is_gone_from_2_48_on() -> None:
    before, after = (load_sdk_table(version).key("devices[].soc_id") for version in ("2.47.1", "2.48.0"))
    assert before is not None and after is not None
    assert (before.status, after.status) == (Status.SUPPORTED, Status.UNSUPPORTED)
    assert before.lifecycle == after.lifecycle == "deprecated"
    assert after.renamed_to == "devices[].soc_model" and "2.49" in after.contradicts


def test_facts_speak_of_their_own_release_only() -> None:
    assert load_sdk_table("2.49.0").facts["context_blob"].value == "4.0"
    assert "context_blob" not in load_sdk_table("2.48.0").facts


NEW, EXTENDS = "[[feature]]\n", 'extends = "2.32.6"'


BROKEN: list[tuple[str, str, str, str]] = [
    ("2.33.0", "[[feature]]\nfeature =", "[[feature]]\nfeatures =", "feature[0].features: unknown"),
    ("2.38.0", 'confidence = "inferred"', 'confidence = "sure"', "feature[0].confidence:"),
    ("2.34.0", 'status = "unknown"', 'status = "maybe"', "flag[0].status:"),
    ("2.41", 'note = "all runs', 'notes = "all runs', "feature[0].notes: unknown key"),
    ("2.33.0", EXTENDS, 'extends = "2.32.7"', "extends: there is no"),
    ("2.33.0", EXTENDS, 'extends = "2.34.0"', "extends: 2.34.0 is not an"),
    ("2.33.0", EXTENDS, 'extends = "2.33.0"', "extends: 2.33.0 is not an"),
    ("2.30", 'extends = "2.29.0"', 'extends = "2.28"', "extends: 2.28 has no rows"),
    ("2.33.0", 'version = "2.33.0"', 'version = "2.33.1"', "version: '2.33.1' differs"),
    ("2.33.0", "schema = 1", "schema = = 1", "not TOML"),
    ("2.33.0", NEW, f'{NEW}extent = ["2.33"]\n', "feature[0].extent:"),
    ("2.33.0", NEW, f'{NEW}since = "2.30"\n', "feature[0].since:"),
]


@each_row(("version", "old", "new", "path"), BROKEN)
def test_one_wrong_row_is_named_by_its_path(version: str, old: str, new: str, path: str, data: Path) -> None:
    name = f"sdks/{version}.toml"
    with edited(data / name, old, new), pytest.raises(InputError) as caught:
        Tables(data).all()
    assert str(caught.value).startswith((f"{name}: {path}", f"{data / name}: {path}"))


WRONG_FILES: list[tuple[str, Callable[[Tables], object], str, str]] = [
    ("tools/qairt-converter.toml: flag[2].kind", lambda t: t.tools, 'kind = "values"', 'kind = "many"'),
    ("wheels.toml: wheel[11].onnxruntime[0].status", lambda t: t.wheels, 'status = "supported"', 'status = "ok"'),
    ("wheels.toml: wheel[0].host[0].runs[0]", lambda t: t.wheels, '"wine-x86-64"', '"wine"'),
    ("wheels.toml: wheel[0].provider", lambda t: t.wheels, 'provider = "built-in"', 'provider = "some"'),
    ("series.toml: below_oldest", lambda t: t.series, 'below_oldest = "error"', 'below_oldest = "shrug"'),
    ("compat_rules.toml: rule[0].topics", lambda t: t.compat_rules, "\ntopic =", "\ntopics ="),
    ("missing_encoding.toml: case[0].status", lambda t: t.missing_encodings, 'status = "supported"', "status = 1"),
    ("archs.toml: arch.v66.numbers", lambda t: t.archs, "number = 66", "numbers = 66"),
]


@each_row(("path", "read", "old", "new"), WRONG_FILES)
def test_every_kind_of_file_is_checked(
    path: str, read: Callable[[Tables], object], old: str, new: str, data: Path
) -> None:
    with edited(data / path.split(":", 1)[0], old, new), pytest.raises(InputError) as caught:
        read(Tables(data))
    assert str(caught.value).startswith(path)


def test_a_row_that_stands_twice_or_names_another_tool_is_refused(data: Path) -> None:
    path = data / "sdks/2.30.toml"
    rows = path.read_text()
    path.write_text(rows + rows[rows.index("[[flag]]") :])
    with pytest.raises(InputError, match=r"sdks/2.30.toml: flag\[1\]: the same row occurs twice"):
        Tables(data).table("2.30")
    other = edited(data / "tools/qnn-net-run.toml", "[[flag]]\n", '[[flag]]\ntool = "other"\n')
    with other, pytest.raises(InputError, match=r"flag\[0\].tool"):
        Tables(data).table("2.29.0")


def test_every_data_file_fits_its_schema_and_a_wrong_row_does_not() -> None:
    for pattern, schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
        check, paths = jsonschema.Draft202012Validator(schema), sorted(DATA.glob(pattern))
        assert paths
        for path in paths:
            assert [*check.iter_errors(tomllib.loads(path.read_text("utf-8")))] == [], path
    wrong = tomllib.loads((DATA / "sdks/2.33.0.toml").read_text("utf-8"))
    wrong["feature"][0]["confidence"] = "sure"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMAS["qualcomm-sdk"][1])


def test_loading_is_light_and_lazy() -> None:
    """Queries, rules and adapters load nothing heavy, and a table reads no later release."""
    code = (
        "import sys, deploykit_qualcomm.resolving as r, deploykit_qualcomm.compat as c, deploykit_ort_qnn as o\n"
        "import deploykit_qualcomm.rules.registries; from deploykit_qualcomm.known_errors import known_errors\n"
        "r.resolve_target('sm8650', '2.33', 'qnn-htp'); list(c.compat_rows('qnn-htp')); known_errors(); o.backend.id\n"
        "print([name for name in ('onnx', 'onnxruntime', 'numpy', 'onnxruntime_qnn') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == "[]"
    shelf = Tables()
    shelf.table("2.31.0")
    assert shelf.versions.index(max(shelf._files, key=shelf.versions.index)) == shelf.versions.index("2.31.0")


def test_what_an_architecture_can_do_stands_in_one_file() -> None:
    """A row of ``features.toml`` about such a capability differs from ``archs.toml``, or it would say it twice."""
    shelf, words = tables(), {True: Status.SUPPORTED, False: Status.UNSUPPORTED}
    said = {
        (name.replace("_", "-"), arch): row.facts[name].value is True
        for arch, row in shelf.archs.arch.items()
        for name in shelf.archs.features
        if name in row.facts
    }
    assert (said["fp16", "v68"], said["lpbq", "v69"]) == (False, True)
    document = tomllib.loads((shelf.data / "features.toml").read_text("utf-8"))["feature"]
    rows = parse_rows(Feature, [{**row, "since": ""} for row in document], where="features.toml")
    twice = {(row.feature, row.arch): row.status for row in rows if (row.feature, row.arch) in said}
    assert [*twice] == [("bf16", "v81")] and twice["bf16", "v81"] is not words[said["bf16", "v81"]]
    for (feature, arch), can in said.items():
        assert (feature, arch) in twice or shelf.all()[0].status(feature, arch=arch) is words[can]


def test_every_row_is_looked_for() -> None:
    """Those of the provider by its own rules; sources are spelled out."""
    codes = {entry.rule.code for entry in all_rules(CORE_REGISTRIES)}
    provider = {rule.code for registry in PROVIDER for rule in registry}
    assert len(constraints().constraint) == 31
    for row in constraints().constraint:
        assert row.rules and row.source and set(row.rules) <= (provider if row.ep_limit else codes), row.id
        assert not [text for text in row.source if re.match(r"(ET|ORT|USER|ZIMG|V73LAB|SKILL|TOOLS)\b", text)]


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"chek": "y"}, "constraint[0].chek: unknown key"),
        ({"severity": "fatal", "rules": [], "source": [], "confidence": "reported"}, "constraint[0].severity"),
        ({}, "constraint[0].source: missing"),
    ],
)
def test_a_wrong_row_is_answered_with_its_place(more: dict[str, object], where: str) -> None:
    row = {"id": "x", **({} if "chek" in more else {"check": "y"}), **more}
    with pytest.raises(InputError) as caught:
        structure(ConstraintTable, {"schema": 1, "constraint": [row]}, where="constraints.toml")
    assert where in caught.value.what


def test_what_the_core_finds_is_as_severe_as_the_table_says() -> None:
    def found(code: str, severity: Severity) -> Finding:
        subject = Subject(kind=SubjectKind.NODE, name="n")
        return Finding(code=code, slug="s", severity=severity, subject=subject, message="m", sources=("core",))

    raised = rated(found("DK003", Severity.WARNING))
    assert raised.severity is Severity.ERROR
    assert raised.sources == ("core", *constraint("no-control-flow").source)
    assert rated(found("DK001", Severity.ERROR)) == found("DK001", Severity.ERROR)
    assert rated(found("DK012", Severity.INFO)) == found("DK012", Severity.INFO), "no row speaks of it"
