"""Raises a model's default operator set: by its number alone where no operator in use changed its meaning in between.

Where one did, ONNX's own converter is asked. It never lowers a version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.errors import InputError
from deploykit.model.ops import DEFAULT_DOMAINS, is_standard

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["changed_operators", "opset_of", "raise_opset"]

_ONLY_MORE_TYPES = frozenset(
    [
        "AveragePool",
        "Cast",
        "CastLike",
        "Constant",
        "ConstantOfShape",
        "DequantizeLinear",
        "Equal",
        "Flatten",
        "Identity",
        "If",
        "IsInf",
        "IsNaN",
        "Loop",
        "Pad",
        "QuantizeLinear",
        "Relu",
        "Reshape",
        "Resize",
        "Scan",
        "Shape",
        "Size",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    ]
)
"""Operators whose versions 13 to 21 differ in element types or in optional extras whose default is the old meaning."""

_LEAST_IR = {19: 9, 20: 9, 21: 10}


def opset_of(model: ModelProto, domain: str = "") -> int:
    """The version of one domain's operator set, 0 when it is not imported."""
    wanted = (domain,) if domain else DEFAULT_DOMAINS
    return max((entry.version for entry in model.opset_import if entry.domain in wanted), default=0)


def changed_operators(model: ModelProto, version: int) -> tuple[str, ...]:
    """Operators in use whose meaning differs between the model's operator set and ``version``."""
    from onnx import defs

    current, changed = opset_of(model), set()
    for node in model.graph.node:
        if not is_standard(node) or (current >= 13 and _keeps_meaning(node, current)):
            continue
        try:
            schemas = [defs.get_schema(node.op_type, v, "") for v in (current, version)]
        except defs.SchemaError:
            changed.add(node.op_type)
            continue
        if schemas[0].since_version != schemas[1].since_version:
            changed.add(node.op_type)
    return tuple(sorted(changed))


def _keeps_meaning(node: NodeProto, current: int) -> bool:
    """Since 18, a Split without sizes must say into how many parts."""
    return node.op_type in _ONLY_MORE_TYPES and (node.op_type != "Split" or len(node.input) > 1 or current >= 18)


def raise_opset(model: ModelProto, version: int) -> ModelProto:
    """The model (edited in place where possible) with at least that operator set; raises InputError."""
    if opset_of(model) >= version:
        return model
    if not changed_operators(model, version):
        for entry in model.opset_import:
            if entry.domain in DEFAULT_DOMAINS:
                entry.version = version
    else:
        model = _convert(model, version)
    model.ir_version = max(model.ir_version, max((ir for at, ir in _LEAST_IR.items() if version >= at), default=8))
    return model


def _convert(model: ModelProto, version: int) -> ModelProto:
    from onnx import version_converter

    others = [entry for entry in model.opset_import if entry.domain not in DEFAULT_DOMAINS]
    try:
        converted = version_converter.convert_version(model, version)
    except Exception as error:  # the converter's C++ code raises bare RuntimeErrors of several kinds
        raise InputError(
            f"the model cannot be raised from operator set {opset_of(model)} to {version}",
            why=str(error).strip().splitlines()[0],
            next="export it with a newer operator set",
        ) from None
    present = {entry.domain for entry in converted.opset_import}
    converted.opset_import.extend(entry for entry in others if entry.domain not in present)
    return converted
