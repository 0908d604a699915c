"""What the subcommands of ``deploykit encodings`` do with files: show, check, convert, compare, apply and extract.

Printing is left to the commands. What cannot be written is reported, never dropped in silence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import onnx
from msgspec.structs import replace
from onnx import ModelProto

from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.formats.conversion import Conversion, convert
from deploykit.encodings.formats.differences import EntryDifference, Signedness, describe_encodings, diff
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.lpbq import lpbq_encodings, scale_error
from deploykit.encodings.place import layouts
from deploykit.encodings.qdq import QDQ_VERSION, extract_qdq
from deploykit.encodings.read import read_given, read_placed
from deploykit.encodings.rules import RULES as ENCODING_RULES
from deploykit.encodings.rules import EncodingsOnGraph
from deploykit.encodings.values import Affine, EncodingSet, Lpbq
from deploykit.errors import InputError, PackageError, UsageError
from deploykit.findings import Finding, sort_findings
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import blaming, load_model
from deploykit.model.nodes import copy_of
from deploykit.model.weights import load_weights
from deploykit.records import Json, Published
from deploykit.system.files import unwritable
from deploykit.system.folders import workspace

__all__ = [
    "Applied",
    "Removed",
    "apply_encodings",
    "check_encodings",
    "convert_encodings",
    "data_of",
    "diff_encodings",
    "extract_encodings",
    "show_encodings",
]


def _facts_of(model: Path) -> GraphFacts:
    return collect_facts(load_model(model))


def _read(path: Path, model: Path | None) -> EncodingSet:
    return read_given(path) if model is None else read_placed(path, _facts_of(model))


def show_encodings(path: Path, *, model: Path | None, names: tuple[str, ...], arrays: bool) -> Json:
    """What ``describe_encodings`` says, of all tensors or of those named; UsageError for a name without entry."""
    encodings = _read(path, model)
    unknown = [name for name in names if name not in encodings]
    if unknown:
        raise UsageError(f"{path}: no entry for {unknown[0]!r}", next="'deploykit encodings show FILE' lists all")
    if names:
        encodings = replace(encodings, entries={name: encodings.entries[name] for name in names})
    return describe_encodings(encodings, arrays=arrays)


def check_encodings(path: Path, *, model: Path, float_tensors: Path | None) -> tuple[Finding, ...]:
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
    moved = [  # by how much of themselves; one weight is looked at after the other
        scale_error(old.scale, entry.value.scale)
        for name, entry in changed.entries.items()
        if isinstance(entry.value, Lpbq) and isinstance(old := encodings.entries[name].value, Affine)
    ]
    told = f"{len(moved)} weights in blocks became LPBQ; their scales move by up to {max(moved, default=0.0):.1%}"
    notes = (*done.notes, told)
    warnings = (*done.warnings, *(f"{name}: left as it is: {why}" for name, why in left.items()))
    return replace(done, notes=notes, warnings=warnings)


def diff_encodings(
    first: Path, second: Path, *, model: Path | None = None, tolerance: float = 0.0, grid_only: bool = False
) -> tuple[EntryDifference, ...]:
    """What differs between two files or QDQ models; the model, when given, gives both their axes and order.

    A QDQ model holds its scales in float32, so that a tolerance below 1.2e-7 is raised to that where one is compared.
    """
    sets = [_read(path, model) for path in (first, second)]
    if {encodings.version == QDQ_VERSION for encodings in sets} == {True, False}:
        tolerance = max(tolerance, 1.2e-7)
    return diff(*sets, tolerance=tolerance, grid_only=grid_only)


Bias = Literal["float", "encoded", "int32"]
_INLINE_LIMIT = 1_900_000_000


class Applied(Published):
    """A written QDQ model: the type of each quantized tensor, and the entries that were not written with the reason."""

    output: Path
    placed: Mapping[str, str]
    skipped: Mapping[str, str]


class Removed(Published):
    """What came out of a QDQ model: the float model, the encodings' text, and the nodes that could not be taken out."""

    WITHOUT = ("encodings",)

    output: Path | None
    encodings: str
    entries: int
    kept: Mapping[str, str]


def apply_encodings(
    model: Path, encodings: Path, output: Path, *, bias: Bias = "float", signed: bool = False, force: bool = False
) -> Applied:
    """Write ``model`` with the encodings of a file as QuantizeLinear and DequantizeLinear nodes.

    ``bias``: see ``insert_qdq``. ``signed`` keeps signed activation grids. Raises InputError for a model that has Q/DQ
    already and PackageError for an existing output.
    """
    _refuse_existing(output, force=force)
    with blaming(model):
        given = load_model(model)
        facts = collect_facts(given)
        if facts.is_qdq:
            raise InputError(f"{model}: holds Q/DQ nodes already", next="give the float model, or extract them first")
        placed = read_placed(encodings, facts)
        made = insert_qdq(copy_of(load_weights(given)), placed, bias=bias, unsigned_activations=not signed)
        _write(made.model, output)
        unknown = (name for name in placed.entries if name not in facts.tensors)
        skipped = {**made.skipped, **dict.fromkeys(unknown, "the model has no such tensor")}
        return Applied(output=output, placed=made.placed, skipped=skipped)


def extract_encodings(
    model: Path, output: Path | None = None, *, version: str = "2.0.0", force: bool = False
) -> Removed:
    """The encodings of a QDQ model as the text of a file; ``output`` takes the float model, when it is wanted."""
    if output is not None:
        _refuse_existing(output, force=force)
    with blaming(model):
        extracted = extract_qdq(copy_of(load_weights(load_model(model))), saturate=True)
        if not extracted.encodings.entries:
            raise InputError(f"{model}: holds no Q/DQ that could be taken out", why="; ".join(extracted.kept.values()))
        text = write_encodings(extracted.encodings, version)
        if output is not None:
            _write(extracted.model, output)
        return Removed(output=output, encodings=text, entries=len(extracted.encodings), kept=extracted.kept)


def data_of(output: Path) -> Path:
    """Where the large weights of a model go that is written to ``output``."""
    return output.with_name(f"{output.name}.data")


def _refuse_existing(output: Path, *, force: bool) -> None:
    for path in (output, data_of(output)):
        if os.path.lexists(path) and not force:
            raise PackageError(f"{path}: exists and was kept", next="name another file, or replace it with --force")


def _write(model: ModelProto, output: Path) -> None:
    """The file appears complete or not at all; large weights go beside it."""
    try:
        with workspace(output.resolve().parent, output.name) as folder:
            fresh = folder / output.name
            if model.ByteSize() > _INLINE_LIMIT:
                onnx.save(model, fresh, save_as_external_data=True, location=data_of(output).name)
                data_of(fresh).replace(data_of(output))
            else:
                fresh.write_bytes(model.SerializeToString(deterministic=True))
            fresh.replace(output)
    except OSError as error:
        raise unwritable(output, error) from None
