"""Parses the graph that the compiler was given (the provider's JSON) and the graph it made (the schematic).

The JSON prints scale and offset for every kind of encoding, but they are only valid for the
per-tensor kind. The schematic (``profiling_level=optrace``) is text with a binary tail, although
its name ends in .bin. Nothing is judged here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from deploykit.errors import InputError
from deploykit.findings.records import Json, Names, Record, Shape, grouped
from deploykit.system.files import unreadable
from deploykit.tables.reading import read_json
from deploykit_qualcomm.qnn_types import type_name

__all__ = ["QnnGraph", "QnnNode", "Schematic", "read_graph", "read_schematic"]

_ENCODINGS = {
    0: "per-tensor",
    1: "per-channel",
    2: "bit-width",
    3: "per-channel bit-width",
    5: "lpbq",
    11: "per-block",
}
_ROLES = {0: "input", 1: "output", 3: "native", 4: "static"}


class QnnTensor(msgspec.Struct, frozen=True, array_like=True):
    """One tensor: its type by an ONNX-like name, its role, and the kind of its encoding ("" if it has none).

    ``scale`` and ``zero_point`` are None unless the encoding is per tensor. ``fixed`` is True on an integer grid.
    """

    dtype: str
    role: str
    dims: Shape
    encoding: str = ""
    scale: float | None = None
    zero_point: int | None = None
    fixed: bool = False

    @property
    def is_float(self) -> bool:
        """True for a 16- or 32-bit float."""
        return self.dtype in ("float16", "float32")


class QnnNode(msgspec.Struct, frozen=True, array_like=True):
    """One node with the names of its tensors."""

    name: str
    type: str
    inputs: Names
    outputs: Names


class QnnGraph(Record, dict=True):
    """One graph as the compiler was given it."""

    name: str
    nodes: tuple[QnnNode, ...]
    tensors: dict[str, QnnTensor]

    @cached_property
    def producers(self) -> dict[str, QnnNode]:
        """The node that makes each tensor."""
        return {output: node for node in self.nodes for output in node.outputs}

    @cached_property
    def consumers(self) -> dict[str, list[QnnNode]]:
        """The nodes that read each tensor."""
        return grouped((name, node) for node in self.nodes for name in node.inputs)


def read_graph(path: Path) -> QnnGraph:
    """Parses one file. Raises InputError that names the bad entry."""
    return parse_graph(read_json(path), where=path.name, name=path.stem)


def parse_graph(value: Any, *, where: str, name: str) -> QnnGraph:
    """Parses the JSON value of one file. Raises InputError."""
    try:
        graph = value["graph"]
        tensors = {key: _tensor(tensor) for key, tensor in graph["tensors"].items()}
        nodes = tuple(
            QnnNode(key, str(node["type"]), tuple(node["input_names"]), tuple(node["output_names"]))
            for key, node in graph["nodes"].items()
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{where}: not a graph of a known form", why=f"{type(error).__name__}: {error}") from None
    return QnnGraph(name=name, nodes=nodes, tensors=tensors)


def _tensor(value: Json) -> QnnTensor:
    code, params = int(value["data_type"]), value.get("quant_params", {})
    fixed = code >> 8 in (3, 4)
    kind = _ENCODINGS.get(params.get("encoding", -1), "unknown") if fixed and params.get("definition") == 1 else ""
    grid = params.get("scale_offset", {}) if kind == "per-tensor" else {}
    return QnnTensor(
        dtype=type_name(code),
        role=_ROLES.get(int(value["type"]), "other"),
        dims=tuple(int(dim) for dim in value.get("dims", ())),
        encoding=kind,
        scale=float(grid["scale"]) if grid else None,
        zero_point=-int(grid["offset"]) if grid else None,
        fixed=fixed,
    )


_BEGIN, _END = ":::BEGIN:graph_after_optimization:::", ":::END:graph_after_optimization:::"
_OP = re.compile(r"^\t0x([0-9a-f]+): \{")
_KIND = re.compile(r"'operation':'([^']*)'")
_DTYPE = re.compile(r"'dtype': '([^']*)'")
_DIMS = re.compile(r"'dims': \[([^\]]*)\]")
_NAME = re.compile(r"^0x([0-9a-f]+): '(.*)',$")
_GRAPH = re.compile(r'^qnn_graph_name = "(.*)"')
# The low half of an optimized operation's number is the number of the QNN node it was made from.
_ORIGIN = 0xFFFFFFFF


class SchematicOp(msgspec.Struct, frozen=True, array_like=True):
    """One optimized operation; ``dtypes`` are the compiler's names of its outputs' types (``QUInt16``, ``Float16``)."""

    id: int
    kind: str
    dtypes: Names

    @property
    def origin(self) -> int:
        """The number of the QNN node that the operation was made from, 0 if there is none."""
        return self.id & _ORIGIN

    @property
    def computes(self) -> bool:
        """False for constants, shapes and the graph's own inputs and outputs, whole or in slices."""
        is_border = self.kind in ("q::Input", "q::Output") or "InputSlice" in self.kind
        return not (is_border or self.kind.startswith("$"))


class Schematic(Record, rename={"after": "operations"}):
    """One graph after the compiler's optimization, with the names of its QNN nodes by number."""

    graph: str
    names: dict[int, str]
    after: tuple[SchematicOp, ...]


def read_schematic(path: Path) -> Schematic:
    """Parses one file. Raises InputError if it holds no optimized graph."""
    try:
        with path.open("r", encoding="utf-8", errors="replace") as lines:
            return parse_schematic(lines, where=path.name)
    except OSError as error:
        raise unreadable(path, error) from None


def parse_schematic(lines: Iterable[str], *, where: str) -> Schematic:
    """Parses the lines of a schematic up to the graph's name, which follows the node names; the rest is not read."""
    after: tuple[SchematicOp, ...] | None = None
    names = dict[int, str]()
    source = iter(lines)
    for line in source:
        if _BEGIN in line:
            after = tuple(_ops(source))
        elif line.startswith("qnn_name_translations"):
            pairs = takewhile(bool, (_NAME.match(one.rstrip("\n")) for one in source))
            names = {int(pair.group(1), 16): pair.group(2) for pair in pairs if pair}
        elif (graph := _GRAPH.match(line)) is not None:
            if after is None:
                break
            return Schematic(graph=graph.group(1), after=after, names=names)
    raise InputError(f"{where}: not a compiler schematic of a known form", why="the optimized graph or its name lacks")


def _ops(lines: Iterator[str]) -> Iterator[SchematicOp]:
    number, kind, dtype, dtypes = -1, "", "", list[str]()
    for line in lines:
        begins = _OP.match(line)
        if begins or _END in line:
            if number >= 0:
                yield SchematicOp(id=number, kind=kind, dtypes=tuple(dtypes))
            if begins is None:
                return
            number, kind, dtype, dtypes = int(begins.group(1), 16), "", "", []
        elif found := _KIND.search(line):
            kind = found.group(1)
        elif found := _DTYPE.search(line):
            dtype = found.group(1)
        elif _DIMS.search(line):  # each output ends with its shape
            dtypes.append(dtype)
