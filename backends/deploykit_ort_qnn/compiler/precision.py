"""Compares the types that were meant with what the compiler was asked for and what it made of it; and keeps both.

Names: a tensor is stored under the output name of its QuantizeLinear, or the name of its integers; operations keep
the name of the node they came from. What is kept is plain JSON without times, addresses or paths, so that the same
inputs give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from deploykit.errors import InputError
from deploykit.tables.reading import read_json
from deploykit_ort_qnn.compiler.dlc import DLC, compare_dlc, read_dlc
from deploykit_ort_qnn.compiler.graphs import QnnGraph, QnnNode, QnnTensor, Schematic, SchematicOp
from deploykit_ort_qnn.planning import MODEL
from deploykit_ort_qnn.rules.compiled import DlcScope

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit_ort_qnn.compiler.jobs import CompileOutcome

__all__ = [
    "EVIDENCE",
    "FloatNode",
    "Narrowed",
    "PrecisionScope",
    "actual_types",
    "dlc_scope",
    "evidence_json",
    "float_nodes",
    "narrowed",
    "precision_scope",
    "read_evidence",
]

_BORDER = frozenset({"Quantize", "Dequantize", "Convert", "Cast"})
_ACTIVATION = {
    "QUInt8": "uint8",
    "QInt8": "int8",
    "QUInt16": "uint16",
    "QInt16": "int16",
    "Float16": "float16",
    "Float32": "float32",
}
_PREPARED = ("weight", "bias")
"""Operations whose kind has one of these words prepare constants: their types are not those of activations."""


@dataclass(frozen=True, kw_only=True)
class PrecisionScope:
    """One compiled model. ``stored`` maps a tensor to its name in the QDQ model, ``quantized`` are all such names
    (conversions that were asked for included). ``strict`` makes every change an error.
    """

    graphs: tuple[QnnGraph, ...]
    schematics: tuple[Schematic, ...]
    intended: Mapping[str, str]
    stored: Mapping[str, str]
    quantized: frozenset[str] = frozenset()
    strict: bool = False

    @cached_property
    def activation_types(self) -> Mapping[str, frozenset[str]]:
        """Per node, the types of activations in the optimized graph."""
        found: dict[str, set[str]] = {}
        for schematic in self.schematics:
            for op in schematic.after:
                name = schematic.names.get(op.origin)
                if name is None or not op.computes or any(word in op.kind for word in _PREPARED):
                    continue
                found.setdefault(name, set()).update(_types_of(op))
        return {name: frozenset(types) for name, types in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatNode:
    """A node that was asked for in float. ``wanted`` is the integer type meant for a tensor of it, "" if none was.

    ``made`` is what the compiler made of it (``float16``, ``float32``), "" when no schematic tells.
    """

    name: str
    type: str
    tensor: str
    wanted: str
    made: str
    block_weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """A tensor that loses bits on its way into a node, by a conversion nobody asked for."""

    node: str
    type: str
    tensor: str
    asked: str
    made: str


def actual_types(scope: PrecisionScope) -> dict[str, str]:
    """The type each tensor with an intention got in the compiled graph; a tensor that was fused away is left out.

    So is a tensor meant to be float where no schematic says which float the compiler chose.
    """
    found: dict[str, str] = {}
    made = {node.tensor: node.made for node in float_nodes(scope) if node.made}
    for graph in scope.graphs:
        for name, wanted in scope.intended.items():
            stored = scope.stored.get(name, "")
            tensor = next(
                (graph.tensors[n] for n in (stored, f"{stored}_transpose", name) if n and n in graph.tensors), None
            )
            # The graph's own inputs and outputs are float by agreement; what counts are the pairs beside them.
            if tensor is None or tensor.role in ("input", "output"):
                continue
            if tensor.is_float and wanted.startswith(("float", "bfloat")) and not scope.schematics:
                continue
            narrow = wanted.endswith("int4") and tensor.fixed and tensor.encoding not in ("per-tensor", "per-channel")
            kind = wanted if narrow else tensor.dtype
            found[name] = made.get(name, kind) if tensor.is_float else kind
    return found


def float_nodes(scope: PrecisionScope) -> Iterator[FloatNode]:
    """Nodes that compute in float, by what was asked; a graph wholly in float has them too."""
    made = _made(scope)
    for graph in scope.graphs:
        producers, consumers = graph.producers, graph.consumers
        for node in graph.nodes:
            if _computes_in_float(graph, node) and not _only_moves(graph, node, producers, consumers):
                yield _float_node(scope, graph, node, made.get(node.name, ""))


def _computes_in_float(graph: QnnGraph, node: QnnNode) -> bool:
    return node.type not in _BORDER and any(graph.tensors[name].is_float for name in node.outputs)


def _only_moves(
    graph: QnnGraph, node: QnnNode, producers: Mapping[str, QnnNode], consumers: Mapping[str, list[QnnNode]]
) -> bool:
    """True for a reshape beside a node that computes in float: it follows that one."""
    if node.type not in ("Reshape", "Transpose"):
        return False
    beside = [*(producers[name] for name in node.inputs[:1] if name in producers)]
    beside += [reader for name in node.outputs for reader in consumers.get(name, ())]
    return any(_computes_in_float(graph, other) for other in beside)


def _float_node(scope: PrecisionScope, graph: QnnGraph, node: QnnNode, made: str) -> FloatNode:
    tensor = _tensor_of(graph, node)
    wanted = scope.intended.get(tensor, "")
    return FloatNode(
        name=node.name,
        type=node.type,
        tensor=tensor,
        wanted="" if wanted.startswith(("float", "bfloat")) else wanted,
        made=made or ("float16" if graph.tensors[node.outputs[0]].dtype == "float16" else ""),
        block_weights=any(graph.tensors[name].encoding == "per-block" for name in node.inputs),
    )


def _tensor_of(graph: QnnGraph, node: QnnNode) -> str:
    """The node's output by the name it has in the model; inserted reshapes are looked through."""
    name = node.outputs[0]
    consumers = graph.consumers
    for _ in range(4):
        readers = consumers.get(name, [])
        if len(readers) == 1 and readers[0].type in ("Reshape", "Transpose", "Cast", "Convert"):
            name = readers[0].outputs[0]
    return name.removesuffix("_float")


def narrowed(scope: PrecisionScope) -> Iterator[Narrowed]:
    """Conversions from 16 to 8 bits that the provider put in by itself, and operations the compiler narrowed."""
    seen = set[str]()
    for graph in scope.graphs:
        consumers = graph.consumers
        for node in graph.nodes:
            if node.type not in ("Convert", "Cast") or node.outputs[0] in scope.quantized:
                continue
            before, after = graph.tensors[node.inputs[0]], graph.tensors[node.outputs[0]]
            if before.dtype in ("uint16", "int16") and after.dtype in ("uint8", "int8"):
                for reader in consumers.get(node.outputs[0], []):
                    seen.add(reader.name)
                    yield Narrowed(
                        node=reader.name, type=reader.type, tensor=node.inputs[0], asked=before.dtype, made=after.dtype
                    )
    yield from _narrowed_by_compiler(scope, seen)


def _narrowed_by_compiler(scope: PrecisionScope, seen: set[str]) -> Iterator[Narrowed]:
    types = scope.activation_types
    for graph in scope.graphs:
        for node in graph.nodes:
            data = [name for name in (*node.inputs, *node.outputs) if graph.tensors[name].role != "static"]
            asked = {graph.tensors[name].dtype for name in data}
            got = types.get(node.name, frozenset())
            if node.name not in seen and node.type not in _BORDER and asked and asked <= {"uint16", "int16"}:
                for kind in sorted(got & {"uint8", "int8", "float16", "float32"}):
                    yield Narrowed(
                        node=node.name,
                        type=node.type,
                        tensor=_tensor_of(graph, node),
                        asked="/".join(sorted(asked)),
                        made=kind,
                    )


def _types_of(op: SchematicOp) -> Iterator[str]:
    """Of an operation's outputs; what computes in float16 and writes float32 converts at the graph's border as well."""
    for dtype in op.dtypes:
        kind = _ACTIVATION.get(dtype, "")
        if kind:
            yield "float16" if kind == "float32" and "fp16" in op.kind else kind


def _made(scope: PrecisionScope) -> dict[str, str]:
    """Per node, the float type in the optimized graph; float16 wins, since borders are converted through float32."""
    found: dict[str, str] = {}
    for name, kinds in scope.activation_types.items():
        floats = kinds & {"float16", "float32"}
        if floats:
            found[name] = "float16" if "float16" in floats else "float32"
    return found


EVIDENCE = "artifacts/compiled_types.json"


def evidence_json(outcome: CompileOutcome) -> dict[str, Any]:
    """The JSON value of one compilation."""
    return {
        "schema": 1,
        "asked": [_graph_json(graph) for graph in outcome.graphs],
        "made": [_schematic_json(schematic) for schematic in outcome.schematics],
    }


def read_evidence(path: Path) -> tuple[tuple[QnnGraph, ...], tuple[Schematic, ...]]:
    """Graphs and schematics back from the file; raises InputError."""
    value = read_json(path)
    try:
        graphs = tuple(_graph(entry) for entry in value["asked"])
        return graphs, tuple(_schematic(entry) for entry in value["made"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not the evidence of a compilation", why=f"{type(error).__name__}: {error}") from None


def precision_scope(
    model: ModelProto,
    graphs: tuple[QnnGraph, ...],
    schematics: tuple[Schematic, ...],
    intended: Mapping[str, str],
    stored: Mapping[str, str],
    *,
    strict: bool,
) -> PrecisionScope:
    """What the precision rules look at; of the model only names are read."""
    quantized = {node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    return PrecisionScope(
        graphs=graphs,
        schematics=schematics,
        intended=intended,
        stored=stored,
        quantized=frozenset(quantized),
        strict=strict,
    )


def dlc_scope(package: Path) -> DlcScope:
    """The DLC of a package against its Q/DQ model; of a float model no types were meant. Raises InputError."""
    dlc = read_dlc(package / DLC)
    model = onnx.load(package / MODEL, load_external_data=False)
    return DlcScope(qairt=dlc.writer, metadata=dlc.metadata, compared=tuple(compare_dlc(model, dlc)))


def _graph_json(graph: QnnGraph) -> dict[str, Any]:
    return {
        "name": graph.name,
        "nodes": [[node.name, node.type, list(node.inputs), list(node.outputs)] for node in graph.nodes],
        "tensors": {
            name: [t.dtype, t.role, list(t.dims), t.encoding, t.scale, t.zero_point, t.fixed]
            for name, t in sorted(graph.tensors.items())
        },
    }


def _graph(value: Mapping[str, Any]) -> QnnGraph:
    tensors = {}
    for name, (dtype, role, dims, encoding, scale, zero, fixed) in value["tensors"].items():
        tensors[name] = QnnTensor(
            name=name,
            dtype=dtype,
            role=role,
            dims=tuple(dims),
            encoding=encoding,
            scale=scale,
            zero_point=zero,
            fixed=fixed,
        )
    nodes = tuple(
        QnnNode(name=name, type=kind, inputs=tuple(inputs), outputs=tuple(outputs))
        for name, kind, inputs, outputs in value["nodes"]
    )
    return QnnGraph(name=value["name"], nodes=nodes, tensors=tensors)


def _schematic_json(schematic: Schematic) -> dict[str, Any]:
    """Only operations that compute and belong to a named node: what the rules read."""
    ops = [
        [op.origin, op.kind, list(op.dtypes)] for op in schematic.after if op.computes and op.origin in schematic.names
    ]
    return {
        "graph": schematic.graph,
        "names": {str(number): name for number, name in sorted(schematic.names.items())},
        "operations": ops,
    }


def _schematic(value: Mapping[str, Any]) -> Schematic:
    after = tuple(
        SchematicOp(id=number, kind=kind, dtypes=tuple(dtypes)) for number, kind, dtypes in value["operations"]
    )
    names = {int(number): name for number, name in value["names"].items()}
    return Schematic(graph=value["graph"], after=after, names=names)
