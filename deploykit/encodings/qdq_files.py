"""Encodings into a model file as Q/DQ, and back out of one: the file side of ``insert_qdq`` and ``extract_qdq``.

It decides nothing about a device; what cannot be written is reported, never dropped in silence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import onnx
from onnx import ModelProto

from deploykit.encodings.extract_qdq import extract_qdq
from deploykit.encodings.formats.writing import write_encodings
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.placed_encodings import read_placed
from deploykit.errors import InputError, PackageError, UsageError
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.running import blaming
from deploykit.model.weights import load_weights
from deploykit.system.workspaces import workspace

if TYPE_CHECKING:
    from deploykit.model import Model

__all__ = ["Applied", "Removed", "apply_encodings", "data_of", "extract_encodings"]

Bias = Literal["float", "encoded", "int32"]
_INLINE_LIMIT = 1_900_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A written QDQ model: the type of each quantized tensor, and the entries that were not written with the reason."""

    output: Path
    placed: Mapping[str, str]
    skipped: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit encodings apply``."""
        return {"output": str(self.output), "placed": dict(self.placed), "skipped": dict(self.skipped)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What came out of a QDQ model: the float model, the encodings' text, and the nodes that could not be taken out."""

    output: Path | None
    encodings: str
    count: int
    kept: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit encodings extract``."""
        return {
            "output": None if self.output is None else str(self.output),
            "entries": self.count,
            "kept": dict(self.kept),
        }


def apply_encodings(
    model: Path, encodings: Path, output: Path, *, bias: Bias = "float", signed: bool = False, force: bool = False
) -> Applied:
    """Write ``model`` with the encodings of a file as QuantizeLinear and DequantizeLinear nodes.

    ``bias``: see ``insert_qdq``. ``signed`` keeps signed activation grids. Raises InputError for a model that has Q/DQ
    already and UsageError for an existing output.
    """
    _refuse_existing(output, force=force)
    with blaming(model):
        given = load_model(model)
        facts = collect_facts(given)
        if facts.is_qdq:
            raise InputError(f"{model}: holds Q/DQ nodes already", next="give the float model, or extract them first")
        placed = read_placed(encodings, facts)
        made = insert_qdq(_whole(given), placed, bias=bias, unsigned_activations=not signed)
        _write(made.model, output)
        skipped = {entry.tensor: entry.reason for entry in made.skipped}
        unknown = (name for name in placed.entries if name not in facts.tensors)
        skipped |= dict.fromkeys(unknown, "the model has no such tensor")
        return Applied(output=output, placed=made.placed, skipped=skipped)


def extract_encodings(
    model: Path, output: Path | None = None, *, version: str = "2.0.0", force: bool = False
) -> Removed:
    """The encodings of a QDQ model as the text of a file; ``output`` takes the float model, when it is wanted."""
    if output is not None:
        _refuse_existing(output, force=force)
    with blaming(model):
        extracted = extract_qdq(_whole(load_model(model)))
        if not extracted.encodings.entries:
            raise InputError(f"{model}: holds no Q/DQ that could be taken out", why="; ".join(extracted.kept.values()))
        text = write_encodings(extracted.encodings, version)
        if output is not None:
            _write(extracted.model, output)
        return Removed(output=output, encodings=text, count=len(extracted.encodings), kept=extracted.kept)


def _whole(given: Model) -> ModelProto:
    model = ModelProto()
    model.CopyFrom(load_weights(given))
    return model


def data_of(output: Path) -> Path:
    """Where the large weights of a model go that is written to ``output``."""
    return output.with_name(f"{output.name}.data")


def _refuse_existing(output: Path, *, force: bool) -> None:
    for path in (output, data_of(output)):
        if os.path.lexists(path) and not force:
            raise UsageError(f"{path}: exists already", next="choose another name, or use --force")


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
        raise PackageError(f"{output}: cannot be written", why=error.strerror or str(error)) from None
