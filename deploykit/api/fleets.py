"""The functions of the API about many models and many targets: arguments in, one call of the fleet's stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from deploykit.fleet.comparing import Difference
    from deploykit.fleet.results import CellResult, Results
    from deploykit.fleet.scouting import Scouted

__all__ = ["init", "matrix", "matrix_diff", "matrix_emit"]

AnyPath: TypeAlias = str | PathLike[str]


def init(folder: AnyPath, *, targets: Iterable[str], force: bool = False) -> tuple[Path, Scouted]:
    """Write ``deploykit.toml`` into a folder of models, and return where it is and what was found.

    Raises InputError where the folder holds no model, UnknownTargetError for a device that is none, PackageError where
    the file exists and ``force`` is not given.
    """
    from deploykit.backend.plugins import device_named
    from deploykit.fleet.description import FILE_NAME
    from deploykit.fleet.scouting import scout, toml_text
    from deploykit.system.whole_files import write_files

    ids = tuple(dict.fromkeys(device_named(target).id for target in targets))
    scouted = scout(Path(folder))
    file = Path(folder) / FILE_NAME
    write_files({file: toml_text(scouted, ids)}, force=force)
    return file, scouted


def matrix(
    file: AnyPath = "deploykit.toml",
    *,
    out: AnyPath = "matrix",
    only: str | Iterable[str] = (),
    executor: str = "local",
    processes: int | None = None,
    time_limit: float = 3600.0,
    fail_fast: bool = False,
    fresh: bool = False,
    progress: Callable[[str, str], None] | None = None,
    on_result: Callable[[CellResult], None] | None = None,
) -> Results:
    """Package every model of a ``deploykit.toml`` for every target, and write the results to ``out``.

    ``only`` are patterns of cells (``yolo/phone``), models or targets; ``executor`` is ``local`` or
    ``dask://HOST:PORT``; ``time_limit`` is in seconds and per cell. ``progress`` is called with a cell and a line of
    news, ``on_result`` with each result. A cell that fails is a result, not an error. Raises InputError for a file that
    is none, UsageError for options that make no sense, PackageError where ``out`` cannot be used.
    """
    from deploykit.fleet.running import run_matrix, select

    return run_matrix(
        select(Path(file), only=_texts(only)),
        Path(out),
        executor=executor,
        processes=processes,
        time_limit=time_limit,
        fail_fast=fail_fast,
        fresh=fresh,
        tell=progress or (lambda _cell, _line: None),
        done=on_result or (lambda _result: None),
    )


def matrix_diff(old: AnyPath, new: AnyPath) -> Difference:
    """What changed between two result folders; InputError where one is none."""
    from deploykit.fleet.comparing import compare
    from deploykit.fleet.results import read_results

    return compare(read_results(Path(old)), read_results(Path(new)))


def matrix_emit(engine: str, file: AnyPath = "deploykit.toml", *, only: str | Iterable[str] = ()) -> str:
    """The same matrix for another engine, as text: ``github-actions``, ``gitlab`` or ``snakemake``."""
    from deploykit.fleet.emitting import emit
    from deploykit.fleet.running import select

    return emit(engine, select(Path(file), only=_texts(only)))


def _texts(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
