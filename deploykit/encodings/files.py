"""The work of the subcommands of ``deploykit encodings`` on files; writes the parts of cut models, data streamed.

Printing is left to the commands. What cannot be written is reported, never dropped in silence. The folder of parts
appears as a whole or not at all; ``cut`` decides where the cuts go.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import onnx
from onnx import ModelProto

from deploykit.encodings.cut import CutPart, cut_alike, large_weights
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
from deploykit.findings import Findings, sort_findings
from deploykit.findings.records import Json, Names, Published, replace
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import Model, blaming, load_model, wrap_proto
from deploykit.model.nodes import copy_of
from deploykit.model.values import byte_size, is_external
from deploykit.model.weights import copy_bytes, load_weights, point_outside
from deploykit.system.files import unwritable
from deploykit.system.folders import scratch, workspace

__all__ = [
    "PartReport",
    "apply_encodings",
    "check_encodings",
    "convert_encodings",
    "data_of",
    "diff_encodings",
    "extract_encodings",
    "show_encodings",
    "split_files",
]


def _facts_of(model: Path) -> GraphFacts:
    return collect_facts(load_model(model))


def _read(path: Path, model: Path | None) -> EncodingSet:
    return read_given(path) if model is None else read_placed(path, _facts_of(model))


def show_encodings(path: Path, *, model: Path | None, names: Names, arrays: bool) -> Json:
    """The description of a file's encodings, of all tensors or of those named; UsageError for a name without entry."""
    encodings = _read(path, model)
    unknown = [name for name in names if name not in encodings]
    if unknown:
        raise UsageError(f"{path}: no entry for {unknown[0]!r}", next="'deploykit encodings show FILE' lists all")
    if names:
        encodings = replace(encodings, entries={name: encodings.entries[name] for name in names})
    return describe_encodings(encodings, arrays=arrays)


def check_encodings(path: Path, *, model: Path, float_tensors: Path | None) -> Findings:
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
    moved = [  # the largest relative change of a scale, per weight
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


def extract_encodings(model: Path, output: Path | None, *, version: str = "2.0.0", force: bool = False) -> Removed:
    """The encodings of a QDQ model as the text of a file.

    The float model is written to ``output`` where that is given.
    """
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
    """The file for the large weights of a model that is written to ``output``."""
    return output.with_name(f"{output.name}.data")


def _refuse_existing(output: Path, *, force: bool) -> None:
    for path in (output, data_of(output)):
        if os.path.lexists(path) and not force:
            raise PackageError(f"{path}: exists and was kept", next="name another file, or replace it with --force")


def _write(model: ModelProto, output: Path) -> None:
    """Write a model so that the file appears complete or not at all; large weights go beside it."""
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


class PartReport(Published):
    """One part as it was written: its files, and the bytes of stored weights that it reads."""

    model: Path
    encodings: Path | None
    weight_bytes: int
    inputs: Names
    outputs: Names


def split_files(models: Sequence[Path], out: Path, *, parts: int, encodings: Path | None) -> tuple[PartReport, ...]:
    """Cut every model alike and write ``NAME_1.onnx``, …; part NUMBER has its external weights in ``part_NUMBER.data``.

    ``encodings`` are for all models; each part gets its own file of them, of the same version. Raises UsageError for
    what cannot be cut, PackageError for a folder that exists, InputError for files that are no models.
    """
    if os.path.lexists(out):
        raise PackageError(f"{out}: exists and was kept", next="name another folder")
    if not out.absolute().parent.is_dir():
        raise PackageError(f"{out.parent}: no such folder", next="create the folder first, or name another one")
    read = [load_model(path) for path in models]
    names = [path.stem for path in models]
    if len(set(names)) < len(names):
        raise UsageError(f"two models are called {names[0]}", next="rename one of the files")
    given = [None if encodings is None else read_placed(encodings, collect_facts(model)) for model in read]
    sizes = {name: byte_size(model.stored[name], name) for model in read for name in large_weights(model.proto)}
    cut = cut_alike([model.proto for model in read], parts, sizes)
    with scratch(out.absolute().parent) as room:
        folder = room / out.name
        folder.mkdir()
        try:
            rows = enumerate(zip(*cut, strict=True), 1)
            made = [report for number, row in rows for report in _written(read, row, number, folder, given, out)]
            folder.rename(out)
        except OSError as error:
            raise unwritable(out, error) from None
    return tuple(made)


def _written(
    models: Sequence[Model],
    parts: Sequence[CutPart],
    number: int,
    folder: Path,
    encodings: Sequence[EncodingSet | None],
    out: Path,
) -> list[PartReport]:
    """Write one part of every model, with one data file for all; ``out`` is the later name of ``folder``."""
    data, places = folder / f"part_{number}.data", dict[tuple[Path, int], int]()
    reports = []
    with data.open("wb") as sink:
        for model, part, entries in zip(models, parts, encodings, strict=True):
            # Point a part's external tensors into the new file, and copy there what is not in it yet.
            claims = {claim.tensor: (file.path, claim) for file in model.external for claim in file.claims}
            for tensor in part.model.graph.initializer:
                if not is_external(tensor):
                    continue
                path, claim = claims[tensor.name]
                if (path, claim.offset) not in places:
                    places[path, claim.offset] = sink.tell()
                    copy_bytes(path, claim.offset, claim.length, sink)
                point_outside(tensor, data.name, places[path, claim.offset], claim.length)
            sink.flush()  # the entries are chosen with a look at the part, whose weights must be there
            path = folder / f"{model.path.stem}_{number}.onnx"
            path.write_bytes(part.model.SerializeToString(deterministic=True))
            beside = None
            if entries is not None:  # the entries of the part's tensors, in the version that was given
                beside = path.with_suffix(".encodings")
                tensors = collect_facts(wrap_proto(part.model, path=path)).tensors
                beside.write_text(write_encodings(entries.only(tensors.keys()), entries.version), "utf-8")
            reports.append(
                PartReport(
                    model=out / path.name,
                    encodings=None if beside is None else out / beside.name,
                    weight_bytes=sum(byte_size(model.stored[name], name) for name in part.weights),
                    inputs=part.inputs,
                    outputs=part.outputs,
                )
            )
    if not data.stat().st_size:
        data.unlink()
    return reports
