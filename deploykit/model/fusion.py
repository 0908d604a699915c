"""What tool chains compute as one operator, as a table with sources: pairs of operators, and written-out blocks.

A tensor inside has no type of its own, and the encodings that AIMET writes for an NPU have no entry for it. This module
reads no encodings: whether a missing entry is explained by fusion is judged in ``quantization``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deploykit.findings import Confidence
from deploykit.model.facts import GraphFacts, NodeFact, TensorFact
from deploykit.model.operators import Trait, has, is_standard, ops
from deploykit.model.parameters import bias_after_matmul
from deploykit.model.patterns import Block, find_blocks

__all__ = ["BLOCKS", "PAIRS", "FusedBlock", "FusedPair", "Fusion", "fusions"]

_CONFIG = "aimet-onnx 2.42.0, supergroups of the NPU configurations v73 to v85 (read)"
_PASSES = "aimet-onnx 2.42.0, supergroup_pass_list of the NPU configurations v68 to v85 and its graph passes (read)"
_FILES = "encodings that aimet-onnx 2.31.0 and 2.42.0 wrote for an NPU (tests/data/aimet)"
_ALIKE = "in analogy to the pairs that AIMET's configurations name; no file with it was seen"

_CONVOLUTIONS = ops(Trait.CONVOLVES)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedPair:
    """A reader and the makers that it is fused with, and how that is known.

    ``certain`` pairs explain every missing entry between the two. The others do so only where the result has one.
    """

    reader: str
    makers: frozenset[str]
    source: str
    confidence: Confidence

    @property
    def certain(self) -> bool:
        """True where AIMET itself leaves the entry out."""
        return self.confidence is not Confidence.INFERRED


def _pair(reader: str, makers: frozenset[str], source: str) -> FusedPair:
    confidence = Confidence.INFERRED if source is _ALIKE else Confidence.OBSERVED
    return FusedPair(reader=reader, makers=makers, source=source, confidence=confidence)


_SUMS = frozenset({"Add", "MatMul", "Gemm", "ConvTranspose"})

PAIRS: tuple[FusedPair, ...] = (
    _pair("BatchNormalization", ops(Trait.TAKES_BATCHNORM), _FILES),
    _pair("Relu", _CONVOLUTIONS | {"Add", "Gemm", "BatchNormalization"}, _CONFIG),
    _pair("Relu", frozenset({"MatMul"}), _FILES),
    _pair("Clip", frozenset({"Conv"}), _CONFIG),
    _pair("Clip", frozenset({"BatchNormalization", "ConvTranspose", "Gemm"}), _FILES),
    _pair("Clip", frozenset({"Add", "MatMul"}), _ALIKE),
    _pair("PRelu", frozenset({"BatchNormalization", "Conv"}), _CONFIG),
    _pair("PRelu", _SUMS, _ALIKE),
    _pair("LeakyRelu", frozenset({"BatchNormalization", "Conv"}), _CONFIG),
    _pair("LeakyRelu", _SUMS, _ALIKE),
    _pair("HardSwish", frozenset({"BatchNormalization"}), _CONFIG),
    _pair("HardSwish", _SUMS | {"Conv"}, _ALIKE),
)
"""Pairs of operators, the first input of the reader being what the maker computes.

A MatMul and the Add of its bias is a pair too; what is added tells it (``bias_after_matmul``; source: ``_PASSES``).
"""

_THROUGH_TRANSPOSE = frozenset({"LeakyRelu", "PRelu", "Relu"})
"""Readers that are fused with a Conv through a Transpose between the two; source: ``_CONFIG``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedBlock:
    """A kind of written-out operator (``Block.kind``) that is computed as one, and how that is known.

    Where it is ``certain``, entries are missing inside whatever the rest of the file says; the others explain missing
    entries only where nothing inside has one and the result has.
    """

    kind: str
    source: str
    confidence: Confidence

    @property
    def certain(self) -> bool:
        """True where AIMET itself leaves the entries out."""
        return self.confidence is not Confidence.INFERRED


_FUSED_BY_DEVICE = "the ONNX operator exists as one, and runtimes match its written-out form; no file with it was seen"

BLOCKS: Mapping[str, FusedBlock] = {
    row.kind: row
    for row in (
        FusedBlock(kind="LayerNormalization", source=_PASSES, confidence=Confidence.OBSERVED),
        FusedBlock(kind="RMSNormalization", source=_PASSES, confidence=Confidence.OBSERVED),
        FusedBlock(kind="Gelu", source=_FUSED_BY_DEVICE, confidence=Confidence.INFERRED),
        FusedBlock(kind="GroupNormalization", source=_FUSED_BY_DEVICE, confidence=Confidence.INFERRED),
        FusedBlock(kind="HardSwish", source=_FUSED_BY_DEVICE, confidence=Confidence.INFERRED),
        FusedBlock(kind="Softmax", source=_FUSED_BY_DEVICE, confidence=Confidence.INFERRED),
        FusedBlock(kind="Swish", source=_FUSED_BY_DEVICE, confidence=Confidence.INFERRED),
    )
}
"""Written-out operators. A norm over the last axes and one over the image (instance norm) have the same form."""

_GATED = frozenset({"HardSwish", "Swish"})
"""Blocks that are fused with what computes their input, as HardSwish is in ``PAIRS``."""

_MOST_INPUTS = 5
"""What a BatchNormalization reads; looking through longer lists for every tensor in them would not be linear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """Tensors that vanish into one operator.

    ``inside`` are computed tensors, ``settings`` stored ones that only serve it; ``node`` makes the ``result``, and
    ``words`` say what it is ("Conv and the Relu fused with it").
    """

    node: NodeFact
    result: str
    inside: frozenset[str]
    settings: frozenset[str] = frozenset()
    certain: bool
    words: str


def fusions(facts: GraphFacts) -> tuple[Fusion, ...]:
    """Every fused pair and every written-out block of a graph; linear in its size."""
    return facts.once("fusions", lambda: _fusions(facts))


def _fusions(facts: GraphFacts) -> tuple[Fusion, ...]:
    blocks = find_blocks(facts)
    pairs = (found for tensor in facts.tensors.values() for found in _pairs(facts, tensor))
    return (*pairs, *(made for block in blocks for made in _of_block(facts, block)))


def _pairs(facts: GraphFacts, tensor: TensorFact) -> Iterator[Fusion]:
    maker, reader = facts.producer_of(tensor.name), _only_reader(facts, tensor)
    if maker is None or reader is None or not is_standard(maker):
        return
    inside = frozenset({tensor.name})
    if bias_after_matmul(facts, maker) is not None:
        words = f"between {maker.op_type} and the {reader.op_type} fused with it"
        yield Fusion(node=reader, result=reader.outputs[0], inside=inside, certain=True, words=words)
        return
    if maker.op_type == "Conv" and reader.op_type == "Transpose":
        behind = _only_reader(facts, facts.tensors[reader.outputs[0]])
        if behind is None or behind.op_type not in _THROUGH_TRANSPOSE:
            return
        inside, reader, tensor = inside | {reader.outputs[0]}, behind, facts.tensors[reader.outputs[0]]
        certain = True
    else:
        rows = [row for row in PAIRS if row.reader == reader.op_type and maker.op_type in row.makers]
        if not rows:
            return
        certain = any(row.certain for row in rows)
    if reader.inputs[0] == tensor.name:
        words = f"between {maker.op_type} and the {reader.op_type} fused with it"
        yield Fusion(node=reader, result=reader.outputs[0], inside=inside, certain=certain, words=words)


def _only_reader(facts: GraphFacts, tensor: TensorFact) -> NodeFact | None:
    readers = facts.consumers_of(tensor.name)
    if len(readers) != 1 or tensor.is_output or len(readers[0].inputs) > _MOST_INPUTS:
        return None
    reader = readers[0]
    return reader if is_standard(reader) and reader.inputs.count(tensor.name) == 1 else None


def _of_block(facts: GraphFacts, block: Block) -> Iterator[Fusion]:
    row, node = BLOCKS[block.kind], facts.nodes[block.nodes[-1]]
    inside, words = block.inside, f"inside the {block.kind} that {node.op_type} ends"
    maker = facts.producer_of(block.source)
    alone = set(facts.tensors[block.source].consumers) <= set(block.nodes)
    if block.kind in _GATED and alone and maker is not None and (has(maker, Trait.LINEAR) or maker.op_type == "Add"):
        inside, words = inside | {block.source}, f"between {maker.op_type} and the {block.kind} fused with it"
    # One lone omission is more likely a slip than a fusion.
    if row.certain or len(inside) > 1:
        settings = block.settings | ({block.bias} if block.bias else set())
        yield Fusion(node=node, result=block.result, inside=inside, settings=settings, certain=row.certain, words=words)
