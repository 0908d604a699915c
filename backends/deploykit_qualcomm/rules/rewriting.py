"""Lint rules that point to rewrites which vendor code makes as well: hints, never errors. Codes QNN216 to QNN221."""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.backend.backend import Situation
from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit_qualcomm.rules.constraints import constraint
from deploykit_qualcomm.rules.views import is_computed, listed, nodes, rewrite_advice, weight_name

__all__ = ["RULES"]

_SHALLOW = 4
_WIDE = 128
_RMS_TAIL = ("ReduceMean", "Add", "Sqrt")

RULES: Registry[Situation] = Registry("situation")


def _hint(labels: list[str], message: str, *, hint: str = "") -> Iterator[Found]:
    if labels:
        yield Found(
            kind=SubjectKind.NODE,
            name=labels[0],
            message=f"{len(labels)} {message}: {listed(labels)}",
            hint=hint,
            evidence={"nodes": labels},
        )


@RULES.rule(
    "QNN216",
    "linear-as-convolution",
    "info",
    what="Linear layers that could be 1x1 convolutions.",
    why="The vendor's own passes turn them into convolutions, which keep rank 4. On the emulator that was 0.66 to 0.68 "
    "times the time at equal accuracy; emulator time is not device latency.",
    fix="try --rewrite linear-to-conv",
    sources=(*constraint("linear-to-conv1x1").source, "onnxruntime-qnn 2.7.0 run on Linux x86-64: two ViT blocks"),
)
def hint_linear(situation: Situation) -> Iterator[Found]:
    """MatMul of a rank-3 tensor by a stored weight."""
    facts = situation.facts
    labels = [
        node.label
        for node in nodes(situation, "MatMul")
        if _rank(facts, node.inputs[0]) == 3 and weight_name(facts, node.inputs[1]) is not None
    ]
    hint = rewrite_advice(situation, "linear-to-conv")
    yield from _hint(labels, "linear layers on rank 3 could be 1x1 convolutions", hint=hint)


def _rank(facts: GraphFacts, name: str) -> int | None:
    fact = facts.tensors.get(name)
    return None if fact is None else fact.rank


@RULES.rule(
    "QNN217",
    "multi-head-attention",
    "info",
    what="Attention over several heads in one MatMul.",
    why="The vendor's tools split it into single heads for language models, which the HTP schedules better.",
    fix="nothing to do here: qairt's own pass (MHA2SHA) does it in its language-model flow",
    sources=constraint("mha-to-sha").source,
)
def hint_heads(situation: Situation) -> Iterator[Found]:
    """Products of two activations on rank 4 with more than one head that feed a Softmax."""
    facts = situation.facts
    labels = []
    for node in nodes(situation, "MatMul"):
        shape = facts.tensors[node.outputs[0]].shape if node.outputs[0] in facts.tensors else None
        heads = shape[1] if shape is not None and len(shape) == 4 else 1
        both = all(is_computed(facts, name) for name in node.inputs[:2])
        if both and isinstance(heads, int) and heads > 1 and _feeds(facts, node, "Softmax"):
            labels.append(node.label)
    yield from _hint(labels, "attention products have several heads")


def _feeds(facts: GraphFacts, node: NodeFact, op_type: str) -> bool:
    name = node.outputs[0]
    for _ in range(8):
        readers = facts.consumers_of(name)
        if any(reader.op_type == op_type for reader in readers):
            return True
        if len(readers) != 1 or not readers[0].outputs:
            return False
        name = readers[0].outputs[0]
    return False


@RULES.rule(
    "QNN218",
    "one-dimensional-convolution",
    "info",
    what="A convolution over one dimension.",
    why="The HTP's convolutions are two-dimensional; the vendor's guideline and passes make them so.",
    fix="insert a dimension of 1 and export Conv2d",
    sources=constraint("vendor-guideline-group").source,
)
def hint_conv1d(situation: Situation) -> Iterator[Found]:
    """Conv and ConvTranspose on rank 3."""
    found = nodes(situation, "Conv", "ConvTranspose")
    labels = [node.label for node in found if _rank(situation.facts, node.inputs[0]) == 3]
    yield from _hint(labels, "convolutions have one dimension")


@RULES.rule(
    "QNN219",
    "decomposed-rms-norm",
    "info",
    what="An RMS normalization written out as Pow, ReduceMean, Add, Sqrt and Div.",
    why="The HTP has RmsNorm as one operator; written out it is slower, and the square leaves float16 early.",
    fix="export RMSNormalization (opset 23), or let the vendor's recomposition pass find it",
    sources=constraint("executorch-pass-group").source,
)
def hint_rms_norm(situation: Situation) -> Iterator[Found]:
    """The chain from the square to the root; of x - mean(x) it is a LayerNormalization, which has its own operator."""
    facts = situation.facts
    labels = []
    for node in nodes(situation, "Pow", "Mul"):
        if (node.op_type == "Mul" and len(set(node.inputs)) != 1) or _is_centred(facts, node.inputs[0]):
            continue
        last = _chain(facts, node, _RMS_TAIL)
        if last is not None and any(reader.op_type in ("Div", "Reciprocal") for reader in _readers(facts, last)):
            labels.append(node.label)
    yield from _hint(labels, "RMS normalizations are written out")


def _is_centred(facts: GraphFacts, name: str) -> bool:
    """True for what a mean was subtracted from."""
    minus = _maker(facts, name)
    mean = _maker(facts, minus.inputs[1]) if minus is not None and minus.op_type == "Sub" else None
    return mean is not None and mean.op_type == "ReduceMean"


def _maker(facts: GraphFacts, name: str) -> NodeFact | None:
    """The node that makes a tensor, Q/DQ pairs between them passed over."""
    node = facts.producer_of(name)
    while node is not None and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        node = facts.producer_of(node.inputs[0])
    return node


def _readers(facts: GraphFacts, node: NodeFact) -> tuple[NodeFact, ...]:
    return facts.consumers_of(node.outputs[0])


def _chain(facts: GraphFacts, node: NodeFact, op_types: tuple[str, ...]) -> NodeFact | None:
    """The last node of a chain of these types behind a node, Q/DQ pairs between them passed over."""
    for op_type in op_types:
        readers = _readers(facts, node)
        while len(readers) == 1 and readers[0].op_type in ("QuantizeLinear", "DequantizeLinear"):
            readers = _readers(facts, readers[0])
        following = [reader for reader in readers if reader.op_type == op_type]
        if not following:
            return None
        node = following[0]
    return node


@RULES.rule(
    "QNN220",
    "shallow-convolution-input",
    "info",
    what="A convolution over a large picture with at most four channels.",
    why="The vendor's guideline advises space-to-depth for shallow inputs: the HTP works on 32 channels at a time.",
    fix="fold pixels into channels before the first convolution where the accuracy of the export can be checked",
    sources=constraint("vendor-guideline-group").source,
)
def hint_shallow(situation: Situation) -> Iterator[Found]:
    """Conv on rank 4 with few channels and both sides of at least 128."""
    labels = []
    for node in nodes(situation, "Conv"):
        fact = situation.facts.tensors.get(node.inputs[0])
        shape = () if fact is None else fact.shape or ()
        sizes = [dim for dim in shape if isinstance(dim, int)]
        if len(sizes) == len(shape) == 4 and sizes[1] <= _SHALLOW and min(sizes[2:]) >= _WIDE:
            labels.append(node.label)
    yield from _hint(labels, "convolutions see at most four channels")


@RULES.rule(
    "QNN221",
    "pixel-unshuffle-written-out",
    "info",
    what="Reshape, Transpose and Reshape over rank 6, as pixel shuffling is exported.",
    why="Rank 6 does not exist on the HTP; as one operator the same movement does.",
    fix="export SpaceToDepth or DepthToSpace",
    sources=constraint("executorch-pass-group").source,
)
def hint_pixel_shuffle(situation: Situation) -> Iterator[Found]:
    """A Transpose of rank 6 between two Reshapes."""
    facts = situation.facts
    labels = []
    for node in nodes(situation, "Transpose"):
        before, after = facts.producer_of(node.inputs[0]), _readers(facts, node)
        around = before is not None and before.op_type == "Reshape" and [n.op_type for n in after] == ["Reshape"]
        if around and _rank(facts, node.inputs[0]) == 6:
            labels.append(node.label)
    yield from _hint(labels, "pixel shuffles are written out")
