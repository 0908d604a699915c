"""What the subcommands of ``deploykit encodings`` do with files of encodings: show, check, convert and compare them.

Printing and writing are left to the commands, reading and placing to ``placed_encodings``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from deploykit.encodings.encodings_on_graph import EncodingsOnGraph
from deploykit.encodings.formats.conversion import Conversion, convert
from deploykit.encodings.formats.differences import Difference, diff
from deploykit.encodings.formats.signedness import Signedness
from deploykit.encodings.formats.summary import describe_encodings
from deploykit.encodings.lpbq_arithmetic import lpbq_encodings, scale_error
from deploykit.encodings.placed_encodings import read_given, read_placed
from deploykit.encodings.placement import layouts
from deploykit.encodings.qdq import QDQ_VERSION
from deploykit.encodings.rules import RULES as ENCODING_RULES
from deploykit.encodings.values import Affine, EncodingSet, Lpbq
from deploykit.errors import UsageError
from deploykit.findings import Finding, sort_findings
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts

__all__ = ["check_encodings", "convert_encodings", "diff_encodings", "show_encodings"]


def _facts_of(model: Path) -> GraphFacts:
    return collect_facts(load_model(model))


def _read(path: Path, model: Path | None) -> EncodingSet:
    return read_given(path) if model is None else read_placed(path, _facts_of(model))


def show_encodings(
    path: Path, *, model: Path | None = None, names: tuple[str, ...] = (), arrays: bool = False
) -> dict[str, Any]:
    """What ``describe_encodings`` says, of all tensors or of those named; UsageError for a name without entry."""
    encodings = _read(path, model)
    unknown = [name for name in names if name not in encodings]
    if unknown:
        raise UsageError(f"{path}: no entry for {unknown[0]!r}", next="'deploykit encodings show FILE' lists all")
    if names:
        encodings = replace(encodings, entries={name: encodings.entries[name] for name in names})
    return describe_encodings(encodings, arrays=arrays)


def check_encodings(path: Path, *, model: Path, float_tensors: Path | None = None) -> tuple[Finding, ...]:
    """The findings of all rules about encodings on their model, most severe first."""
    facts = _facts_of(model)
    encodings = read_placed(path, facts, float_tensors=float_tensors)
    return sort_findings(ENCODING_RULES.run(EncodingsOnGraph(encodings=encodings, facts=facts)))


def convert_encodings(
    path: Path,
    to_version: str,
    *,
    model: Path | None = None,
    float_tensors: Path | None = None,
    signedness: Signedness = "as-is",
    infer_blocks: bool = False,
    lpbq: bool = False,
) -> Conversion:
    """The file's encodings as another version, with the outcome per tensor.

    ``lpbq`` makes LPBQ of int4 blocks, which needs the model for their axes and is lossy: the notes say how far scales
    move, the warnings what stays as it is.
    """
    if model is None:
        if lpbq:
            raise UsageError("--lpbq: the axes of the blocks are not known", next="add --model MODEL")
        return convert(read_given(path, float_tensors=float_tensors), to_version, signedness=signedness)
    facts = _facts_of(model)
    encodings = read_placed(path, facts, float_tensors=float_tensors, infer_blocks=infer_blocks)
    if not lpbq:
        return convert(encodings, to_version, layouts=layouts(facts), signedness=signedness)
    changed, left = lpbq_encodings(encodings)
    done = convert(changed, to_version, layouts=layouts(facts), signedness=signedness)
    notes = (*done.notes, _moved_scales(encodings, changed))
    warnings = (*done.warnings, *(f"{name}: left as it is: {why}" for name, why in left.items()))
    return replace(done, notes=notes, warnings=warnings)


def _moved_scales(before: EncodingSet, after: EncodingSet) -> str:
    """How far scales moved, of themselves, where blocks became LPBQ; one weight is looked at after the other."""
    moved = []
    for name, entry in after.entries.items():
        old = before.entries[name].value
        if isinstance(entry.value, Lpbq) and isinstance(old, Affine):
            moved.append(scale_error(old.scale, entry.value.scale))
    most = max(moved, default=0.0)
    return f"{len(moved)} weights in blocks became LPBQ; their scales move by up to {most:.1%}"


def diff_encodings(
    first: Path, second: Path, *, model: Path | None = None, tolerance: float = 0.0, grid_only: bool = False
) -> tuple[Difference, ...]:
    """What differs between two files or QDQ models; the model, when given, gives both their axes and order.

    A QDQ model holds its scales in float32, so that a tolerance below 1.2e-7 is raised to that where one is compared.
    """
    sets = [_read(path, model) for path in (first, second)]
    if {encodings.version == QDQ_VERSION for encodings in sets} == {True, False}:
        tolerance = max(tolerance, 1.2e-7)
    return diff(*sets, tolerance=tolerance, grid_only=grid_only)
