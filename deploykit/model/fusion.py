"""What tool chains compute as one operator, as a table with sources: pairs of operators, and written-out blocks.

A tensor inside has no type of its own, and the encodings that AIMET writes for an NPU have no entry for it. This module
reads no encodings: whether a missing entry is explained by fusion is judged in ``encodings``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deploykit.model.facts import GraphFacts, NodeFact, TensorFact
from deploykit.model.operators import Trait, has, is_standard, ops
from deploykit.model.parameters import bias_after_matmul
from deploykit.model.patterns import FusedBlock, find_blocks

__all__ = ["BLOCKS", "PAIRS", "FusedKind", "Fusion", "fusions"]

_CONFIG = "aimet-onnx 2.42.0, supergroups of the NPU configurations v73 to v85 (read)"
_PASSES = "aimet-onnx 2.42.0, supergroup_pass_list of the NPU configurations v68 to v85 and its graph passes (read)"
_FILES = "encodings that aimet-onnx 2.31.0 and 2.42.0 wrote for an NPU (tests/data/aimet)"
_ALIKE = "in analogy to the pairs that AIMET's configurations name; no file with it was seen"
_DEVICE = "the ONNX operator exists as one, and runtimes match its written-out form; no file with it was seen"

_CONVOLUTIONS = ops(Trait.CONVOLVES)
_SUMS = frozenset({"Add", "MatMul", "Gemm", "ConvTranspose"})


@dataclass(frozen=True, slots=True)
class FusedKind:
    """An operator that is fused with ``makers`` in front of it, or one written out node by node, and how that is known.

    Where it is ``certain``, entries are missing inside whatever the rest of the file says. The others explain missing
    entries only where nothing inside has one and the result has.
    """

    name: str
    makers: frozenset[str]
    source: str

    @property
    def certain(self) -> bool:
        """True where AIMET itself leaves the entries out."""
        return self.source not in (_ALIKE, _DEVICE)


PAIRS: tuple[FusedKind, ...] = (
    FusedKind("BatchNormalization", ops(Trait.TAKES_BATCHNORM), _FILES),
    FusedKind("Relu", _CONVOLUTIONS | {"Add", "Gemm", "BatchNormalization"}, _CONFIG),
    FusedKind("Relu", frozenset({"MatMul"}), _FILES),
    FusedKind("Clip", frozenset({"Conv"}), _CONFIG),
    FusedKind("Clip", frozenset({"BatchNormalization", "ConvTranspose", "Gemm"}), _FILES),
    FusedKind("Clip", frozenset({"Add", "MatMul"}), _ALIKE),
    FusedKind("PRelu", frozenset({"BatchNormalization", "Conv"}), _CONFIG),
    FusedKind("PRelu", _SUMS, _ALIKE),
    FusedKind("LeakyRelu", frozenset({"BatchNormalization", "Conv"}), _CONFIG),
    FusedKind("LeakyRelu", _SUMS, _ALIKE),
    FusedKind("HardSwish", frozenset({"BatchNormalization"}), _CONFIG),
    FusedKind("HardSwish", _SUMS | {"Conv"}, _ALIKE),
)
"""Pairs of operators, the first input of the reader being what the maker computes.

A MatMul and the Add of its bias is a pair too; what is added tells it (``bias_after_matmul``; source: ``_PASSES``).
"""

_THROUGH_TRANSPOSE = frozenset({"LeakyRelu", "PRelu", "Relu"})
"""Readers that are fused with a Conv through a Transpose between the two; source: ``_CONFIG``."""

BLOCKS: Mapping[str, FusedKind] = {
    kind: FusedKind(kind, frozenset(), source)
    for source, kinds in (
        (_PASSES, ("LayerNormalization", "RMSNormalization")),
        (_DEVICE, ("Gelu", "GroupNormalization", "HardSwish", "Softmax", "Swish")),
    )
    for kind in kinds
}
"""Written-out operators (``FusedBlock.kind``). A norm over the last axes and one over the image have the same form."""

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
    known: tuple[Fusion, ...] | None = facts.known("fusions")
    if known is not None:
        return known
    blocks = find_blocks(facts)
    pairs = (found for tensor in facts.tensors.values() if (found := _pair(facts, tensor)) is not None)
    return facts.keep("fusions", (*pairs, *(made for block in blocks for made in _of_block(facts, block))))


def _pair(facts: GraphFacts, tensor: TensorFact) -> Fusion | None:
    """The pair that a tensor lies inside of, with a Transpose in the middle of it where there may be one."""
    maker, reader = facts.producer_of(tensor.name), _only_reader(facts, tensor)
    if maker is None or reader is None or not is_standard(maker):
        return None
    inside, last, certain = {tensor.name}, tensor.name, True
    if bias_after_matmul(facts, maker) is None:
        if maker.op_type == "Conv" and reader.op_type == "Transpose":
            last = reader.outputs[0]
            behind = _only_reader(facts, facts.tensors[last])
            if behind is None or behind.op_type not in _THROUGH_TRANSPOSE:
                return None
            inside, reader = inside | {last}, behind
        else:
            rows = [row for row in PAIRS if row.name == reader.op_type and maker.op_type in row.makers]
            certain = any(row.certain for row in rows)
            if not rows:
                return None
        if reader.inputs[0] != last:
            return None
    words = f"between {maker.op_type} and the {reader.op_type} fused with it"
    return Fusion(node=reader, result=reader.outputs[0], inside=frozenset(inside), certain=certain, words=words)


def _only_reader(facts: GraphFacts, tensor: TensorFact) -> NodeFact | None:
    readers = facts.consumers_of(tensor.name)
    if len(readers) != 1 or tensor.is_output or len(readers[0].inputs) > _MOST_INPUTS:
        return None
    reader = readers[0]
    return reader if is_standard(reader) and reader.inputs.count(tensor.name) == 1 else None


def _of_block(facts: GraphFacts, block: FusedBlock) -> Iterator[Fusion]:
    certain, node = BLOCKS[block.kind].certain, facts.nodes[block.nodes[-1]]
    inside, words = block.inside, f"inside the {block.kind} that {node.op_type} ends"
    maker = facts.producer_of(block.source)
    alone = set(facts.tensors[block.source].consumers) <= set(block.nodes)
    if block.kind in _GATED and alone and maker is not None and (has(maker, Trait.LINEAR) or maker.op_type == "Add"):
        inside, words = inside | {block.source}, f"between {maker.op_type} and the {block.kind} fused with it"
    # One lone omission is more likely a slip than a fusion.
    if certain or len(inside) > 1:
        settings = block.settings | ({block.bias} if block.bias else set())
        yield Fusion(node=node, result=block.result, inside=inside, settings=settings, certain=certain, words=words)
