"""Writes the parts of models that share their weights as models of their own, external data streamed.

Where the cuts go is ``parting``'s decision; the folder appears as a whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from deploykit.encodings.cut import CutPart, cut_alike, large_weights
from deploykit.encodings.formats.aimet import write_encodings
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import EncodingSet
from deploykit.errors import PackageError, UsageError
from deploykit.model.collect import collect_facts
from deploykit.model.load import Model, load_model, wrap_proto
from deploykit.model.values import byte_size, is_external
from deploykit.model.weights import copy_bytes, point_outside
from deploykit.records import Published
from deploykit.system.files import unwritable
from deploykit.system.folders import scratch

__all__ = ["PartReport", "split_files"]


class PartReport(Published):
    """One part as it was written: its files, and the bytes of stored weights that it reads."""

    model: Path
    encodings: Path | None
    weight_bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def split_files(models: Sequence[Path], out: Path, *, parts: int, encodings: Path | None) -> tuple[PartReport, ...]:
    """Cut every model alike and write ``NAME_1.onnx``, …; external weights of a number lie in ``part_NUMBER.data``.

    ``encodings`` are for all models; each part gets its own file of them, of the same version. Raises UsageError for
    what cannot be cut, PackageError for a folder that exists, InputError for files that are none.
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
    """The parts of one number, of every model, over one data file; ``out`` is what the folder will be called."""
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
            if entries is not None:  # those of what the part has, in the version that they were given in
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
