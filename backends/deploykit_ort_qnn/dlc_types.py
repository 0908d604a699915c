"""Compares what a DLC holds with the Q/DQ model that it was made of: types and grids, tensor by tensor. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import numpy_helper

from deploykit.model.nodes import attribute
from deploykit.model.values import is_external
from deploykit_ort_qnn.dlc import Dlc, DlcTensor
from deploykit_qualcomm.qnn_types import same_grid

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

__all__ = ["Compared", "compare_dlc"]

_CLOSE = 1.6e-5
"""Relative difference of two steps that are one: a bias' is a product that is rounded in between, and a 16-bit Sigmoid
gets steps of 2^-16 for 1/65535 from the provider, which is one step at the end of its range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One tensor of the model that is in the DLC too; ``grid`` is False where the type is right and the grid is not."""

    tensor: str
    meant: str
    found: str
    grid: bool = True

    @property
    def ok(self) -> bool:
        """True where both are as meant."""
        return self.meant == self.found and self.grid


def compare_dlc(model: ModelProto, dlc: Dlc) -> Iterator[Compared]:
    """Every pair of the model whose quantized tensor, or stored weight, is in the DLC under its own name."""
    stored = {item.name: item for item in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        names = [node.input[0]] if node.op_type == "DequantizeLinear" else [node.output[0], _again(node.input[0])]
        name = next((name for name in names if name in dlc.tensors), "")
        meant = _meant(node, stored) if name and (len(names) > 1 or name in stored) else None
        if meant is None:
            continue
        found = dlc.tensors[name]
        kind, scales, zeros = meant
        same = same_grid(kind, found.dtype, static=name in stored)
        yield Compared(
            tensor=name,
            meant=kind,
            found=kind if same else found.dtype,
            grid=not same or _agrees(found, scales, _as_stored(zeros, kind, found.dtype)),
        )


def _again(tensor: str) -> str:
    """The name of a tensor that ONNX Runtime quantizes anew where it moves a pair."""
    return f"{tensor}_QuantizeLinear"


def _meant(node: NodeProto, stored: Mapping[str, TensorProto]) -> tuple[str, Any, Any] | None:
    """Type, scales and zero points of a pair with stored parameters; None for blocks and what is not in the file."""
    parameters = [stored.get(name) for name in node.input[1:3]]
    held = [item for item in parameters if item is not None and not is_external(item)]
    if len(held) < 2 or attribute(node, "block_size", 0):
        return None
    scale, zero = (numpy_helper.to_array(item) for item in held)
    return str(zero.dtype), scale.reshape(-1).astype(np.float64), zero.reshape(-1).astype(np.int64)


def _as_stored(zeros: Any, kind: str, found: str) -> Any:
    """Zero points on the other side of the sign, where the same grid is stored with the other signedness."""
    signed, other = kind.startswith("int"), found.startswith("int")
    half = 1 << (int("".join(c for c in kind if c.isdigit())) - 1)
    return zeros if signed == other else zeros + half if signed else zeros - half


def _agrees(found: DlcTensor, scales: Any, zeros: Any) -> bool:
    if len(found.scales) != len(scales) or len(found.zero_points) != len(zeros):
        return False
    close = np.allclose(np.asarray(found.scales), scales, rtol=_CLOSE, atol=0)
    return bool(close and (np.asarray(found.zero_points) == zeros).all())
