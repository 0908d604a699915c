"""Finds the smallest run of operators of a model that ends a compilation as the model as a whole does: dead, or never.

Trials are few and remembered; what is found is as small as the time allowed. It changes no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploykit.model.nodes import label
from deploykit_ort_qnn.excerpts import PAIR, Excerpts, anonymous
from deploykit_ort_qnn.trials import Trials

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["Culprit", "find_culprit"]

_FEW = 24
"""Runs of at most so many operators are tried without each single one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Operators that do it on their own: the model of them, and each one's label and type in graph order.

    ``whole`` is False where the time was over before fewer were tried.
    """

    model: ModelProto
    operators: tuple[tuple[str, str], ...]
    whole: bool

    def __str__(self) -> str:
        return ", ".join(f"{kind} {name}" for name, kind in self.operators)


def find_culprit(model: ModelProto, status: str, trials: Trials) -> Culprit | None:
    """The operators whose compilation alone has that status; None where no part of the model does it again."""
    excerpts = Excerpts(model)
    nodes = list(model.graph.node)
    operators = [index for index, node in enumerate(nodes) if node.op_type not in (*PAIR, "Constant")]

    def does(chosen: Sequence[int]) -> bool:
        excerpt = excerpts.cut(chosen) if chosen else None
        if excerpt is None:
            return False
        trials.progress(f"looking for what kills the compiler: {len(chosen)} of {len(operators)} operators")
        return trials.of(excerpt.model, anonymous(excerpt.model)).status == status

    if not does(operators):
        return None
    end = _least(1, len(operators), lambda size: does(operators[:size]))
    start = end - _least(1, end, lambda size: does(operators[end - size : end]))
    left = operators[start:end]
    for index in tuple(left) if len(left) <= _FEW else ():
        fewer = [other for other in left if other != index]
        left = fewer if does(fewer) else left
    found = excerpts.cut(left)
    assert found is not None
    named = tuple((label(nodes[index]), nodes[index].op_type) for index in left)
    return Culprit(model=found.model, operators=named, whole=not trials.is_over)


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The smallest size for which it holds, as far as it holds for all larger ones; ``high`` is known to."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return high
