"""Reads encodings from whatever holds them, an AIMET file or a QDQ model, and places them on the model they are for.

Each function here is what one subcommand of ``deploykit encodings`` does; printing and writing are left to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.encodings.conversion import Conversion, convert
from deploykit.encodings.differences import Difference, diff
from deploykit.encodings.float_tensors import read_float_tensors, with_float_tensors
from deploykit.encodings.qdq import QDQ_VERSION, read_qdq
from deploykit.encodings.reading import read_encodings
from deploykit.encodings.signedness import Signedness
from deploykit.encodings.summary import describe_encodings
from deploykit.encodings.values import EncodingSet
from deploykit.errors import UsageError
from deploykit.findings import Finding, sort_findings
from deploykit.graph.collect import collect_facts
from deploykit.graph.facts import GraphFacts
from deploykit.quantization.encodings_on_graph import EncodingsOnGraph
from deploykit.quantization.placement import layouts, place
from deploykit.quantization.rules import RULES as ENCODING_RULES

if TYPE_CHECKING:
    import numpy.typing as npt

    from deploykit.graph import Model

__all__ = [
    "EncodingSource",
    "check_encodings",
    "convert_encodings",
    "diff_encodings",
    "load_encodings",
    "show_encodings",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingSource:
    """Encodings and, where a model was given, the facts of the graph they are placed on."""

    encodings: EncodingSet
    facts: GraphFacts | None = None


def load_encodings(
    path: Path, *, model: Path | None = None, float_tensors: Path | None = None, infer_blocks: bool = False
) -> EncodingSource:
    """The encodings in an AIMET file or in a QDQ model (``.onnx``), placed on ``model`` where one is given.

    Raises InputError for files that cannot be read, or whose lists do not fit the model.
    """
    encodings = _read(path)
    if float_tensors is not None:
        encodings = with_float_tensors(encodings, read_float_tensors(float_tensors))
    if model is None:
        return EncodingSource(encodings=encodings)
    facts = collect_facts(_load_model(model))
    return EncodingSource(encodings=place(encodings, facts, infer_blocks=infer_blocks), facts=facts)


def _read(path: Path) -> EncodingSet:
    if path.suffix.lower() != ".onnx":
        return read_encodings(path)
    from deploykit.graph import weight

    model = _load_model(path)

    def read_tensor(name: str) -> npt.NDArray[Any]:
        return weight(model, name)

    return read_qdq(model.proto, source=str(path), read_tensor=read_tensor)


def _load_model(path: Path) -> Model:
    from deploykit.graph import load_model

    return load_model(path)


def show_encodings(
    path: Path, *, model: Path | None = None, names: tuple[str, ...] = (), arrays: bool = False
) -> dict[str, Any]:
    """What ``describe_encodings`` says, of all tensors or of those named; UsageError for a name without entry."""
    encodings = load_encodings(path, model=model).encodings
    unknown = [name for name in names if name not in encodings]
    if unknown:
        raise UsageError(f"{path}: no entry for {unknown[0]!r}", next="'deploykit encodings show FILE' lists all")
    if names:
        encodings = replace(encodings, entries={name: encodings.entries[name] for name in names})
    return describe_encodings(encodings, arrays=arrays)


def check_encodings(path: Path, *, model: Path, float_tensors: Path | None = None) -> tuple[Finding, ...]:
    """The findings of all rules about encodings on their model, most severe first."""
    source = load_encodings(path, model=model, float_tensors=float_tensors)
    assert source.facts is not None  # a model was given
    return sort_findings(ENCODING_RULES.run(EncodingsOnGraph(encodings=source.encodings, facts=source.facts)))


def convert_encodings(
    path: Path,
    to_version: str,
    *,
    model: Path | None = None,
    float_tensors: Path | None = None,
    signedness: Signedness = "as-is",
    infer_blocks: bool = False,
) -> Conversion:
    """The file's encodings as another version, with the outcome per tensor."""
    source = load_encodings(path, model=model, float_tensors=float_tensors, infer_blocks=infer_blocks)
    known = None if source.facts is None else layouts(source.facts)
    return convert(source.encodings, to_version, layouts=known, signedness=signedness)


def diff_encodings(
    first: Path, second: Path, *, model: Path | None = None, tolerance: float = 0.0, grid_only: bool = False
) -> tuple[Difference, ...]:
    """What differs between two files or QDQ models; the model, when given, gives both their axes and order.

    A QDQ model holds its scales in float32, so that a tolerance below 1.2e-7 is raised to that where one is compared.
    """
    sets = [load_encodings(path, model=model).encodings for path in (first, second)]
    if {encodings.version == QDQ_VERSION for encodings in sets} == {True, False}:
        tolerance = max(tolerance, 1.2e-7)
    return diff(*sets, tolerance=tolerance, grid_only=grid_only)
