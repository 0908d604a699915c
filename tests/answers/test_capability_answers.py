"""Questions to a made-up table, each with its whole answer in ``capabilities.told``."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from deploykit.answers.asking import Query, answer, device_rows, differences, releases_between, search
from deploykit.errors import UnknownTargetError
from deploykit.findings import Confidence
from deploykit.tables.capabilities import CompatRow, Status
from deploykit.tables.devices import Device, Fact
from stub_backend import ROW
from told import check_file


def row(feature: str, status: str = "supported", since: str = "", until: str = "", **more: Any) -> CompatRow:
    base = replace(ROW, feature=feature, backend="one", status=Status(status), confidence=Confidence.OBSERVED)
    return replace(base, **{"since": since, "until": until, "family": "kit" if since else "", **more})


ROWS = (
    row("fast-mode", "unsupported", "1.0", "1.1", tool="maker"),
    row("fast-mode", "unknown", "1.2", "1.2", tool="maker", contradicts="others say 1.3"),
    row("fast-mode", "supported", "1.3", tool="maker"),
    row("fast-mode", "broken", "1.3", tool="runner", arch="a2"),
    row("fast-mode-deluxe", "supported", "1.3"),
    row("flag --go_fast", since="1.0", tool="maker", words=("-f", "--speedy")),
    row("flag --quick", "unsupported", "1.0", renamed_to="flag --go_fast"),
    row("key devices[].cores[].id", since="1.0", tool="file"),
    row("always", note="what holds for ever"),
    row("release 1.0", since="1.0", until="1.0"),
    row("release 1.2", since="1.2", until="1.2", note="a change"),
    row("release 1.2", since="1.2", until="1.2", note="another change"),
    row("release 1.3", since="1.3", until="1.3", note="a late change"),
    row("other-kit", since="7.0", family="other", backend="two"),
    row("far-kit", since="7.0", family="other", ran="7.1"),
    row("ancient", lifecycle="hidden", since="1.0", until="1.2"),
    row("ancient", lifecycle="deprecated", since="1.3"),
    row("release 1.30", since="1.30", until="1.30", note="much later"),
)


FACT = Fact(value="a1", source=("a page",), confidence=Confidence.REPORTED)
DEVICE = Device(
    schema=1,
    id="chip",
    name="Chip",
    vendor="V",
    backends=("one",),
    marketing="Great One",
    aliases=("chippy", "crisp"),
    facts={
        "units": replace(FACT, value=("a", "b"), note="as sold", alternatives=(1, "c"), contradicts="the shop"),
        "big": replace(FACT, value=False),
        "small": replace(FACT, value=0),
    },
)


def line(row: CompatRow | None) -> str:
    if row is None:
        return "no row"
    told = (row.feature, row.backend, row.tool, row.arch, row.sdk, row.status, row.lifecycle, row.note, row.contradicts)
    return " | ".join(part for part in map(str, told) if part)


def said(question: str) -> list[str]:
    """``diff A B``, ``between A B`` or nothing, then ``key=value`` of the query and words."""
    kind, *words = question.split()
    told = dict(word.split("=") for word in words if "=" in word)
    named = ("archs", "backends")
    lists = {key: tuple(filter(None, told.pop(key).split(","))) if key in told else None for key in named}
    given: dict[str, Any] = {"sdk": "", "tool": "", **lists, **told}
    words = [word for word in words if "=" not in word]
    try:
        if kind == "device":
            return [line(row) for row in device_rows(replace(DEVICE, facts={} if words else DEVICE.facts))]
        if kind == "known":
            return [line(row) for row in search([*device_rows(DEVICE)], words)]
        if kind == "search":
            return [line(row) for row in search(ROWS, words)] if words else [f"{len(search(ROWS, words))} rows"]
        if kind == "between":
            return [line(row) for row in releases_between(ROWS, words[0], words[1], Query(words=(), **given))]
        if kind == "diff":
            found = differences(ROWS, words[0], words[1], Query(words=tuple(words[2:]), **given))
            return [f"{line(one.before)} -> {line(one.after)}" for one in found]
        answered = answer(ROWS, Query(words=tuple(words), **given))
    except UnknownTargetError as error:
        return [*str(error).splitlines(), f"status {error.exit_status}"]
    return [*map(line, answered.rows), f"by {dict(answered.answered_by)}, near {', '.join(answered.near) or 'nothing'}"]


def test_questions_are_answered() -> None:
    check_file(Path(__file__).with_name("capabilities.told"), said)
