"""Checks the ranks of Attention's operands: ONNX Runtime ends the process where a cache has none.

Ranks as ONNX defines them for Attention of operator set 23 and later; what is not known is not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.errors import InputError
from deploykit.model.ops import is_standard

if TYPE_CHECKING:
    from deploykit.model.facts import NodeFact, TensorFact

__all__ = ["check_attention"]

_RANKS = {"Q": (3, 4), "K": (3, 4), "V": (3, 4), "attn_mask": (0, 1, 2, 3, 4), "past_key": (4,), "past_value": (4,)}
_CACHE = (4, 5)
"""Positions of the cached keys and values: both are given, or none is."""


def check_attention(path: Path, nodes: Iterable[NodeFact], tensors: Mapping[str, TensorFact]) -> None:
    """InputError, naming the node, for an operand of a rank that Attention does not take, and for half a cache."""
    for node in nodes:
        if node.op_type != "Attention" or not is_standard(node):
            continue
        for operand, name in zip(_RANKS, node.inputs, strict=False):
            shape = tensors[name].shape if name in tensors else None
            if shape is not None and len(shape) not in _RANKS[operand]:
                raise InputError(
                    f"{path}: node {node.label!r}: {operand} {name!r} has rank {len(shape)}",
                    why=f"Attention takes rank {' or '.join(map(str, _RANKS[operand]))} there",
                    next="export the model again",
                )
        given = [at < len(node.inputs) and bool(node.inputs[at]) for at in _CACHE]
        if any(given) and not all(given):
            raise InputError(
                f"{path}: node {node.label!r} has cached keys or cached values, and not both",
                next="export the model again",
            )
