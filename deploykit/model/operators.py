"""The one table of operators and element types: what operators do to values, what their inputs are, how wide types are.

It classifies by operator alone and imports nothing heavy; what only one vendor's tool does is that adapter's own table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from deploykit.findings.records import Interval, Names

__all__ = [
    "BIAS",
    "BITS",
    "CONTRIBUTED",
    "DEFAULT_DOMAINS",
    "FLOATS",
    "INTEGER_BITS",
    "INTEGER_RANGES",
    "LARGEST_FLOAT16",
    "LAYERNORM_SINCE",
    "QUANTIZERS",
    "RANGES",
    "ROLES",
    "WEIGHT",
    "Trait",
    "data_outputs",
    "has",
    "is_standard",
    "ops",
    "quantizes_at_run_time",
    "settings",
    "static_from",
]

LAYERNORM_SINCE = 17
"""The first operator set with LayerNormalization."""

INTEGER_BITS: Mapping[str, int] = {f"{sign}int{bits}": bits for bits in (2, 4, 8, 16, 32, 64) for sign in ("", "u")}

INTEGER_RANGES: Mapping[str, tuple[int, int]] = {
    name: (0, (1 << bits) - 1) if name.startswith("u") else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    for name, bits in INTEGER_BITS.items()
}
"""The smallest and largest value of each integer type."""

BITS: Mapping[str, int] = {
    **INTEGER_BITS,
    "bool": 8,
    **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0"), 8),
    "float4e2m1": 4,
    **dict.fromkeys(("float6e2m3", "float6e3m2"), 6),
    **dict.fromkeys(("float16", "bfloat16"), 16),
    "float": 32,
    "double": 64,
    "complex64": 64,
    "complex128": 128,
}
"""Bits of one stored element; strings have no size. (ONNX, onnx.proto, TensorProto.DataType)"""

FLOATS = frozenset({"float", "float16", "bfloat16", "double"})
"""The types in which graphs compute with real numbers; float8 and smaller only store them."""

LARGEST_FLOAT16 = 65504.0
"""The largest finite float16 (IEEE 754 binary16): whatever rounds beyond it becomes infinity."""


QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


CONTRIBUTED = "com.microsoft"
"""The domain in which ONNX Runtime keeps operators of its own."""

DEFAULT_DOMAINS = ("", "ai.onnx")
"""The two spellings of the domain of ONNX's own operators; everything in this table is one of those."""


class Trait(Enum):
    """What an operator does when a model is run for inference. Each value says it in words."""

    __hash__ = object.__hash__  # each is one object; Enum would hash its name in Python, a million times for a graph

    REARRANGES = "each value of the output is one of the first input, at a place that the values do not decide"
    PERMUTES = "rearranges such that each value of the first input is in the output, once"
    RESHAPES = "gives the values of the first input in their order, perhaps in another shape"
    SELECTS = "each value of the output is one of the first input, and the values decide which"
    JOINS = "each value of the output is one of several inputs"
    AVERAGES = "each value of the output lies between the least and the greatest of the first input"
    CLAMPS = "keeps values or cuts them at a bound, element by element"
    RECTIFIES = "bends values below zero, element by element"
    COMBINES = "computes one value from one of each input, element by element, shapes broadcast"
    SATURATES = "approaches or meets a bound at both ends, so that infinity becomes a number (Clip: where it has both)"
    LINEAR = "adds up products of data and, mostly, stored weights"
    INTEGER_LINEAR = "does so with integers alone"
    TAKES_BATCHNORM = "is linear, with stored weights per channel that a BatchNormalization behind it folds into"
    CONVOLVES = "is linear, with a stored kernel that slides"
    NORMALIZES = "divides by statistics of the values that it is given"
    RECURRENT = "carries a state from step to step"
    CONTROL_FLOW = "runs other graphs, which may read tensors that are not among its inputs"
    ON_SEQUENCES = "makes, changes or joins sequences of tensors, and runs no other graph"
    SIZED_BY_VALUES = "gives an output whose size depends on the values it gets"
    SIZED_BY_INPUT = "reads the size of its output from an input"
    RANDOM = "makes other values each time"
    LOGICAL = "answers true or false"
    CARRIES_GRID = "converters pass an encoding over it, both ways: 'data movement' (inferred from documented wording)"
    AIMET_COPIES = "AIMET 2.42 copies a per-tensor entry over it, both ways (observed)"
    AIMET_JOINS = "AIMET 2.42 copies an entry over it where all its inputs share one (observed)"


_OPS: dict[Trait, frozenset[str]] = {
    trait: frozenset(names.split())
    for trait, names in {
        Trait.REARRANGES: "Compress DepthToSpace Dropout Expand Flatten Gather GatherElements GatherND Identity Reshape"
        " ReverseSequence Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze",
        Trait.PERMUTES: "DepthToSpace Dropout Flatten Identity Reshape ReverseSequence SpaceToDepth Squeeze Transpose"
        " Unsqueeze",
        Trait.RESHAPES: "Flatten Identity Reshape Squeeze Unsqueeze",
        Trait.SELECTS: "GlobalMaxPool MaxPool ReduceMax ReduceMin TopK Unique",
        Trait.JOINS: "Concat Max Min Where",
        Trait.AVERAGES: "GlobalAveragePool ReduceMean",
        Trait.CLAMPS: "Clip Relu",
        Trait.RECTIFIES: "LeakyRelu PRelu",
        Trait.COMBINES: "Add Div Max Mean Min Mul Pow Sub Sum Where",
        Trait.SATURATES: "Clip Erf HardSigmoid Sigmoid Tanh",
        Trait.LINEAR: "Conv ConvTranspose Gemm MatMul",
        Trait.INTEGER_LINEAR: "ConvInteger MatMulInteger QLinearConv QLinearMatMul",
        Trait.TAKES_BATCHNORM: "Conv ConvTranspose Gemm",
        Trait.CONVOLVES: "Conv ConvTranspose",
        Trait.NORMALIZES: "GroupNormalization InstanceNormalization LayerNormalization RMSNormalization",
        Trait.RECURRENT: "GRU LSTM RNN",
        Trait.CONTROL_FLOW: "If Loop Scan SequenceMap",
        Trait.ON_SEQUENCES: "ConcatFromSequence SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert"
        " SequenceLength SplitToSequence",
        Trait.SIZED_BY_VALUES: "Compress NonMaxSuppression NonZero StringSplit Unique",
        Trait.SIZED_BY_INPUT: "ConstantOfShape Expand Range Reshape Tile",
        Trait.RANDOM: "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
        Trait.LOGICAL: "And Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Not Or Xor",
        Trait.AIMET_JOINS: "Clip Concat Max Min Scatter ScatterElements ScatterND Where",
    }.items()
}
_OPS[Trait.CARRIES_GRID] = _OPS[Trait.REARRANGES] | {"MaxPool", "TopK"}
# Wider than what is true: Col2Im adds up, NonZero gives places, Pad and MaxRoiPool may fill in other values.
_OPS[Trait.AIMET_COPIES] = (_OPS[Trait.CARRIES_GRID] - {"ReverseSequence"}) | frozenset(
    "Col2Im MaxRoiPool NonZero Pad ReduceMax ReduceMin SplitToSequence".split()  # noqa: SIM905 - as in the table
)

# The same table by operator, since callers ask by operator.
_TRAITS: dict[str, frozenset[Trait]] = {
    op_type: frozenset(trait for trait, names in _OPS.items() if op_type in names)
    for op_type in frozenset().union(*_OPS.values())
}
_NONE: frozenset[Trait] = frozenset()


if TYPE_CHECKING:

    class OpNode(Protocol):
        """What this table needs of a node: ``NodeFact`` and protobuf nodes both have it."""

        @property
        def op_type(self) -> str:
            """The operator's name within its domain."""

        @property
        def domain(self) -> str:
            """The domain, "" or ai.onnx for ONNX's own."""


def is_standard(node: OpNode) -> bool:
    """True for an operator of ONNX itself."""
    return node.domain in DEFAULT_DOMAINS


def has(node: OpNode, *traits: Trait) -> bool:
    """True for a standard operator with at least one of these traits."""
    return node.domain in DEFAULT_DOMAINS and not _TRAITS.get(node.op_type, _NONE).isdisjoint(traits)


def quantizes_at_run_time(node: OpNode) -> bool:
    """True for DynamicQuantizeLinear, and for operators of ONNX Runtime's own that hold one."""
    return node.op_type.startswith("DynamicQuantize")


def static_from(stored: Iterable[str], nodes: Iterable[tuple[OpNode, Sequence[str], Sequence[str]]]) -> frozenset[str]:
    """Stored tensors and everything that deterministic operators compute from them alone; one pass over the nodes.

    Each node comes with the names it reads and the names it makes.
    """
    found = set(stored)
    for node, read, made in nodes:
        # Bodies of control flow may read tensors from outside that are not among the node's inputs.
        folds = any(read) and not has(node, Trait.RANDOM, Trait.CONTROL_FLOW)
        if folds and all(name in found for name in read if name):
            found.update(name for name in made if name)
    return frozenset(found)


def ops(*traits: Trait) -> frozenset[str]:
    """The operators with at least one of these traits."""
    return frozenset().union(*(_OPS[trait] for trait in traits))


RANGES: Mapping[str, Interval] = {
    "Cos": (-1.0, 1.0),
    "Erf": (-1.0, 1.0),
    "HardSigmoid": (0.0, 1.0),
    "Sigmoid": (0.0, 1.0),
    "Sin": (-1.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
}
"""Least and greatest result, in exact arithmetic, of operators that are bounded whatever they are given."""

WEIGHT, BIAS = "weight", "bias"

_AFFINE = {1: WEIGHT, 2: BIAS}
_RECURRENT = {1: WEIGHT, 2: "recurrence", 3: BIAS}

ROLES: Mapping[str, Mapping[int, str]] = {
    "BatchNormalization": {1: WEIGHT, 2: BIAS, 3: "mean", 4: "variance"},
    "Conv": _AFFINE,
    "ConvTranspose": _AFFINE,
    "GRU": _RECURRENT,
    "Gemm": _AFFINE,
    "GroupNormalization": _AFFINE,
    "InstanceNormalization": _AFFINE,
    "LSTM": _RECURRENT,
    "LayerNormalization": _AFFINE,
    "MatMul": {1: WEIGHT},
    "RMSNormalization": {1: WEIGHT},
    "RNN": _RECURRENT,
}
"""Which inputs are parameters, by the roles that AIMET gives them.

A constant that an elementwise op reads is no parameter.
"""


_SETTINGS: Mapping[str, frozenset[int]] = {
    "Clip": frozenset({1, 2}),
    "ConstantOfShape": frozenset({0}),
    "DequantizeLinear": frozenset({1, 2}),
    "Dropout": frozenset({1, 2}),
    "NonMaxSuppression": frozenset({2, 3, 4}),
    "OneHot": frozenset({1, 2}),
    "Pad": frozenset({1, 2, 3}),
    "QuantizeLinear": frozenset({1, 2}),
    "Range": frozenset({0, 1, 2}),
    "Resize": frozenset({1, 2, 3}),
    "Upsample": frozenset({1}),
}


def settings(node: OpNode) -> frozenset[int]:
    """Input positions that are read while a graph is built: bounds, ratios, sizes. (ONNX operator documentation)

    They have no type on a device and need no encoding. Shapes, indices and axes are integers; where an operator has
    nothing else beside its data, their type tells them apart and they are not listed.
    """
    return _SETTINGS.get(node.op_type, frozenset()) if is_standard(node) else frozenset()


_DATA_OUTPUTS: Mapping[str, int] = {
    **dict.fromkeys(("Dropout", "MaxPool", "TopK", "Unique"), 1),
    **dict.fromkeys(("NonZero", "SplitToSequence"), 0),
}


def data_outputs(node: OpNode, outputs: Sequence[str]) -> Names:
    """The outputs of a node that hold data like its input: no masks, indices or sequences."""
    count = _DATA_OUTPUTS.get(node.op_type) if is_standard(node) else None
    return tuple(name for name in outputs[:count] if name)
