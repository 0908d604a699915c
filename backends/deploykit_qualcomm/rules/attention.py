"""Lint rules about transformer blocks: rank-3 linear layers that enter attention, and float sets that cut a block.

Codes QNN215, QNN270 and QNN271. What compiles is a row of the SDK tables, not of this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from deploykit.backend.backend import Situation
from deploykit.encodings.float_sets import Extension, predict_float_set, suggest_extensions
from deploykit.findings import Severity, SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.tables.capabilities import Feature, Status
from deploykit_qualcomm.rules.constraints import constraint
from deploykit_qualcomm.rules.views import arch, is_computed, listed, nodes, quantized, rewrite_advice, weight_name

__all__ = ["RULES"]

_PASSING = frozenset(
    {"Reshape", "Transpose", "Split", "Slice", "Squeeze", "Unsqueeze", "Gather", "Mul", "Div", "Add", "Identity"}
    | {"Cast", "Concat", "QuantizeLinear", "DequantizeLinear"}
)
_COMPILERS = {"qnn-htp": "qnn-context-binary-generator", "ort-qnn": "onnxruntime-qnn"}
_REACH = 64
_MOST_WORK = 250_000
_SMALL = 12
"""An extension of so many operators is looked for, unless borders times nodes is too much work for a lint."""

RULES: Registry[Situation] = Registry("situation")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linear:
    """A linear layer on rank 3, with the tensor that leaves it: behind the bias Add, and behind a pair."""

    node: NodeFact
    output: str


def _linears(situation: Situation) -> Iterator[_Linear]:
    """MatMul of a rank-3 tensor by a stored weight whose result reaches a product of two activations."""
    facts = situation.facts
    for node in nodes(situation, "MatMul"):
        source = facts.tensors.get(node.inputs[0])
        if source is None or source.rank != 3 or weight_name(facts, node.inputs[1]) is None:
            continue
        output = _behind_bias(facts, node)
        if _enters_attention(facts, output):
            yield _Linear(node=node, output=output)


def _behind_bias(facts: GraphFacts, node: NodeFact) -> str:
    name = node.outputs[0]
    for _ in range(3):
        readers = facts.consumers_of(name)
        if len(readers) != 1 or readers[0].op_type not in ("Add", "QuantizeLinear", "DequantizeLinear"):
            return name
        name = readers[0].outputs[0]
        if readers[0].op_type == "Add":
            return name
    return node.outputs[0]


def _enters_attention(facts: GraphFacts, name: str) -> bool:
    waiting, seen = [name], {name}
    while waiting and len(seen) < _REACH:
        for reader in facts.consumers_of(waiting.pop()):
            if reader.op_type == "MatMul" and all(is_computed(facts, operand) for operand in reader.inputs[:2]):
                return True
            if reader.op_type in _PASSING:
                fresh = [output for output in reader.outputs if output and output not in seen]
                waiting += fresh
                seen.update(fresh)
    return False


def _row(situation: Situation) -> Feature | None:
    """The word of the table about the tool that compiles for this backend: the report is about one, not about both."""
    sdk = situation.target.sdk
    tool = _COMPILERS.get(situation.target.backend, "")
    row = None if sdk is None else sdk.feature("vit-3d-linear", tool=tool, arch=arch(situation))
    return row if row is not None and row.arch else None


@RULES.rule(
    "QNN215",
    "rank-3-linear-into-attention",
    "error",
    what="A quantized linear layer on rank 3 (MatMul and Add) whose result enters attention.",
    why="On v73 with SDK 2.41 the quantized Add got an internal 5-D layout that the kernel lacks: 'could not create "
    "op: q::linearclip', for every such layer of the encoder.",
    fix="try --rewrite linear-to-conv, or use an SDK that is known to take them",
    sources=(*constraint("keep-4d").source, "qualcomm/aimet#4086"),
)
def check_rank_3_linear(situation: Situation) -> Iterator[Found]:
    """An error where the SDK's row says broken, a warning where nothing is known."""
    row = _row(situation)
    if row is None or row.status is Status.SUPPORTED:
        return
    labels = [one.node.label for one in _linears(situation) if _is_integer(situation, one.output)]
    if labels:
        version = "" if situation.target.sdk is None else situation.target.sdk.version
        found = Found(
            kind=SubjectKind.NODE,
            name=labels[0],
            message=f"{len(labels)} rank-3 linear layers enter attention, which is {row.status} on {arch(situation)} "
            f"with {version}: {listed(labels)}",
            hint=f"{rewrite_advice(situation, 'linear-to-conv')}, or use an SDK that is known to take them",
            sources=row.source,
            evidence={"nodes": labels, "status": str(row.status), "contradicts": row.contradicts},
        )
        yield found if row.status is Status.BROKEN else replace(found, severity=Severity.WARNING)


def _is_integer(situation: Situation, name: str) -> bool:
    found = quantized(situation, name)
    return found is not None and bool(found.bits)


@RULES.rule(
    "QNN271",
    "attention-partly-float",
    "warning",
    what="Linear layers that enter attention, some of them quantized and some left in float.",
    why="In qualcomm/aimet#4086 every partial exclusion moved the failure to the next block, and converting back and "
    "forth cost more than the float layers saved (67 ms against 60 ms for all of it in fp16).",
    fix="keep whole blocks in one precision: extend the float set to the block, or quantize all of it",
    sources=("qualcomm/aimet#4086",),
)
def check_partly_float(situation: Situation) -> Iterator[Found]:
    """Wherever the architecture has a row about such layers and the SDK is not known to take them."""
    row = _row(situation)
    if row is None or row.status is Status.SUPPORTED or situation.encodings is None:
        return
    linears = list(_linears(situation))
    kept = [one.node.label for one in linears if not _is_integer(situation, one.output)]
    if kept and len(kept) < len(linears):
        yield Found(
            kind=SubjectKind.NODE,
            name=kept[0],
            message=f"{len(kept)} of {len(linears)} rank-3 linear layers into attention stay float: {listed(kept)}",
            evidence={"float": kept, "layers": len(linears)},
        )


@RULES.rule(
    "QNN270",
    "float-borders",
    "warning",
    what="Places where data changes between float16 and integers because of the tensors that are left in float.",
    why="Each one is a Convert at run time. In qualcomm/aimet#4090 147 of them made a 14 ms model take 47 ms, and a "
    "border in the middle of attention is where kernels are missing.",
    fix="make the float set larger by the tensors that are named, or smaller: few whole blocks cost least",
    sources=("qualcomm/aimet#4086", "qualcomm/aimet#4090"),
    cure="simplify",
)
def check_borders(situation: Situation) -> Iterator[Found]:
    """The borders of the float set that the encodings lead to, and what removes most of them per operator."""
    if situation.encodings is None:
        return
    facts = situation.facts
    prediction = predict_float_set(facts, situation.encodings)
    if not prediction.borders or not prediction.predicted:
        return
    labels = list(dict.fromkeys(border.node for border in prediction.borders))
    ignored = prediction.absorbed.keys()
    best: tuple[Extension, ...] = ()
    if len(prediction.borders) * len(facts.nodes) <= _MOST_WORK:
        best = suggest_extensions(facts, prediction.predicted, ignored=ignored, most_nodes=_SMALL)[:1]
    advice = "".join(
        f"; {listed(list(more.tensors))} in float too would remove {more.removed} of them" for more in best
    )
    yield Found(
        kind=SubjectKind.ENCODINGS,
        name=(situation.request.encodings or situation.request.model).name,
        message=f"{len(prediction.borders)} borders between float and integers at {len(labels)} operators: "
        f"{listed(labels)}{advice}",
        evidence={
            "borders": [
                {"tensor": border.tensor, "node": border.node, "direction": border.direction}
                for border in prediction.borders
            ],
            "operators": len(labels),
            "extension": [
                {"tensors": list(more.tensors), "nodes": list(more.nodes), "removed": more.removed} for more in best
            ],
        },
    )
