"""Which target and release a request means, and what rules say about them."""

import re
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from deploykit.backend.targets import Target
from deploykit.errors import InputError, UnknownTargetError
from deploykit.findings import Confidence
from deploykit.tables.devices import Device, Fact
from deploykit_qualcomm.compat import compat_rows
from deploykit_qualcomm.devices import qualcomm_device, qualcomm_devices
from deploykit_qualcomm.resolving import RULES as SDK_RULES
from deploykit_qualcomm.resolving import TARGET_RULES, SdkChoice, SdkMatch, resolve_sdk, resolve_target
from deploykit_qualcomm.tables import Tables, row_key, tables
from rule_cases import check_pairs
from sums import flat
from told import check_file

FROZEN = Path(__file__).parents[1] / "data/tables"
SHELF = Tables(FROZEN)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return shutil.copytree(FROZEN, tmp_path / "data")


def answered(typed: str) -> list[str]:
    """What a version as typed comes to, for who runs the SDK's tools, or with ``(library)`` none of them."""
    version = typed.removesuffix(" (library)")
    try:
        table, findings = resolve_sdk(version, uses_tools=not typed.endswith("(library)"), source=SHELF)
    except UnknownTargetError as error:
        assert error.exit_status == 4
        return str(error).splitlines()
    return [table.version, *(f"  {found.code} {found.severity}: {found.message}" for found in findings)]


def test_a_version_as_typed() -> None:
    check_file(Path(__file__).with_name("versions.told"), answered)


def rows_of(shelf: Tables) -> Iterator[str]:
    """Of every release the rows that are not as before, in short."""
    known = dict[object, str]()
    for table in shelf.all():
        rows: list[Any] = [*table.flags, *table.features, *table.config_keys]
        for row in rows:
            more = f"; {row.confidence_note}" if row.confidence_note else ""
            sure = f"{row.status} since {row.since}, {row.confidence}{more}"
            if known.get(row_key(row)) != sure:
                yield f"{table.version} {row_key(row)}: {sure}"
            known[row_key(row)] = sure


def shelved(folder: Path, edits: str) -> Iterator[str]:
    """What edits change of the tables of a folder, ``FILE: OLD -> NEW`` or ``FILE + TEXT``, or what is wrong then."""
    before = [] if edits == "none" else [*rows_of(SHELF)]
    for edit in edits.split("; ") if before else ():
        name, sign, old, new = re.fullmatch(r"(\S+)(:| \+) (.*?)(?: -> (.*))?", edit).groups()  # type: ignore[union-attr]
        text = (folder / name).read_text("utf-8")
        made = text.replace(old, new, 1) if sign == ":" else text + old
        (folder / name).write_text(made.replace("|", "\n"), "utf-8")
    try:
        yield from (row for row in rows_of(Tables(folder)) if row not in before)
    except InputError as error:
        yield from str(error).replace(f"{folder}/", "").splitlines()


def test_tables_as_written_and_wrong(tmp_path: Path) -> None:
    number = count()
    check_file(
        Path(__file__).with_name("shelves.told"),
        lambda edits: shelved(shutil.copytree(FROZEN, tmp_path / str(next(number))), edits),
    )
    for digits in ("9" * 5000 + ".1", "9" * 61):
        assert len("".join(answered(digits))) < 400 and "looks like" in "".join(answered(digits))


def test_what_the_series_file_declares_is_done(data: Path) -> None:
    text = (data / "series.toml").read_text()
    (data / "series.toml").write_text(
        text.replace('below_oldest = "error"', 'below_oldest = "warning"')
        .replace('newer = "warning"', 'newer = "error"', 1)
        .replace('far_newer = "error"', 'far_newer = "warning"')
    )
    shelf = Tables(data)
    table, findings = resolve_sdk("2.24", source=shelf)
    assert (table.version, [finding.code for finding in findings]) == ("2.29.0", ["QNN005"])
    with pytest.raises(UnknownTargetError, match=r"2\.52"):
        resolve_sdk("2.52", source=shelf)


def chosen(request: str, table: str, match: SdkMatch, *, uses_tools: bool = True) -> SdkChoice:
    return SdkChoice(request=request, table=tables().table(table), match=match, uses_tools=uses_tools)


def target(device: str | Device, sdk: str = "2.50.0", backend: str = "qnn-htp") -> Target:
    found = qualcomm_device(device) if isinstance(device, str) else device
    return Target(device=found, backend=backend, requested=sdk, sdk=tables().table(sdk))


def without(device: str, fact: str) -> Device:
    found = qualcomm_device(device)
    return replace(found, facts={name: value for name, value in found.facts.items() if name != fact})


EXACT = chosen("2.33.0", "2.33.0", "exact")
CASES: dict[str, tuple[Any, Any]] = {
    "QNN001": (chosen("2.33.5", "2.33.0", "lower"), EXACT),
    "QNN002": (chosen("2.52", "2.51.0", "newer"), EXACT),
    "QNN003": (chosen("2.33.0.1", "2.33.0", "unlisted-build"), chosen("2.33.0.250327", "2.33.0", "build")),
    "QNN004": (chosen("2.51", "2.51.0", "series"), chosen("2.51", "2.51.0", "series", uses_tools=False)),
    "QNN005": (chosen("2.20", "2.29.0", "below"), EXACT),
    "QNN010": (target("sc7280x"), target("sm8650")),
    "QNN011": (target("sdm865"), target("sm8350")),
    "QNN012": (target("qcs6490"), target("qcm6490")),
    "QNN013": (target("sc8480xp"), target("sc8380xp")),
    "QNN014": (target("qcs6490"), target("sm8650")),
    "QNN015": (target(without("sm8550", "vtcm_mb")), target("sm8550")),
    "QNN016": (target("sm8850", "2.33.0"), target("sm8850", "2.47.0")),
    "QNN018": (target(without("sm8650", "soc_model")), target("sm8650")),
}


def test_each_rule_fires_and_stays_silent() -> None:
    check_pairs(CASES, SDK_RULES, TARGET_RULES)


def said_of(question: str) -> Iterator[str]:
    """``BACKEND RELEASE; FACT VALUE CONFIDENCE, …``: what is found of a chip; other values stand behind."""
    asked, told = question.split("; ")
    facts = dict[str, Fact]()
    for name, value, sure, *others in (words.split() for words in told.split(", ") if words):
        typed = {"true": True, "false": False}.get(value, int(value) if value.isdigit() else value)
        beside = {"alternatives": tuple(others), "contradicts": "another list"} if others else {}
        facts[name] = Fact(value=typed, source=(f"of {name}",), confidence=Confidence(sure), **beside)  # type: ignore[arg-type]
    chip = Device(schema=1, id="sm0003", name="SM0003", vendor="Nobody", backends=("qnn-htp",), facts=facts)
    backend, sdk = asked.split()
    for one in TARGET_RULES.run(Target(device=chip, backend=backend, requested=sdk, sdk=tables().table(sdk))):
        about = flat({"evidence": one.evidence, "from": [source for source in one.sources if source.startswith("of ")]})
        yield f"{one.severity} {one.code}: {one.message}; {one.hint} {about}"


def test_what_is_known_of_a_chip_and_what_that_means() -> None:
    check_file(Path(__file__).with_name("chips.told"), lambda question: [*said_of(question)])


# A new release or device is one file: added to a frozen folder it appears everywhere, no code or test changes.

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
