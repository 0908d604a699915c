"""Writes layers with block-quantized weights as MatMul and Add, and measures what LPBQ costs such weights.

Compilers take block-quantized weights in a MatMul, but refuse or miscompute them in other forms (measured up to QAIRT
2.51). The weight's grid is carried over exactly; the product's grid follows from that of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace
from onnx import NodeProto, TensorProto
from packaging.version import Version

from deploykit.accuracy.judge.measures import sqnr_db
from deploykit.accuracy.simulate.quantizers import fake_quantize, spread_scale
from deploykit.encodings.lpbq import LpbqLoss
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Lpbq
from deploykit.model.nodes import attribute, operand
from deploykit.model.weights import stored_values
from deploykit.rewrites.contract import Match, ModelLook, NodeSteps, NoMatchError, rewrite

__all__ = ["block_losses", "block_weight_path", "blocks_to_matmul", "value_grid"]


@rewrite(
    *("Gemm", "Conv", "MatMul", "ConvTranspose"),
    none="no layer with block-quantized weights needs another form",
    until="2.52",
)
def blocks_to_matmul(look: ModelLook, node: NodeProto) -> Match | None:
    """block-quantized weights are taken, and computed rightly, as MatMul only

    Gemm, 1x1 Conv, and MatMul with a bias behind it; results change by float32 rounding only.
    """
    weight = operand(node, 1)
    entry = look.entry(weight)
    value = entry.value if entry is not None else None
    if value is None or getattr(value, "block_size", None) is None or weight not in look.stored:
        return None
    bias = operand(node, 2)
    if bias and bias not in look.stored:
        raise NoMatchError(f"its bias {bias} is not a constant")
    why, rank = "it has block-quantized weights", len(look.stored[weight].dims)
    if node.op_type == "MatMul":
        add, product = look.only_reader(node.output[0], "Add"), node.output[0]
        others = [n for n in add.input if n != product] if add is not None else []
        biases = [n for n in others if n in look.stored and len(look.stored[n].dims) == 1]
        if add is None or not biases:
            return None
        total = add.output[0]

        def keep_apart(to: NodeSteps) -> None:
            to.gone = []
            _derive_product(to, product, total, biases[0])  # a grid of its own, so that the compiler does not fuse them

        return Match(why, keep_apart, tensors=(weight,))
    if node.op_type == "Gemm" and (attribute(node, "alpha", 1.0) != 1.0 or attribute(node, "beta", 1.0) != 1.0):
        raise NoMatchError("it has factors of its own")
    if node.op_type == "Conv":
        plain = all(dim == 1 for dim in look.stored[weight].dims[2:]) and attribute(node, "group", 1) == 1
        plain &= all(step == 1 for step in attribute(node, "strides", [1])) and not any(attribute(node, "pads", [0]))
        if not plain:
            raise NoMatchError("it is no 1x1 convolution with stride 1, without padding and groups")
    if node.op_type == "ConvTranspose":
        raise NoMatchError("ConvTranspose has no form as MatMul")
    return Match(why, lambda to: _as_matmul(to, rank), tensors=(weight,))


def _as_matmul(to: NodeSteps, rank: int) -> None:
    node, output, is_conv = to.node, to.made, to.node.op_type == "Conv"
    (source, weight), bias = node.input[:2], operand(node, 2)
    stem = node.name or output
    if is_conv or attribute(node, "transA", 0):
        order = [0, *range(2, rank), 1] if is_conv else [1, 0]
        moved = to.add("Transpose", [source], f"{stem}/to_last_output", name=f"{stem}/to_last", perm=order)
        to.share(source, moved)
        source = moved
    if is_conv or attribute(node, "transB", 0):
        # The weight as [inputs, outputs], with its grid; all further dimensions are 1.
        values = stored_values(to.graph.stored[weight])
        name = to.store(f"{weight}_matmul", np.ascontiguousarray(values.reshape(values.shape[:2]).T))
        entry = to.entry(weight)
        assert entry is not None
        value: Any = entry.value
        changes = {"axis": None if value.axis is None else 1 - value.axis, "block_axis": 1 - value.block_axis}
        for part in ("channel_scale", "block_scale") if isinstance(value, Lpbq) else ("scale", "zero_point"):
            array = getattr(value, part)
            changes[part] = np.ascontiguousarray(array.reshape(array.shape[:2]).T)
        to.put(entry, name=name, value=replace(value, **changes))
        weight = name
    result = to.graph.fresh(f"{output}_last") if is_conv else output
    to.share(output, *([result] if is_conv else []))
    product = to.graph.fresh(f"{output}_product") if bias else result
    to.write("MatMul", [source, weight], product, name=f"{stem}/MatMul")
    if bias:
        to.write("Add", [product, bias], result, name=f"{stem}/Add")
        _derive_product(to, product, output, bias)
    if is_conv:
        to.end("Transpose", [result], name=f"{stem}/to_first", perm=[0, rank - 1, *range(1, rank - 1)])


def _derive_product(to: NodeSteps, product: str, total: str, bias: str) -> None:
    """Gives the product (sum - bias) the range that follows from both, and the bias the range of its values."""
    entry = to.entry(total)
    if entry is None or not isinstance(entry.value, Affine) or entry.value.scale.size != 1:
        return
    values = stored_values(to.graph.stored[bias]).astype(np.float64)
    low = float(entry.value.minimum.min()) - float(values.max())
    high = float(entry.value.maximum.max()) - float(values.min())
    if math.isfinite(low) and math.isfinite(high):  # a bias that is not finite gives no range
        bits = entry.value.bits
        to.put(Encoding(product, _grid(low, high, bits), is_param=False))
        to.put(Encoding(bias, value_grid(values, bits), is_param=False))


def value_grid(values: Any, bits: int) -> Affine:
    """The unsigned per-tensor grid of stored values, with 0 as one of its points."""
    finite = values[np.isfinite(values)]  # infinities and NaN do not define a range
    return _grid(float(finite.min(initial=0.0)), float(finite.max(initial=0.0)), bits)


def _grid(low: float, high: float, bits: int) -> Affine:
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / (2**bits - 1) or 1.0
    return Affine(bits=bits, signed=False, scale=np.asarray(scale), zero_point=np.asarray(float(round(-low / scale))))


def block_losses(
    names: Iterable[str], before: EncodingSet, after: EncodingSet, weights: Mapping[str, TensorProto]
) -> dict[str, LpbqLoss]:
    """What LPBQ costs each named weight that the model stores; only one weight is in memory at a time.

    The reference is the weight as its block grid holds it. A package stores the refined one, made of the float weight.
    """
    losses = dict[str, LpbqLoss]()
    for name in names:
        old, new = before.entries[name].value, after.entries[name].value
        assert isinstance(old, Affine) and isinstance(new, Lpbq)
        if name not in weights:
            continue
        values = stored_values(weights[name])
        given = fake_quantize(values, old)
        scale, moved = (spread_scale(value.scale, value, given.shape) for value in (old, new))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(scale > 0, moved / scale, np.float32(1.0))
        losses[name] = LpbqLoss(
            scale_error=float(np.abs(ratio - 1).max(initial=0.0)),
            sqnr_db=sqnr_db(given, given * ratio),
            refined_sqnr_db=sqnr_db(given, fake_quantize(values, new)),
        )
    return losses


_OPTION = "enable_block_quant_weight_optimization"
_OPTION_SINCE = "2.5.0"


def block_weight_path(*, op_type: str, lpbq: bool, has_bias: bool, wheel: str) -> str:
    """Describes in one sentence what a wheel's provider makes of a layer's block-quantized weights."""
    if lpbq and op_type == "MatMul" and not has_bias:
        found = "MatMul with LPBQ weights, integer activations"
    elif lpbq and op_type == "Conv":
        found = "refused as Conv; deploykit package writes a 1x1 one as MatMul"
    elif lpbq and has_bias:
        found = "wrong numbers as fused linear layer (bias dropped); deploykit package writes MatMul and Add"
    elif lpbq:
        found = "refused as Gemm without bias; deploykit package writes MatMul"
    elif has_bias and op_type != "Conv":
        found = "refused with a bias; deploykit package writes MatMul and Add, whose MatMul runs in FP16"
    else:
        found = f"{op_type} in FP16, converted from and to integers around it"
        if op_type in ("MatMul", "Conv") and Version(wheel) >= Version(_OPTION_SINCE):
            found += f"; with {_OPTION}=1 the provider makes LPBQ of it itself, without telling the loss"
    return found if wheel == "2.7.0" else f"{found} (measured with 2.7.0, not with {wheel})"
