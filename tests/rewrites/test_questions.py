"""What each rewrite makes of small graphs, whole: nodes, stored values, grids, the host's part.

``graphs.txt`` has where a rewrite is for and where it is not; in ``forms.txt`` its results are proven besides.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx.printer
from onnx import ModelProto, numpy_helper

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.values import Affine
from deploykit.flow.cure import rewrite
from deploykit.model.graph import GraphCopy
from deploykit.model.shape_inference import infer
from deploykit.rewrites.contract import load_transform, transform_names
from graph_questions import Asked, answers_of
from sample_models.feeds import random_feeds

BY_ONNX = ("raise-opset", "write-out-functions")
"""Nodes that onnx writes are not told: they are those of its version."""
SIGNED = {"x": np.array([-7, 7, -8, 8, -1, 1, 0, 50], np.int64)}


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


def proven(name: str, asked: Asked) -> Iterator[str]:
    """What it is for, and as `rewritten`; then the flow keeps it, onnx takes it, and the outputs are the same."""
    model, transform = asked.proto, load_transform(name)
    encodings = asked.encodings if asked.encodings.entries else None
    found = transform.match(model, encodings)
    yield from (f"{', '.join(site.nodes)} ({', '.join(site.tensors)}): {site.why}" for site in found.sites)
    yield from transform.apply(model, encodings, found).notes if name in BY_ONNX else rewritten(name, asked)
    feeds = [SIGNED] if name == "integer-remainder" else random_feeds(model, samples=2)
    made = rewrite(model, encodings, [name], feeds)
    assert made.kept == (name,), made.steps
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(made.model), full_check=True)
    exact, graph = transform.ulps == 0, GraphCopy(made.model)
    for feed in feeds if name != "raise-opset" else ():  # the runtime knows no such old operators
        wanted, got = Session(model).run(feed), Session(made.model).run(feed)
        for output, value in wanted.items():
            assert got[output].shape == value.shape
            np.testing.assert_allclose(got[output], value, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)
    types, left = infer(made.model).types, {node.op_type for node in graph.nodes}
    if name == "raise-opset":
        yield f"operator set {graph.opset}"
    elif name in BY_ONNX:
        yield f"without {', '.join(sorted({node.op_type for node in model.graph.node} - left))}"
    else:
        yield f"dimensions: {' '.join(str(len(types[node.output[0]][1] or ())) for node in graph.nodes)}"


test_answers, test_forms = (
    answers_of(Path(__file__).with_name(file), {name: partial(how, name) for name in transform_names()})
    for file, how in (("graphs.txt", rewritten), ("forms.txt", proven))
)
