"""Small graphs, and all that is true of them."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from onnx import ModelProto, helper, numpy_helper

from deploykit.model.emptying import emptied
from deploykit.model.facts import (
    LAYOUT,
    TensorRole,
    channel_first,
    data_shaped_nodes,
    dynamic_inputs,
    setting_of,
    shape_text,
    static_tensors,
    tensor_bytes,
)
from deploykit.model.graph import GraphCopy
from deploykit.model.nodes import changed_operators, label, raise_opset
from deploykit.model.parameters import integer_type, parameter_uses, quantizer_of, stored_behind_pairs
from deploykit.model.patterns import (
    FusedBlock,
    casts_of_indices,
    find_blocks,
    fusions,
    repeated_before_norm,
    written_layer_norms,
)
from deploykit.model.pinning import branch_choices, has_stale_shapes, keep_weights_constant, pin_shapes
from deploykit.model.ranges import graph_bounds
from deploykit.model.rules import RULES
from deploykit.model.shape_inference import contradiction, infer
from deploykit.model.values import all_graphs, dtype_name
from graph_questions import Asked, answers_of
from sums import flat


def sizes_of(asked: Asked) -> dict[str, list[int]]:
    pairs = (word.split("=") for word in asked.words if ":" not in word)
    return {name: [*map(int, sizes.split(","))] if sizes else [] for name, sizes in pairs}


def block_text(found: FusedBlock) -> str:
    words = [f"{found.kind} {' '.join(map(str, found.nodes))}: {found.source} -> {found.result}"]
    for kind in ("inside", "settings"):
        names = sorted(getattr(found, kind))
        words += [f"{kind} {' '.join(names)}"] if names else []
    words += [f"scale {found.scale}"] * bool(found.scale) + [f"bias {found.bias}"] * bool(found.bias)
    return ", ".join(words)


def fused(asked: Asked) -> Iterator[str]:
    for one in fusions(asked.facts):
        more = f", settings {' '.join(sorted(one.settings))}" if one.settings else ""
        known = "" if one.certain else ", perhaps"
        yield f"{' '.join(sorted(one.inside))} {one.words}, which makes {one.result}{more}{known}"


def patterns(asked: Asked) -> Iterator[str]:
    facts = asked.facts
    for node, operand, given, shape in repeated_before_norm(facts):
        yield f"{node.label} repeats {operand} {given} to {shape}"
    for name in facts.tensors:
        if casts := casts_of_indices(facts, name):
            yield f"{name} holds indices for {', '.join(node.label for node in casts)}"


def tensors(asked: Asked) -> Iterator[str]:
    facts = asked.facts
    static = static_tensors(facts)
    for fact in facts.tensors.values():
        size = tensor_bytes(fact)
        maker, setting = facts.producer_of(fact.name), setting_of(facts, fact.name)
        words = [f"{fact.name}: {fact.role}, {fact.dtype or 'of no known type'}, {shape_text(fact)}"]
        words += ["unknown size" if size is None else f"{size} bytes"]
        words += [f"made by {maker.label}"] if maker else []
        words += (
            [f"read by {', '.join(node.label for node in facts.consumers_of(fact.name))}"] if fact.consumers else []
        )
        words += ["output"] * fact.is_output + ["static"] * (fact.name in static and not fact.is_weight)
        words += [f"a setting of {setting.label}"] if setting else []
        yield ", ".join(words)
    yield from (f"{name} holds {what}" for name, what in facts.non_finite.items())
    yield from (f"{name} is {value:g}" for name, value in facts.scalars.items())


def findings(asked: Asked) -> Iterator[str]:
    for one in RULES.run(asked.facts):
        open_ = "" if one.claim is None else " (tools can tell)"
        yield f"{one.severity} {one.code} {one.subject.name}: {one.message}{open_}"
        yield f"    {one.hint} {flat(one.to_json()['evidence'])}".removesuffix(" {}")


def sizes(asked: Asked) -> Iterator[str]:
    facts = asked.facts
    yield from (f"{dim.tensor}: {dim.label}" for dim in dynamic_inputs(facts))
    yield from (f"{node.label}: {why}" for node, why in data_shaped_nodes(facts))
    computed = (one for one in facts.tensors.values() if one.role is TensorRole.ACTIVATION)
    open_ = [one.name for one in computed if one.shape is not None and one.static_shape is None]
    yield from [f"open: {', '.join(open_)}"] if open_ else []


def parameters(asked: Asked) -> Iterator[str]:
    for name, uses in parameter_uses(asked.facts).items():
        for use in uses:
            axes = "" if use.channel_axis is None else f", channels along {use.channel_axis}"
            yield f"{name}: {use.role} of {use.node.label}{axes}" + (
                "" if use.block_axis is None else f", blocks along {use.block_axis}"
            )


def quantizer(asked: Asked) -> Iterator[str]:
    facts = asked.facts
    for name in asked.words:
        node = quantizer_of(facts, name)
        grid = "none" if node is None else f"{node.label} in {integer_type(facts, node) or 'no known type'}"
        yield f"{name}: {grid}, stored as {stored_behind_pairs(facts, name) or 'nothing'}"


def bounds(asked: Asked) -> Iterator[str]:
    given = {entry.name: entry.value.ends for entry in asked.encodings if hasattr(entry.value, "ends")}
    found = graph_bounds(GraphCopy(asked.proto), given)
    names = [name for name in asked.facts.tensors if name in found and name not in given]
    yield from ("{}: {:.4g} .. {:.4g}".format(name, *found[name]) for name in names)


def declared(model: ModelProto) -> Iterator[str]:
    for kind in ("input", "output", "value_info"):
        for item in getattr(model.graph, kind):
            dims = item.type.tensor_type.shape.dim
            yield f"{kind} {item.name} " + " x ".join(str(dim.dim_value or dim.dim_param or "?") for dim in dims)
    for tensor in model.graph.initializer:
        yield f"stored {tensor.name} {numpy_helper.to_array(tensor).tolist()}"


def looked_up(asked: Asked) -> Iterator[str]:
    graph = GraphCopy(asked.proto)
    for name in asked.words:
        maker, reader, value = graph.maker(name), graph.only_reader(name), graph.array(name)
        words = [f"{name}: {graph.dtype(name) or '?'} {graph.shape(name)}"]
        words += [f"made by {label(maker)}"] if maker else []
        words += [f"read by {', '.join(map(label, graph.readers(name)))}"] if graph.readers(name) else []
        words += [f"at {', '.join(str(place) for _, place in graph.uses(name))}"] if graph.uses(name) else []
        words += [f"only by {label(reader)}"] if reader else []
        words += [f"a copy of {graph.origin(name)}"] if graph.origin(name) != name else []
        words += [f"stored {value.tolist()} ({graph.scalar(name)})"] if value is not None else []
        yield ", ".join([*words, *(["static"] if name in graph.static() else []), f"next {graph.fresh(name)}"])


def pruned(asked: Asked) -> Iterator[str]:
    graph = GraphCopy(asked.proto)
    graph.prune()
    made = graph.model.graph
    yield f"pruned: {' '.join(sorted(graph.tensor_names))}, stored {' '.join(one.name for one in made.initializer)}"
    yield from (f"told of {item.name}" for item in made.value_info)


def pinned(asked: Asked) -> Iterator[str]:
    """Sizes by ``=``, values by ``:``."""
    values = {name: int(value) for word in asked.words for name, colon, value in [word.partition(":")] if colon}
    made = pin_shapes(asked.proto, sizes_of(asked), values)
    yield from declared(made)
    yield from (f"{tensor.name} is {dtype_name(tensor.data_type)}" for tensor in made.graph.initializer)


def shapes(asked: Asked) -> Iterator[str]:
    found = infer(asked.proto)
    yield from (f"{name}: {dtype or '?'} {shape}" for name, (dtype, shape) in sorted(found.types.items()))
    yield from [f"problem: {found.problem}"] * bool(found.problem) + [f"below: {found.negative}"] * bool(found.negative)


def empty(asked: Asked) -> Iterator[str]:
    asked.proto.domain = "somebody's"
    made = emptied(asked.proto, lambda name: f"t_{name}", lambda name: f"n_{name}")
    yield f"{made.replaced} replaced, {made.kept} kept{made.model.domain}"
    yield from declared(made.model)
    for body in (*all_graphs(made.model), *made.model.functions):
        for node in body.node:
            told = [one for one in node.attribute if not (one.HasField("t") or one.HasField("g"))]
            given = {one.name: helper.get_attribute_value(one) for one in told}
            made_by = f"{node.op_type} ({', '.join(node.input)}){given or ''}"
            yield f"{node.name or '-'}: {', '.join(node.output)} = {made_by}"
    for inner in [*all_graphs(made.model)][1:]:
        yield from (f"inside {one.name} {numpy_helper.to_array(one).tolist()}" for one in inner.initializer)


def channels_first(asked: Asked) -> Iterator[str]:
    for name in asked.words:
        asked.proto.metadata_props.add(key=f"{LAYOUT}{name}", value="nhwc")
    given = asked.facts
    made = channel_first(given)
    yield f"{' '.join(sorted(given.channel_last))}, outputs {' '.join(sorted(made.channel_last)) or 'none'}"
    yield ", ".join(f"{name} {shape_text(made.tensors[name])}" for name in (*made.inputs, *made.outputs))
    yield ", ".join(node.op_type for node in made.nodes)


def constant_weights(asked: Asked) -> Iterator[str]:
    asked.proto.ir_version = int(asked.words[0])
    kept = keep_weights_constant(asked.proto)
    yield f"{kept}, version {asked.proto.ir_version}, inputs {', '.join(item.name for item in asked.proto.graph.input)}"


def raised(asked: Asked) -> Iterator[str]:
    asked.proto.ir_version = 3
    made = raise_opset(asked.proto, int(asked.words[0]))
    sets = ", ".join(f"{entry.domain or 'onnx'} {entry.version}" for entry in made.opset_import)
    yield f"{sets}, version {made.ir_version}: {', '.join(node.op_type for node in made.graph.node)}"


QUESTIONS: Mapping[str, Callable[[Asked], Iterator[str]]] = {
    "blocks": lambda asked: map(block_text, find_blocks(asked.facts)),
    "bounds": bounds,
    "changed": lambda asked: iter(changed_operators(asked.proto, int(asked.words[0]))),
    "channels-first": channels_first,
    "choices": lambda asked: (f"{name} = {value}" for name, value in branch_choices(asked.proto).items()),
    "constant-weights": constant_weights,
    "contradiction": lambda asked: iter(
        [contradiction(asked.proto, sizes_of(asked)).partition("op_type:")[2].partition(")")[0] or "fits"]
    ),
    "emptied": empty,
    "findings": findings,
    "fused": fused,
    "looked-up": looked_up,
    "norms": lambda asked: map(block_text, written_layer_norms(asked.facts)),
    "parameters": parameters,
    "patterns": patterns,
    "pinned": pinned,
    "pruned": pruned,
    "quantizer": quantizer,
    "raised": raised,
    "shapes": shapes,
    "sizes": sizes,
    "stale": lambda asked: iter([str(has_stale_shapes(asked.proto))]),
    "tensors": tensors,
}

test_answers = answers_of(Path(__file__).with_name("graphs.txt"), QUESTIONS)
