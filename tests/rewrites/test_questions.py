"""What each rewrite makes of small graphs, whole, in ``graphs.txt``: nodes, stored values, grids, the host's part."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import onnx.printer
from onnx import ModelProto, numpy_helper

from deploykit.encodings.values import Affine
from deploykit.model.graph import GraphCopy
from deploykit.rewrites.contract import load_transform, transform_names
from graph_questions import Asked, answers_of


def rewritten(name: str, asked: Asked) -> Iterator[str]:
    """Why it is not for a place, or what it wrote there; ``touched`` still needs a grid."""
    transform, given = load_transform(name), asked.encodings
    encodings = given if given.entries or given.float_tensors else None
    found = transform.match(asked.proto, encodings)
    yield from (f"not {', '.join(miss.nodes)}: {miss.reason}" for miss in found.refusals)
    if not found:
        yield from [f"nothing: {found.reason}"] if found.reason not in {miss.reason for miss in found.refusals} else ()
        return
    done, known = transform.apply(asked.proto, encodings, found), {*stored(asked.proto)}
    yield from done.notes
    yield from written(done.model, known)
    yield from (f"tail: {line}" for line in written(done.tail, known)) if done.tail else ()
    for entry in done.encodings or ():
        parts = (entry.value.scale, entry.value.minimum) if isinstance(entry.value, Affine) else ()
        told = " from ".join("/".join(f"{one:.5g}" for one in part.reshape(-1)) for part in parts)
        yield f"grid {entry.name}: {entry.dtype} {told}".rstrip()
    ranges = {one: f" {low:.6g} .. {high:.6g}" for one, (low, high) in done.ranges.items()}
    open_ = [f"{one}{ranges.get(one, '')}" for one in sorted(done.touched)]
    yield from [f"touched: {', '.join(open_)}"] if open_ else ()


def written(model: ModelProto, known: set[str]) -> Iterator[str]:
    """Operator set, inputs and outputs; nodes in ONNX's text form; stored values that are not ``known``."""
    graph = GraphCopy(model)
    ends = " => ".join(", ".join(item.name for item in part) for part in (model.graph.input, model.graph.output))
    yield f"{graph.opset}: {ends}"
    for node in graph.nodes:
        if node.name in node.output:
            node.ClearField("name")
        yield re.sub(r'"|: \w+(?= = )', "", onnx.printer.to_text(node).strip())
    yield from (line for line in stored(model) if line not in known)


def stored(model: ModelProto) -> Iterator[str]:
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        yield f"{tensor.name} {value.dtype}{[*value.shape]} {' '.join(f'{one:.6g}' for one in value.reshape(-1)[:9])}"


test_answers = answers_of(
    Path(__file__).with_name("graphs.txt"), {name: partial(rewritten, name) for name in transform_names()}
)
