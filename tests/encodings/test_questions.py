"""Small graphs with entries, and all that is said of them."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from deploykit.encodings.complete import complete, complete_encodings, effective_entry
from deploykit.encodings.cut import chain_models, cut_alike, cut_model
from deploykit.encodings.float_sets import collect_coverage, predict_float_set, suggest_extensions
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.lpbq import lpbq_encodings
from deploykit.encodings.new_grids import symmetric_blocks, widen, with_wide_activations
from deploykit.encodings.place import GrowingSet, needed_opset
from deploykit.encodings.post_processing import find_mixing, find_post_processing, output_of_shape
from deploykit.encodings.qdq import extract_qdq, read_qdq
from deploykit.encodings.reach import collect_reach, only_masks, proven_bounds, saturates
from deploykit.encodings.segments import SegmentCosts, partition, split_model, whole_as_cut
from deploykit.encodings.values import Affine, Encoding, Lpbq
from deploykit.errors import UsageError
from deploykit.model.collect import constant_range, constant_value
from deploykit.model.graph import GraphCopy
from deploykit.model.load import wrap_proto
from deploykit.model.nodes import attributes
from deploykit.model.ranges import graph_bounds
from graph_questions import Asked, answers_of
from sample_models.finished_detectors import DETECTORS

COSTS = SegmentCosts(segment=100, changed_op=9)


def shown(entry: Encoding) -> str:
    value = entry.value
    if isinstance(value, Lpbq):
        blocks, channels = value.block_scale.ravel().tolist(), value.channel_scale.ravel().tolist()
        where = f"of {value.block_size} along {value.block_axis}"
        return f"{entry.name} {entry.dtype} blocks {blocks} {where} times {channels} along {value.axis}"
    if not isinstance(value, Affine):
        return f"{entry.name} {entry.dtype}"
    scale = "/".join(f"{number:.4g}" for number in value.scale.ravel())
    zero = "/".join(f"{number:g}" for number in sorted(set(value.zero_point.ravel())))
    words = [f"{entry.name} {entry.dtype}", scale, f"from {zero}"]
    words += ["symmetric"] if value.symmetric else []
    words += [] if value.axis is None else [f"along {value.axis}"]
    words += [] if value.block_size is None else [f"in blocks of {value.block_size} along {value.block_axis}"]
    return " ".join([*words, *(["parameter"] if entry.is_param else [])])


def listed(label: str, names: Iterable[object]) -> Iterator[str]:
    found = sorted(map(str, names))
    if found:
        yield f"{label}: {', '.join(found)}"


def inferred(asked: Asked) -> Iterator[str]:
    """Of some tensors, with what is proven of others (``a=0..1``)."""
    pairs = [word.partition("=")[::2] for word in asked.words]
    proven = {name: tuple(map(float, ends.split(".."))) for name, ends in pairs if ends}
    wanted = [name for name, ends in pairs if not ends]
    found = infer_entries(asked.proto, asked.facts, asked.encodings, wanted, proven=proven)  # type: ignore[arg-type]
    for made in found.concluded.values():
        more = [*(["copies " + made.copies] if made.copies else []), *(["wide"] if made.wide else [])]
        more += ["partial"] if made.partial else []
        told = f" ({', '.join(more)})" if more else ""
        yield f"{made.tensor}: {made.low:.4g} .. {made.high:.4g} {str(made.origin).replace('_', ' ')}: {made.why}{told}"
        yield f"    {shown(found.encodings.entries[made.tensor])}"
    for one in found.open:
        why = one.why.removeprefix("no entry, ").removesuffix(", and no neighbour tells")
        yield f"{one.tensor} is open: {why}; {', '.join(way.removeprefix('--') for way in one.ways_out)}"


def completed(asked: Asked) -> Iterator[str]:
    model, unread = asked.model, asked.words
    read = lambda name: None if name in unread else constant_value(model, name)  # noqa: E731
    made, skipped = complete(asked.encodings, asked.facts, read_values=read)
    added = [entry for entry in made if entry.name not in asked.encodings]
    yield from (f"{'bias' if getattr(entry.value, 'bits', 0) == 32 else 'copy'} {shown(entry)}" for entry in added)
    yield from (f"{name} has none: {why}" for name, why in skipped.items())


def carried(asked: Asked) -> Iterator[str]:
    found, origin = complete_encodings(asked.proto, asked.encodings)
    yield from (f"{shown(found.entries[name])}, that of {source}" for name, source in origin.items())


def behind(asked: Asked) -> Iterator[str]:
    for name in asked.words:
        entry = effective_entry(asked.encodings, asked.facts, name)
        yield f"{name}: {'nothing' if entry is None else entry.name}"


def float_set(asked: Asked) -> Iterator[str]:
    found = predict_float_set(asked.facts, asked.encodings)
    yield "the file says it" if found.explicit else "read from what is left out"
    for label in ("meant", "by_habit", "predicted", "unexpected", "missing"):
        yield from listed(label, getattr(found, label))
    yield from listed("absorbed", (f"{name} by {node}" for name, node in found.absorbed.items()))
    yield from (f"{one['tensor']} {one['direction']} at {one['node']}" for one in found.borders)


def extensions(asked: Asked) -> Iterator[str]:
    for one in suggest_extensions(asked.facts, asked.words):
        yield f"{', '.join(one['tensors'])}: {one['removed']} fewer, {', '.join(one['nodes']) or 'no node'} in float"


def reach(asked: Asked) -> Iterator[str]:
    found = collect_reach(facts := asked.facts, asked.encodings, lambda name: constant_range(asked.model, name))
    for name, one in found.items():
        more = ["at most"] * (not one.attained) + ["mask"] * only_masks(facts, name, one)
        more += ["saturates"] * saturates(facts, name)
        yield f"{name}: {one.low:.4g} .. {one.high:.4g}, because of {one.cause}" + "".join(f", {word}" for word in more)


def detector(asked: Asked) -> Iterator[str]:
    return ends(replace(asked, model=wrap_proto(DETECTORS[asked.words[0]](), path=Path("m.onnx"))))


def proven(asked: Asked) -> Iterator[str]:
    found = proven_bounds(asked.facts, asked.model, asked.encodings)
    yield from (f"{name}: {low:.4g} .. {high:.4g}" for name, (low, high) in found.items())


def regridded(asked: Asked) -> Iterator[str]:
    yield f"operator set {needed_opset(asked.encodings)}"
    growing = GrowingSet(asked.encodings)
    growing.share(*asked.words)
    for label, made in (
        ("wide", with_wide_activations(asked.encodings)),
        ("symmetric", symmetric_blocks(asked.encodings)[0]),
        ("shared", growing.encodings or asked.encodings),
    ):
        old = asked.encodings.entries
        changed = [shown(entry) for entry in made if entry is not old.get(entry.name)]
        yield from listed(label, changed + sorted(made.float_tensors - asked.encodings.float_tensors))


def low_power(asked: Asked) -> Iterator[str]:
    made, left = lpbq_encodings(asked.encodings)
    yield from (shown(entry) + (f", left: {left[entry.name]}" if entry.name in left else "") for entry in made)


def ends(asked: Asked) -> Iterator[str]:
    found = find_post_processing(facts := asked.facts, graph_bounds(GraphCopy(asked.proto)).get)
    if found is None:
        yield "none"
        return
    yield f"{found}, from {', '.join(found.starts)}, tensors {', '.join(found.tensors(facts))}"
    yield from listed("heads", (facts.nodes[index].label for index in found.heads))
    yield from (f"{hurt.harm} {hurt.node}: {', '.join(map(str, hurt.parts))}" for hurt in found.hurts)


def mixing(asked: Asked) -> Iterator[str]:
    output, axis, *span = asked.words
    found = find_mixing(asked.facts, output, int(axis))
    if found is None:
        yield "none"
        return
    parts = ", ".join(f"{name} {start}..{stop}" for name, start, stop in found.parts)
    yield f"{found.concat.label} along {found.axis}: {parts}; {found.exclusion or 'no names'}"
    if span:
        yield f"{'..'.join(span)}: {', '.join(found.part_of(*map(int, span)))}"


def widened(asked: Asked) -> Iterator[str]:
    made, names = widen(asked.facts, asked.encodings, map(int, asked.words))
    yield from (shown(made.entries[name]) for name in names)


def cut(asked: Asked) -> Iterator[str]:
    most, *words = asked.words
    floats, absorbed = ([word.lstrip("+") for word in words if word.startswith("+") is mark] for mark in (False, True))
    found = partition(asked.facts, floats, absorbed=absorbed, max_segments=int(most) or None, costs=COSTS)
    for span in found.segments:
        kind = "float" if span.is_float else "integers"
        yield f"{kind} {' '.join(map(str, span.nodes))}: {', '.join(span.inputs)} -> {', '.join(span.outputs)}"
    yield from listed("turned float", found.changed)


def step(node: NodeProto) -> str:
    domain = f"{node.domain}." if node.domain else ""
    plain = {key: value for key, value in attributes(node).items() if not hasattr(value, "node")}
    given = f"<{', '.join(f'{key} = {value}' for key, value in plain.items())}>" if plain else ""
    return f"{', '.join(node.output)} = {domain}{node.op_type}{given} {' '.join(node.input)}"


def steps(model: ModelProto) -> str:
    graph = model.graph
    given, made = (", ".join(item.name for item in items) for items in (graph.input, graph.output))
    stored = "".join(f", stored {item.name}" for item in graph.initializer)
    return f"{graph.name} {given} -> {made}: {'; '.join(map(step, graph.node))}{stored}"


def extracted(asked: Asked) -> Iterator[str]:
    made = extract_qdq(asked.proto)
    yield from map(shown, made.encodings)
    yield steps(made.model)
    yield from (f"{name} is kept: {why}" for name, why in made.kept.items())


def inserted(asked: Asked) -> Iterator[str]:
    """With ``encoded``, ``int32`` or float biases; ``other`` is the grid of a node's input, or before a tensor's."""
    bias: Any = next((word for word in asked.words if word in ("encoded", "int32")), "float")
    given = replace(asked.encodings, entries={e.name: e for e in asked.encodings if e.name != "other"})
    other: Any = getattr(asked.encodings.get("other"), "value", None)
    requantize = {(word[3:], 0): other for word in asked.words if word.startswith("re:")}
    first = {word[6:]: other for word in asked.words if word.startswith("first:")}
    signed = "signed" in asked.words
    made = insert_qdq(
        asked.proto, given, bias=bias, unsigned_activations=not signed, requantize=requantize, first=first
    )
    told = steps(made.model).partition(", stored ")[0]
    pair = r"(\S+) = (\S*)QuantizeLinear(\S*|<.*?>) (\S+) (.*?); (\S+) = \2DequantizeLinear\3 \1 \5(?=[;,]|$)"
    told = re.sub(pair, r"\1, \6 = \2Pair\3 \4 \5", told)
    listed_below = []
    for tensor in made.model.graph.initializer:  # single numbers stand where they are read
        value = f"{numpy_helper.to_array(tensor).tolist()} {TensorProto.DataType.Name(tensor.data_type)}"
        if tensor.dims or not re.search(rf" {tensor.name}\b", told):
            listed_below.append(f"{tensor.name} {value}")
        told = told if tensor.dims else re.sub(rf" {tensor.name}\b", f" {value}", told)
    yield told
    yield " ".join(f"{entry.domain or 'onnx'} {entry.version}" for entry in made.model.opset_import)
    yield from listed_below
    yield f"placed {made.placed}, stored {made.stored}, activations {sorted(made.activations)}"
    yield from (f"{name} is skipped: {why}" for name, why in made.skipped.items())


def alike(asked: Asked) -> Iterator[str]:
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in asked.proto.graph.initializer}
    try:
        for part in cut_alike([asked.proto], int(asked.words[0]), sizes)[0]:
            yield f"{steps(part.model)}, weights {' '.join(part.weights)}"
    except UsageError as error:
        yield from str(error).splitlines()


def halves(asked: Asked) -> Iterator[str]:
    parts = cut_model(asked.proto, [*map(int, asked.words)])
    yield from map(steps, (*parts, chain_models(*parts)))


def split(asked: Asked) -> Iterator[str]:
    most, *floats = asked.words
    found = partition(asked.facts, floats, max_segments=int(most) or None, costs=COSTS)
    segments = split_model(asked.proto, asked.encodings, found)
    for one in segments:
        kept = [] if one.encodings is None else [*one.encodings.entries, *sorted(one.encodings.float_tensors)]
        yield f"{one.name} {', '.join(one.inputs)} -> {', '.join(one.outputs)}, entries {' '.join(kept) or 'none'}"
        yield f"    {steps(one.model)}, nodes {' '.join(one.nodes)}, turned float {' '.join(one.changed) or 'none'}"
    whole, entries = whole_as_cut(asked.proto, asked.encodings, found, segments)
    yield f"whole: {steps(whole)}, entries {' '.join([*entries.entries, *entries.float_tensors])}"


QUESTIONS: Mapping[str, Callable[[Asked], Iterator[str]]] = {
    "alike": alike,
    "behind": behind,
    "carried": carried,
    "completed": completed,
    "coverage": lambda asked: (f"{n}: {s}" for n, s in collect_coverage(asked.facts, asked.encodings).items()),
    "cut": cut,
    "detector": detector,
    "ends": ends,
    "extensions": extensions,
    "extracted": extracted,
    "float-set": float_set,
    "grids": lambda asked: map(shown, read_qdq(asked.proto, source="m.onnx")),
    "halves": halves,
    "infer": inferred,
    "inserted": inserted,
    "lpbq": low_power,
    "mixing": mixing,
    "proven": proven,
    "reach": reach,
    "regridded": regridded,
    "output": lambda asked: iter([str(output_of_shape(asked.facts, asked.words[0], tuple(map(int, asked.words[1:]))))]),
    "split": split,
    "widen": widened,
}


test_answers = answers_of(Path(__file__).with_name("graphs.txt"), QUESTIONS)
