"""The one way from files to encodings on a graph: an AIMET file or a QDQ model, the list of float tensors, the graph.

Whoever takes a path to encodings calls it, so that every command refuses the same things. It writes no files.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.encodings.formats.float_tensors import read_float_tensors, with_float_tensors
from deploykit.encodings.formats.reading import read_encodings
from deploykit.encodings.placement import place
from deploykit.encodings.qdq import QDQ_VERSION, read_qdq
from deploykit.encodings.values import EncodingSet
from deploykit.errors import InputError
from deploykit.model import load_model, weight
from deploykit.model.facts import GraphFacts

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["read_given", "read_placed"]


def read_given(path: Path, *, float_tensors: Path | None = None) -> EncodingSet:
    """The encodings in an AIMET file or a QDQ model (``.onnx``), and the names in the list of float tensors.

    Raises InputError for files that cannot be read, and where the list names a tensor that has an integer entry.
    """
    encodings = _read_qdq(path) if path.suffix.lower() == ".onnx" else read_encodings(path)
    return encodings if float_tensors is None else with_float_tensors(encodings, read_float_tensors(float_tensors))


def read_placed(
    path: Path, facts: GraphFacts, *, float_tensors: Path | None = None, infer_blocks: bool = False
) -> EncodingSet:
    """What ``read_given`` reads, placed on a graph; ``infer_blocks``: see ``place``.

    Raises InputError as ``read_given`` does, where a list of scales does not fit its tensor, and for a float model in
    place of a QDQ model: it would make everything float without a word.
    """
    given = read_given(path, float_tensors=float_tensors)
    if given.version == QDQ_VERSION and not given.entries:
        raise InputError(
            f"{path}: a model without QuantizeLinear and DequantizeLinear nodes",
            why="it says of no tensor how it is quantized",
            next="give an encodings file, or the quantized model",
        )
    return place(given, facts, infer_blocks=infer_blocks)


def _read_qdq(path: Path) -> EncodingSet:
    model = load_model(path)

    def read_tensor(name: str) -> npt.NDArray[Any]:
        return weight(model, name)

    return read_qdq(model.proto, source=str(path), read_tensor=read_tensor)
