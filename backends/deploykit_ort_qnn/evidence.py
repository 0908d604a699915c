"""What a compilation leaves in a package so that it can be judged later: graphs asked for, types made, numbers.

Plain JSON without times, addresses or paths, so that the same inputs give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from deploykit.errors import InputError
from deploykit.tables.reading import read_json
from deploykit_ort_qnn.commands import MODEL
from deploykit_ort_qnn.dlc import DLC, read_dlc
from deploykit_ort_qnn.dlc_types import compare_dlc
from deploykit_ort_qnn.precision import PrecisionScope
from deploykit_ort_qnn.qnn_graph import QnnGraph, QnnNode, QnnTensor
from deploykit_ort_qnn.rules.compiled import DlcScope
from deploykit_ort_qnn.schematic import Schematic, SchematicOp, SchematicOutput

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit_ort_qnn.compiler import CompileOutcome

__all__ = ["EVIDENCE", "dlc_scope", "evidence_json", "precision_scope", "read_evidence"]

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
        [op.origin, op.kind, [output.dtype for output in op.outputs]]
        for op in schematic.after
        if op.computes and op.origin in schematic.names
    ]
    return {
        "graph": schematic.graph,
        "names": {str(number): name for number, name in sorted(schematic.names.items())},
        "operations": ops,
    }


def _schematic(value: Mapping[str, Any]) -> Schematic:
    after = tuple(
        SchematicOp(
            id=number,
            kind=kind,
            inputs=(),
            outputs=tuple(SchematicOutput(dtype=dtype, dims=(), zero_point=0, step=1.0) for dtype in dtypes),
        )
        for number, kind, dtypes in value["operations"]
    )
    names = {int(number): name for number, name in value["names"].items()}
    return Schematic(graph=value["graph"], before=(), after=after, names=names)
