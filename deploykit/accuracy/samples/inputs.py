"""The inputs of a model (names, types, shapes) and labels for how much their values mean; it holds no values."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from deploykit.errors import InputError
from deploykit.findings.records import Record, Shape, replace
from deploykit.model.facts import GraphFacts

if TYPE_CHECKING:
    import numpy as np

__all__ = ["InputSpec", "Label", "evenly_chosen", "input_specs"]

_NUMPY_NAMES = {"float": "float32", "double": "float32"}  # no device is fed doubles


class InputSpec(Record):
    """One input of the model: its NumPy type, and its shape with None where a dimension is not a number.

    ``given`` is the shape that it had before it was turned to channels last; its samples may still have it.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    given: tuple[int | None, ...] = ()

    def fits(self, shape: Shape) -> bool:
        """True when an array of this shape can be fed."""
        return len(shape) == len(self.shape) and all(w in (None, s) for w, s in zip(self.shape, shape, strict=True))

    @property
    def as_given(self) -> InputSpec:
        """The input in the layout that it had before it was turned."""
        return replace(self, shape=self.given, given=())

    @property
    def made_shape(self) -> Shape:
        """The shape of arrays that are made for this input: unknown dimensions are 1."""
        return tuple(1 if dim is None else dim for dim in self.shape)

    @property
    def is_float(self) -> bool:
        """True for floating-point inputs of every width."""
        return "float" in self.dtype

    @property
    def numpy_type(self) -> np.dtype[Any]:
        """The type as NumPy has it, with ONNX's extensions (``bfloat16``, ``int4`` …); InputError for text."""
        from deploykit.model.weights import numpy_type

        found = numpy_type(self.dtype)
        if found.kind in "OUS":
            raise InputError(f"no device takes text: {self.name!r}", next="cut the model where text has become numbers")
        return found

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


def input_specs(facts: GraphFacts) -> tuple[InputSpec, ...]:
    """The inputs of a graph; raises InputError for one whose rank is not known."""
    found = []
    for name in facts.inputs:
        fact = facts.tensors[name]
        if fact.shape is None:
            raise InputError(f"input {name!r} has no known rank", next="fix the model's input shapes")
        shape = tuple(dim if isinstance(dim, int) else None for dim in fact.shape)
        given = tuple(shape[axis] for axis in (0, 3, 1, 2)) if name in facts.channel_last else ()
        found.append(InputSpec(name=name, dtype=_NUMPY_NAMES.get(fact.dtype, fact.dtype), shape=shape, given=given))
    return tuple(found)


def evenly_chosen(count: int, most: int) -> tuple[int, ...]:
    """``most`` of ``count`` positions, evenly spaced, the first and the last among them; all where there are fewer."""
    if count <= most:
        return tuple(range(count))
    return tuple(round(step * (count - 1) / (most - 1)) for step in range(most)) if most > 1 else (0,)


class Label(StrEnum):
    """Where inputs come from, the strongest first."""

    GIVEN = "given"
    """Calibration data of the user."""
    RECORDED = "recorded"
    """Samples that were given or declared once and are kept in the package."""
    DECLARED = "declared"
    """Values that the user stated for an input (``--input``)."""
    DERIVED = "derived"
    """Points of the input's own encoding, or of the domain that the graph states."""
    ARBITRARY = "arbitrary"
    """Anything else: good for running a graph, but no basis for a verdict."""
