"""Compares the intended types with those the compiler was asked for and those it made, and keeps the evidence.

Names: a tensor is stored under the output name of its QuantizeLinear, or the name of its integers;
operations keep the name of the node they came from. The evidence is plain JSON without times, addresses or
paths, so that the same inputs give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import onnx

from deploykit.errors import InputError
from deploykit.findings.records import Json, Record, replace
from deploykit.tables.reading import read_json
from deploykit_ort_qnn.compiler.dlc import DLC, compare_dlc, read_dlc
from deploykit_ort_qnn.compiler.graphs import QnnGraph, QnnNode, Schematic
from deploykit_ort_qnn.planning import MODEL
from deploykit_ort_qnn.rules.compiled import DlcScope

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit_ort_qnn.compiler.jobs import CompileOutcome
    from deploykit_ort_qnn.provider_model import ProviderModel

__all__ = [
    "EVIDENCE",
    "FloatNode",
    "PrecisionScope",
    "actual_types",
    "dlc_scope",
    "evidence_json",
    "float_nodes",
    "narrowed",
    "precision_scope",
    "quantized_tensors",
    "read_evidence",
]

_BORDER = frozenset({"Quantize", "Dequantize", "Convert", "Cast"})
_WIDE, _NARROW = frozenset({"uint16", "int16"}), frozenset({"uint8", "int8"})
_ACTIVATION = {
    "QUInt8": "uint8",
    "QInt8": "int8",
    "QUInt16": "uint16",
    "QInt16": "int16",
    "Float16": "float16",
    "Float32": "float32",
}
_PREPARED = ("weight", "bias")
"""Operations with one of these words in their kind prepare constants: their types are not those of activations."""


class PrecisionScope(Record, dict=True):
    """One compiled model. ``stored`` maps a tensor to its name in the QDQ model, ``quantized`` holds all such names
    (including conversions that were asked for). ``strict`` makes every change an error.
    """

    graphs: tuple[QnnGraph, ...]
    schematics: tuple[Schematic, ...]
    intended: Mapping[str, str] = {}
    stored: Mapping[str, str] = {}
    quantized: frozenset[str] = frozenset()
    strict: bool = False

    @cached_property
    def activation_types(self) -> Mapping[str, frozenset[str]]:
        """The types of each node's activations in the optimized graph."""
        found = dict[str, set[str]]()
        for schematic in self.schematics:
            for op in schematic.after:
                name = schematic.names.get(op.origin)
                if name is None or not op.computes or any(word in op.kind for word in _PREPARED):
                    continue
                kinds = {_ACTIVATION[dtype] for dtype in op.dtypes if dtype in _ACTIVATION}
                if "fp16" in op.kind and "float32" in kinds:
                    # An operation that computes in float16 and writes float32 also converts at the graph's border.
                    kinds = kinds - {"float32"} | {"float16"}
                found.setdefault(name, set()).update(kinds)
        return {name: frozenset(types) for name, types in found.items()}


class FloatNode(Record):
    """A node that was asked for in float. ``wanted`` is the integer type intended for its output, "" if there is none.

    ``made`` is the float type the compiler chose (``float16``, ``float32``), "" if no schematic tells.
    """

    name: str
    type: str
    tensor: str
    wanted: str
    made: str
    block_weights: bool


class Narrowed(Record):
    """A tensor that loses bits on its way into a node, by a conversion that was not asked for."""

    node: str
    type: str
    tensor: str
    asked: str
    made: str


def actual_types(scope: PrecisionScope) -> dict[str, str]:
    """The type in the compiled graph of each tensor with an intended type; a tensor that was fused away is left out.

    A tensor intended as float is left out too, if no schematic says which float type the compiler chose.
    """
    found = dict[str, str]()
    made = {node.tensor: node.made for node in float_nodes(scope) if node.made}
    for graph in scope.graphs:
        for name, wanted in scope.intended.items():
            stored = scope.stored.get(name, "")
            tensor = next(
                (graph.tensors[n] for n in (stored, f"{stored}_transpose", name) if n and n in graph.tensors), None
            )
            # The graph's own inputs and outputs are always float; the pairs beside them count.
            if tensor is None or tensor.role in ("input", "output"):
                continue
            if tensor.is_float and wanted.startswith(("float", "bfloat")) and not scope.schematics:
                continue
            narrow = wanted.endswith("int4") and tensor.fixed and tensor.encoding not in ("per-tensor", "per-channel")
            kind = wanted if narrow else tensor.dtype
            found[name] = made.get(name, kind) if tensor.is_float else kind
    return found


def float_nodes(scope: PrecisionScope) -> Iterator[FloatNode]:
    """Yields the nodes that compute in float, by the graph given to the compiler; a float graph has them too."""
    for graph in scope.graphs:

        def in_float(node: QnnNode, graph: QnnGraph = graph) -> bool:
            return node.type not in _BORDER and any(graph.tensors[name].is_float for name in node.outputs)

        for node in filter(in_float, graph.nodes):
            if node.type in ("Reshape", "Transpose"):
                # Next to a node that computes in float, a move follows that node's type.
                beside = [graph.producers[name] for name in node.inputs[:1] if name in graph.producers]
                beside += [reader for name in node.outputs for reader in graph.consumers.get(name, ())]
                if any(map(in_float, beside)):
                    continue
            tensor = _tensor_of(graph, node)
            wanted = scope.intended.get(tensor, "")
            kinds = scope.activation_types.get(node.name, frozenset())
            # float16 wins, since borders are converted through float32.
            made = next((kind for kind in ("float16", "float32") if kind in kinds), "")
            asked = graph.tensors[node.outputs[0]].dtype
            yield FloatNode(
                name=node.name,
                type=node.type,
                tensor=tensor,
                wanted="" if wanted.startswith(("float", "bfloat")) else wanted,
                made=made or ("float16" if asked == "float16" else ""),
                block_weights=any(graph.tensors[name].encoding == "per-block" for name in node.inputs),
            )


def _tensor_of(graph: QnnGraph, node: QnnNode) -> str:
    """The node's output by its name in the model; inserted reshapes are skipped."""
    name = node.outputs[0]
    consumers = graph.consumers
    for _ in range(4):
        readers = consumers.get(name, [])
        if len(readers) == 1 and readers[0].type in ("Reshape", "Transpose", "Cast", "Convert"):
            name = readers[0].outputs[0]
    return name.removesuffix("_float")


def narrowed(scope: PrecisionScope) -> Iterator[Narrowed]:
    """Yields conversions from 16 to 8 bits that the provider inserted, and operations that the compiler narrowed."""
    seen = set[str]()
    for graph in scope.graphs:
        for node in graph.nodes:
            if node.type not in ("Convert", "Cast") or node.outputs[0] in scope.quantized:
                continue
            asked, made = graph.tensors[node.inputs[0]].dtype, graph.tensors[node.outputs[0]].dtype
            for reader in graph.consumers.get(node.outputs[0], ()) if asked in _WIDE and made in _NARROW else ():
                seen.add(reader.name)
                yield Narrowed(node=reader.name, type=reader.type, tensor=node.inputs[0], asked=asked, made=made)
    for graph in scope.graphs:
        for node in graph.nodes:
            tensors = (graph.tensors[name] for name in (*node.inputs, *node.outputs))
            kinds = {tensor.dtype for tensor in tensors if tensor.role != "static"}
            if node.name in seen or node.type in _BORDER or not kinds or not kinds <= _WIDE:
                continue
            got = scope.activation_types.get(node.name, frozenset())
            for kind in sorted(got & (_NARROW | {"float16", "float32"})):
                yield Narrowed(
                    node=node.name,
                    type=node.type,
                    tensor=_tensor_of(graph, node),
                    asked="/".join(sorted(kinds)),
                    made=kind,
                )


EVIDENCE = "artifacts/compiled_types.json"


def evidence_json(outcome: CompileOutcome) -> Json:
    """The JSON value of one compilation."""
    asked = [replace(graph, tensors=dict(sorted(graph.tensors.items()))) for graph in outcome.graphs]
    made = []
    for schematic in outcome.schematics:
        # Only operations that compute and belong to a named node, which the rules read.
        named = [op for op in schematic.after if op.computes and op.origin in schematic.names]
        after = tuple(replace(op, id=op.origin) for op in named)
        made.append(replace(schematic, names=dict(sorted(schematic.names.items())), after=after))
    value: Json = msgspec.to_builtins({"schema": 1, "asked": asked, "made": made}, str_keys=True)
    return value


def read_evidence(path: Path) -> tuple[tuple[QnnGraph, ...], tuple[Schematic, ...]]:
    """Reads the graphs and schematics of a compilation back. Raises InputError."""
    value = read_json(path)
    try:
        graphs = msgspec.convert(value["asked"], tuple[QnnGraph, ...])
        return graphs, msgspec.convert(value["made"], tuple[Schematic, ...], str_keys=True)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not the evidence of a compilation", why=f"{type(error).__name__}: {error}") from None


def precision_scope(
    graphs: tuple[QnnGraph, ...],
    schematics: tuple[Schematic, ...],
    prepared: ProviderModel | None,
    *,
    strict: bool = False,
) -> PrecisionScope:
    """The data that the precision rules look at; a float model has no intended types."""
    scope = PrecisionScope(graphs=graphs, schematics=schematics, strict=strict)
    if prepared is None:
        return scope
    quantized = quantized_tensors(prepared.model)
    return replace(scope, intended=prepared.intended, stored=prepared.stored, quantized=quantized)


def quantized_tensors(model: ModelProto) -> frozenset[str]:
    """The names of all quantized tensors in a model."""
    return frozenset(node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear")


def dlc_scope(package: Path) -> DlcScope:
    """The DLC of a package compared with its Q/DQ model; a float model has no intended types. Raises InputError."""
    dlc = read_dlc(package / DLC)
    model = onnx.load(package / MODEL, load_external_data=False)
    return DlcScope(qairt=dlc.writer, metadata=dlc.metadata, compared=tuple(compare_dlc(model, dlc)))
