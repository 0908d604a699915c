"""Parses the provider's JSON graph: what the compiler was asked for, before it optimizes.

The file prints scale and offset for every kind of encoding, but only for the per-tensor kind are they the real ones;
the others are left out here. Nothing is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from deploykit.errors import InputError
from deploykit.tables.reading import read_json

__all__ = ["QnnGraph", "QnnNode", "QnnTensor", "parse_graph", "read_graph"]

_TYPES = {
    0x008: "int8",
    0x016: "int16",
    0x032: "int32",
    0x064: "int64",
    0x108: "uint8",
    0x116: "uint16",
    0x132: "uint32",
    0x216: "float16",
    0x232: "float32",
    0x308: "int8",
    0x316: "int16",
    0x332: "int32",
    0x408: "uint8",
    0x416: "uint16",
    0x432: "uint32",
    0x508: "bool",
}
_ENCODINGS = {
    0: "per-tensor",
    1: "per-channel",
    2: "bit-width",
    3: "per-channel bit-width",
    5: "lpbq",
    11: "per-block",
}
_ROLES = {0: "input", 1: "output", 3: "native", 4: "static"}


@dataclass(frozen=True, slots=True, kw_only=True)
class QnnTensor:
    """One tensor: its type by ONNX-like name, its role, and its encoding's kind ("" when it has none).

    ``scale`` and ``zero_point`` are None unless the encoding is per tensor. ``fixed`` is True on an integer grid.
    """

    name: str
    dtype: str
    role: str
    dims: tuple[int, ...]
    encoding: str = ""
    scale: float | None = None
    zero_point: int | None = None
    fixed: bool = False

    @property
    def is_float(self) -> bool:
        """True for a 16- or 32-bit float."""
        return self.dtype in ("float16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class QnnNode:
    """One node with the names of its tensors."""

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class QnnGraph:
    """One graph as it was given to the compiler."""

    name: str
    nodes: tuple[QnnNode, ...]
    tensors: Mapping[str, QnnTensor]

    @cached_property
    def producers(self) -> dict[str, QnnNode]:
        """The node that makes each tensor."""
        return {output: node for node in self.nodes for output in node.outputs}

    @cached_property
    def consumers(self) -> dict[str, list[QnnNode]]:
        """The nodes that read each tensor."""
        found: dict[str, list[QnnNode]] = {}
        for node in self.nodes:
            for name in node.inputs:
                found.setdefault(name, []).append(node)
        return found


def read_graph(path: Path) -> QnnGraph:
    """Parse one file; raises InputError that names the bad entry."""
    return parse_graph(read_json(path), where=path.name, name=path.stem)


def parse_graph(value: Any, *, where: str, name: str) -> QnnGraph:
    """Parse the JSON value of one file."""
    try:
        graph = value["graph"]
        tensors = {key: _tensor(key, tensor) for key, tensor in graph["tensors"].items()}
        nodes = tuple(
            QnnNode(
                name=key,
                type=str(node["type"]),
                inputs=tuple(node["input_names"]),
                outputs=tuple(node["output_names"]),
            )
            for key, node in graph["nodes"].items()
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{where}: not a graph of a known form", why=f"{type(error).__name__}: {error}") from None
    return QnnGraph(name=name, nodes=nodes, tensors=tensors)


def _tensor(name: str, value: Mapping[str, Any]) -> QnnTensor:
    code, params = int(value["data_type"]), value.get("quant_params", {})
    fixed = code >> 8 in (3, 4)
    kind = _ENCODINGS.get(params.get("encoding", -1), "unknown") if fixed and params.get("definition") == 1 else ""
    grid = params.get("scale_offset", {}) if kind == "per-tensor" else {}
    return QnnTensor(
        name=name,
        dtype=_TYPES.get(code, f"{code:#x}"),
        role=_ROLES.get(int(value["type"]), "other"),
        dims=tuple(int(dim) for dim in value.get("dims", ())),
        encoding=kind,
        scale=float(grid["scale"]) if grid else None,
        zero_point=-int(grid["offset"]) if grid else None,
        fixed=fixed,
    )
