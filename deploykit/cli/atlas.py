"""``deploykit atlas``: the measured table of kernels behind the rules, and measuring it again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploykit.backend.optional import MeasuresKernels
from deploykit.backend.plugins import load_backends
from deploykit.cli.frame import Group
from deploykit.cli.output import emit, table
from deploykit.cli.progress import progress
from deploykit.errors import UsageError

if TYPE_CHECKING:
    from deploykit.backend.optional import Spread

__all__ = ["command"]

_HEADER = ("operator", "types", "verdict", "when", "cases", "row")


@click.group("atlas", cls=Group)
def command() -> None:
    """What was measured of kernels: which are wrong, narrowed or refused, and under which condition."""


@command.command("show")
@click.argument("operator", default="")
@click.option("--sdk", default="", metavar="VERSION", help="The release asked about. Default: the newest measured.")
@click.option("--type", "kind", default="", metavar="TYPE", help="Only rows of one type: u8, u16, float.")
@click.option("--backend", metavar="ID", help="Whose table. Default: the first backend that has one.")
def show(operator: str, sdk: str, kind: str, backend: str | None) -> None:
    """The rows about OPERATOR, or all."""
    found = [row for row in _backend(backend).atlas(operator, sdk) if not kind or kind in row["types"]]
    rows = [
        (row["op"], " ".join(row["types"]), row["verdict"], row["condition"], row["hit"], row["id"]) for row in found
    ]
    emit(
        {"rows": found},
        lambda: table(rows, header=_HEADER) if rows else "no row: nothing wrong was found, or nothing was measured",
    )


@command.command("probe")
@click.argument("row")
@click.option("--backend", metavar="ID", help="Whose table. Default: the first backend that has one.")
def probe(row: str, backend: str | None) -> int:
    """Measure the case that shows ROW again; exit status 1 when the verdict is another one now."""
    found = _backend(backend).probe(row)
    emit(found, lambda: _told(found))
    return int(not found["holds"])


@command.command("run")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Measurements.")
@click.option("--sdk", default="", metavar="VERSION", help="The release that is asked. Default: the newest.")
@click.option("--soc", type=click.IntRange(min=0), metavar="N", help="The chip's number. Default: that of the table.")
@click.option("--most", type=click.IntRange(min=1), metavar="N", help="Stop after so many cases.")
@click.option("--executor", default="local", metavar="WHERE", help="local, or dask://HOST:PORT (extra 'dask').")
@click.option("--backend", metavar="ID", help="Whose kernels. Default: the first backend that has a table.")
def run(out: Path, sdk: str, soc: int | None, most: int | None, executor: str, backend: str | None) -> None:
    """Measure cases that FILE does not have yet: hours in all, to be stopped and taken up again at any time."""
    with progress() as tell, _spread(executor, tell) as spread:
        _backend(backend).measure(out, release=sdk, soc=soc, most=most, progress=tell, spread=spread)
    emit({"file": str(out)}, f"{out}")


@command.command("fold")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--sdk", default="", metavar="VERSION", help="The release that was measured. Default: the newest.")
@click.option("--pages", type=click.Path(path_type=Path), metavar="DIR", help="Write pages about it there too.")
@click.option("--backend", metavar="ID", help="Whose table. Default: the first backend that has one.")
def fold(file: Path, sdk: str, pages: Path | None, backend: str | None) -> None:
    """Draw the table anew from a FILE of measurements."""
    found = _backend(backend).fold(file, release=sdk, pages=pages)
    emit(found, lambda: ", ".join(f"{value} {name}" for name, value in found.items()))


@contextlib.contextmanager
def _spread(executor: str, tell: Callable[[str], None]) -> Iterator[Spread | None]:
    """How work gets to the workers of a cluster; None where it is done here."""
    from deploykit.fleet.cluster import address_of, spread_over

    address = address_of(executor)
    if address is None:
        yield None
        return
    with spread_over(address, lambda name, line: tell(f"{name}: {line}")) as spread:
        yield spread


def _backend(asked: str | None) -> MeasuresKernels:
    able = {one.id: one for one in load_backends() if isinstance(one, MeasuresKernels)}
    chosen = next(iter(able.values()), None) if asked is None else able.get(asked)
    if chosen is None:
        raise UsageError(f"--backend {asked}: no table of kernels", next=f"one of {', '.join(able) or 'none'}")
    return chosen


def _told(found: Mapping[str, Any]) -> str:
    agrees = "as the row says" if found["holds"] else f"the row says {found['said']}"
    return f"{found['verdict']} ({agrees}): {found['numbers']['case']}: {_measured(found['numbers'])}"


def _measured(numbers: Mapping[str, Any]) -> str:
    """What was measured, in words; what was not taken has no deviation."""
    off = numbers.get("deviation")
    if not off:
        return f"not taken: {numbers.get('why') or numbers['answer']}"
    far = f"{off['share']:.1%} of the values by more than a hundredth of it"
    return f"off by up to {off['most']:g} of the {off['span']:g} steps of its range, {far}"
