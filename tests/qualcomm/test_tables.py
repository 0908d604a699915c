"""The shared tables: nothing that was collected is lost, a wrong row is answered with its place, sources bound rows."""

import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import pytest
from packaging.version import Version

from deploykit.errors import InputError
from deploykit.findings import Confidence, Finding, Severity, Subject, SubjectKind
from deploykit.tables.capabilities import ConfigKey, Feature, Flag
from deploykit_qualcomm.compat import compat_rows as answers
from deploykit_qualcomm.rules.constraints import constraint, rated
from deploykit_qualcomm.tables import DATA, Tables, tables
from schemas import SCHEMAS
from tables import each_row

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
    (["TOOLS"], None),
    (["qualcomm/aimet#4102"], ("2.33", "2.33")),
    (["qualcomm/aimet#4102 (a comment)", "qualcomm/aimet#4090"], ("2.33", "2.44")),
    (["qualcomm/aimet#4102", "somebody's notes"], None),
    (["onnxruntime/onnxruntime-qnn#476", "qualcomm/aimet#4090"], ("2.41", "")),
    ([], None),
)
def test_sources_speak_together(sources: list[str], expected: tuple[str, str] | None) -> None:
    assert tables().source_file.extent_of(sources) == expected


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


@each_row(("version", "old", "new", "path"), *BROKEN)
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
    ("compat_rules.toml: rule[0].topics", lambda t: [*answers("", source=t)], "\ntopic =", "\ntopics ="),
    ("missing_encoding.toml: case[0].status", lambda t: [*answers("", source=t)], 'status = "supported"', "status = 1"),
    ("archs.toml: arch.v66.numbers", lambda t: t.archs, "number = 66", "numbers = 66"),
]


@each_row(("path", "read", "old", "new"), *WRONG_FILES)
def test_every_file_is_checked(path: str, read: Callable[[Tables], object], old: str, new: str, data: Path) -> None:
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
    (data / "sdks/newest.toml").touch()
    with pytest.raises(InputError, match=r"sdks/newest.toml: 'newest' is not a version"):
        assert Tables(data).versions


def test_every_data_file_fits_its_schema_and_a_wrong_row_does_not() -> None:
    for pattern, schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
        check, paths = jsonschema.Draft202012Validator(schema), sorted(DATA.glob(pattern))
        for path in (paths[0], paths[-1]):
            assert [*check.iter_errors(tomllib.loads(path.read_text("utf-8")))] == [], path
    wrong = tomllib.loads((DATA / "sdks/2.33.0.toml").read_text("utf-8"))
    wrong["feature"][0]["confidence"] = "sure"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMAS["qualcomm-sdk"][1])


def test_what_the_core_finds_is_as_severe_as_the_table_says() -> None:
    def found(code: str, severity: Severity) -> Finding:
        subject = Subject(kind=SubjectKind.NODE, name="n")
        return Finding(code=code, slug="s", severity=severity, subject=subject, message="m", sources=("core",))

    raised = rated(found("DK003", Severity.WARNING))
    assert raised.severity is Severity.ERROR
    assert raised.sources == ("core", *constraint("no-control-flow").source)
    assert rated(found("DK001", Severity.ERROR)) == found("DK001", Severity.ERROR)
    assert rated(found("DK013", Severity.INFO)) == found("DK013", Severity.INFO), "no row speaks of it"
