"""Parses the compiler's schematic, the text that tells which type every operation got after optimization.

The provider writes it (``profiling_level=optrace``) as ``<graph>_schematic.bin``; despite the name it is text, with a
binary tail. Only what is needed is read, line by line; nothing is evaluated and nothing is judged here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploykit.errors import InputError

__all__ = ["Schematic", "SchematicOp", "SchematicOutput", "parse_schematic", "read_schematic"]

_BEGIN = re.compile(r":::BEGIN:(graph_before_optimization|graph_after_optimization):::")
_OP = re.compile(r"^\t0x([0-9a-f]+): \{")
_KIND = re.compile(r"'operation':'([^']*)'")
_INPUT = re.compile(r"^\t\t\t\(0x([0-9a-f]+),\d+\)")
_DTYPE = re.compile(r"'dtype': '([^']*)'")
_GRID = re.compile(r"'zero_offset': (-?\d+), 'stepsize': ([^,\s]+)")
_DIMS = re.compile(r"'dims': \[([^\]]*)\]")
_NAME = re.compile(r"^0x([0-9a-f]+): '(.*)',$")
_GRAPH = re.compile(r'^qnn_graph_name = "(.*)"')
_ORIGIN = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class SchematicOutput:
    """One output of an operation: the compiler's type name (``QUInt16``, ``Float16`` …), grid and shape."""

    dtype: str
    dims: tuple[int, ...]
    zero_point: int
    step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SchematicOp:
    """One operation; ``origin`` is the number of the QNN node it was made from (0 when it has none)."""

    id: int
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[SchematicOutput, ...]

    @property
    def origin(self) -> int:
        """The QNN node's number: optimized operations keep it in the low half of their own."""
        return self.id & _ORIGIN

    @property
    def computes(self) -> bool:
        """False for constants, shapes and the graph's own inputs and outputs."""
        return not self.kind.startswith("$") and self.kind not in ("q::Input", "q::Output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schematic:
    """One graph before and after the compiler's optimization, with the names of the QNN nodes by number."""

    graph: str
    before: tuple[SchematicOp, ...]
    after: tuple[SchematicOp, ...]
    names: Mapping[int, str]

    def types(self) -> dict[str, Counter[str]]:
        """Per QNN node, how many optimized operations give which type; tiles may count for the node they feed."""
        found: dict[str, Counter[str]] = {}
        for op in self.after:
            name = self.names.get(op.origin)
            if name is None or not op.computes:
                continue
            found.setdefault(name, Counter()).update(output.dtype for output in op.outputs)
        return found

    def totals(self) -> Counter[str]:
        """How many outputs of optimized operations have which type."""
        return Counter(output.dtype for op in self.after if op.computes for output in op.outputs)


def read_schematic(path: Path) -> Schematic:
    """Parse one file; raises InputError when it holds no optimized graph."""
    try:
        with path.open("r", encoding="utf-8", errors="replace") as lines:
            return parse_schematic(lines, where=path.name)
    except OSError as error:
        raise InputError(f"{path}: cannot be read", why=error.strerror or str(error)) from None


def parse_schematic(lines: Iterable[str], *, where: str) -> Schematic:
    """Parse the lines of a schematic up to the names; what follows them is not read."""
    graphs: dict[str, tuple[SchematicOp, ...]] = {}
    names: dict[int, str] = {}
    source = iter(lines)
    for line in source:
        begin = _BEGIN.search(line)
        if begin:
            graphs[begin.group(1)] = tuple(_ops(source, f":::END:{begin.group(1)}"))
        elif line.startswith("qnn_name_translations"):
            names = dict(_names(source))
        elif found := _GRAPH.match(line):
            if "graph_after_optimization" not in graphs:
                break
            return Schematic(
                graph=found.group(1),
                before=graphs.get("graph_before_optimization", ()),
                after=graphs["graph_after_optimization"],
                names=names,
            )
    raise InputError(f"{where}: not a compiler schematic of a known form", why="the optimized graph or its name lacks")


def _ops(lines: Iterator[str], end: str) -> Iterator[SchematicOp]:
    number, body = None, list[str]()
    for line in lines:
        found = _OP.match(line)
        if found or end in line:
            if number is not None:
                yield _op(number, body)
            if found is None:
                return
            number, body = int(found.group(1), 16), []
        else:
            body.append(line)


def _op(number: int, body: list[str]) -> SchematicOp:
    kind, inputs, outputs = "", list[int](), list[SchematicOutput]()
    dtype, zero, step = "", 0, 1.0
    for line in body:
        if found := _KIND.search(line):
            kind = found.group(1)
        elif found := _INPUT.match(line):
            inputs.append(int(found.group(1), 16))
        elif found := _DTYPE.search(line):
            dtype = found.group(1)
        elif found := _GRID.search(line):
            zero, step = int(found.group(1)), _number(found.group(2))
        elif found := _DIMS.search(line):
            dims = tuple(int(dim) for dim in found.group(1).split(",") if dim.strip())
            outputs.append(SchematicOutput(dtype=dtype, dims=dims, zero_point=zero, step=step))
    return SchematicOp(id=number, kind=kind, inputs=tuple(inputs), outputs=tuple(outputs))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _names(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    for line in lines:
        found = _NAME.match(line.rstrip("\n"))
        if found is None:
            return
        yield int(found.group(1), 16), found.group(2)
