"""Reads one protobuf node, and reads or raises the operator sets of its model; it knows no graph around the node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from deploykit.errors import InputError
from deploykit.findings.records import Names
from deploykit.model.operators import CONTRIBUTED, DEFAULT_DOMAINS, Trait, is_standard, ops

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

M = TypeVar("M", "ModelProto", "NodeProto", "TensorProto")
T = TypeVar("T")

__all__ = [
    "attribute",
    "attributes",
    "bodies",
    "captured_names",
    "changed_operators",
    "copy_of",
    "empty_like",
    "label",
    "names_read",
    "operand",
    "opset_of",
    "raise_opset",
    "reached",
    "without_values",
]

_RUNNING = ops(Trait.CONTROL_FLOW)  # of ONNX's own operators only these run a graph


def reached(starts: Iterable[T], onward: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """The starts and everything that ``onward`` leads to from them, each once.

    ``onward`` is called after its place was yielded.
    """
    todo = list(dict.fromkeys(starts))
    found = set(todo)
    while todo:
        place = todo.pop()
        yield place
        fresh = dict.fromkeys(other for other in onward(place) if other not in found)
        found.update(fresh)
        todo += fresh


def label(node: NodeProto) -> str:
    """The node's name, or its type and first output where it has none."""
    return node.name or f"{node.op_type} -> {node.output[0] if node.output else '?'}"


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """The value of one attribute, texts as str, or the default."""
    from onnx import helper

    for found in node.attribute:
        if found.name == name:
            value = helper.get_attribute_value(found)
            return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return default


def attributes(node: NodeProto) -> dict[str, Any]:
    """All attributes of a node by name, with their values as onnx gives them."""
    from onnx import helper

    return {found.name: helper.get_attribute_value(found) for found in node.attribute}


def operand(node: NodeProto, at: int) -> str:
    """The name of the input at a position, "" where it is left out."""
    return node.input[at] if at < len(node.input) else ""


def copy_of(model: M) -> M:
    """A deep copy of a protobuf message, which may be edited."""
    copy = type(model)()
    copy.CopyFrom(model)
    return copy


def empty_like(model: ModelProto) -> ModelProto:
    """An empty model with the same IR version, operator sets, functions and graph name."""
    made = type(model)(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    made.graph.name = model.graph.name
    return made


def without_values(model: ModelProto, *more: str) -> ModelProto:
    """A copy without initializers and, unless ``more`` names ``node``, without nodes.

    ``more`` are further lists of the graph to copy.
    """
    copy = empty_like(model)
    for kind in ("input", "output", "value_info", "sparse_initializer", *more):
        getattr(copy.graph, kind).extend(getattr(model.graph, kind))
    return copy


def names_read(node: NodeProto) -> Names:
    """The tensors that a node and its bodies read, each once."""
    return tuple(dict.fromkeys(filter(None, (*node.input, *captured_names(node)))))


def captured_names(node: NodeProto) -> Names:
    """The names that the bodies of a node read from the graphs around them, sorted."""
    if node.op_type not in _RUNNING and is_standard(node):
        return ()
    captured = set[str]()
    for graph in bodies(node):
        made = {item.name for item in graph.input} | {tensor.name for tensor in graph.initializer}
        made |= {sparse.values.name for sparse in graph.sparse_initializer}
        read = {item.name for item in graph.output}
        for inner in graph.node:
            read.update(names_read(inner))
            made.update(inner.output)
        captured |= read - made
    return tuple(sorted(captured, key=str))  # a name that is no UTF-8 comes as bytes, and is refused later


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in a node's attributes, which the node runs; graphs nested in these are not included."""
    for found in node.attribute:
        if found.HasField("g"):
            yield found.g
        yield from found.graphs


# Operators whose versions 13 to 21 differ in element types or in optional extras whose default is the old meaning.
_ONLY_MORE_TYPES = ops(Trait.CONTROL_FLOW, Trait.RESHAPES) | {
    *("AveragePool", "Cast", "CastLike", "Constant", "ConstantOfShape", "DequantizeLinear", "Equal", "IsInf", "IsNaN"),
    *("Pad", "QuantizeLinear", "Relu", "Resize", "Shape", "Size", "Split", "Transpose"),
}

_LEAST_IR = {19: 9, 20: 9, 21: 10}


def opset_of(model: ModelProto, domain: str = "") -> int:
    """The version of one domain's operator set, 0 when it is not imported."""
    wanted = (domain,) if domain else DEFAULT_DOMAINS
    return max((entry.version for entry in model.opset_import if entry.domain in wanted), default=0)


def changed_operators(model: ModelProto, version: int) -> Names:
    """Operators in use whose meaning differs between the model's operator set and ``version``."""
    from onnx import defs

    current, changed = opset_of(model), set()
    for node in model.graph.node:
        # Since 18, a Split without sizes must say into how many parts.
        keeps_meaning = node.op_type != "Split" or len(node.input) > 1 or current >= 18
        if not is_standard(node) or (current >= 13 and node.op_type in _ONLY_MORE_TYPES and keeps_meaning):
            continue
        try:
            schemas = [defs.get_schema(node.op_type, v, "") for v in (current, version)]
        except defs.SchemaError:
            changed.add(node.op_type)
            continue
        if schemas[0].since_version != schemas[1].since_version:
            changed.add(node.op_type)
    return tuple(sorted(changed))


def raise_opset(model: ModelProto, version: int) -> ModelProto:
    """The model with at least that operator set, edited in place where possible.

    InputError where it cannot be converted.
    """
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
    # ONNX Runtime's optimizer writes LayerNormalization into operator sets that do not have it yet; it means there what
    # it means since 17.
    early = {
        node.output[0] for node in model.graph.node if is_standard(node) and node.op_type.endswith("LayerNormalization")
    }
    if early and not opset_of(model, CONTRIBUTED):
        model.opset_import.add(domain=CONTRIBUTED, version=1)
    try:
        converted = version_converter.convert_version(_with_domain(model, early, CONTRIBUTED), version)
    except Exception as error:  # the converter's C++ code raises bare RuntimeErrors of several kinds
        raise InputError(
            f"the model cannot be raised from operator set {opset_of(model)} to {version}",
            why=str(error).strip().splitlines()[0],
            next="export it with a newer operator set",
        ) from None
    present = {entry.domain for entry in converted.opset_import}
    converted.opset_import.extend(entry for entry in others if entry.domain not in present)
    return _with_domain(converted, early, "")


def _with_domain(model: ModelProto, made: set[str], domain: str) -> ModelProto:
    """Set the domain of the nodes that make these tensors, in place.

    The converter leaves nodes of an unknown domain alone.
    """
    for node in model.graph.node:
        if made.intersection(node.output):
            node.domain = domain
    return model
