"""Shared by the tests of bounds: a graph in ONNX's text form, and the bounds of its output."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from deploykit.accuracy.simulate.sessions import Session
from deploykit.model.graph import GraphCopy
from deploykit.model.ranges import Interval, graph_bounds

STORED: dict[str, Any] = {
    "half": np.float32(0.5),
    "two": np.float32(2),
    "three": np.float32(3),
    "four": np.float32(4),
    "minus": np.float32(-1),
    "square": np.float32(2.5),
    "nothing": np.float32(0),
    "u8": np.uint8(3),
    "i8": np.int8(-2),
    "u16": np.uint16(0),
    "one": np.float32(1),
    "root2": np.float32(2**0.5),
    "mhalf": np.float32(-0.5),
    "last": np.array([-1]),
    "middle": np.array([1]),
    "axis1": np.int64(1),
    "axes": np.array([1, 2], np.int64),
    "w4": np.array([[1, -2], [3, 4], [0, 1], [-1, 0]], np.float32),
    "left": np.array([[1, -2, 3], [0, 0, -1]], np.float32),
    "bias2": np.array([10, 20], np.float32),
    "kernel": np.array([[[1, -2], [3, 0], [0, 4]], [[-1, 0], [0, 0], [0, 0]]], np.float32),
    "grouped": np.array([[[1, -2]], [[3, 4]], [[5, 6]], [[-7, 8]]], np.float32),
    "scale3": np.array([1, -2, 3], np.float32),
    "shift3": np.array([0, 1, 2], np.float32),
    "mean3": np.array([1, 2, 3], np.float32),
    "var3": np.array([1, 4, 9], np.float32),
    "scale4": np.array([1, 2, 3, -4], np.float32),
    "shift4": np.array([0, 0, 10, 0], np.float32),
}
SHAPES = {"x": "2,3,4", "z": "2,3,4", "g": "2,4,4", "n": "2,3,4", "m": "3,4", "r": "1,4", "p": "2,3,3"}
TYPES = {"n": "int32"}


def model_of_y(body: str, opset: int = 17) -> onnx.ModelProto:
    """A graph of the inputs and stored tensors above."""
    inputs = ", ".join(f"{TYPES.get(name, 'float')}[{shape}] {name}" for name, shape in SHAPES.items())
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => (float y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in STORED.items())
    return model


def bounds_of_y(body: str, opset: int = 17, **ends: Interval) -> Interval:
    """The bounds of ``y`` from those of the inputs; what nobody bounds can be anything."""
    return graph_bounds(GraphCopy(model_of_y(body, opset)), ends)["y"]


def values_of_y(body: str, **ends: Interval) -> np.ndarray:
    """What ONNX Runtime computes of random inputs within their bounds, then of ends alone."""
    session, rng, found = Session(model_of_y(body)), np.random.default_rng(0), []
    shapes = {name: tuple(map(int, shape.split(","))) for name, shape in SHAPES.items()}
    for draw in (rng.uniform, lambda low, high, shape: rng.choice((low, high), shape)):
        drawn = {name: draw(*ends.get(name, (-1, 1)), shape) for name, shape in shapes.items()}
        found.append(session.run({name: value.astype(TYPES.get(name, "f4")) for name, value in drawn.items()})["y"])
    return np.concatenate(found, axis=None)


@pytest.fixture(scope="session")
def bound() -> Callable[..., Interval]:
    """The bounds of ``y`` in a graph, from those of its inputs."""
    return bounds_of_y


@pytest.fixture(scope="session")
def computed() -> Callable[..., np.ndarray]:
    """What the runtime makes of such a graph."""
    return values_of_y


LIMITED = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from deploykit.errors import InputError
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
for path in sys.argv[1:]:
    try:
        facts = collect_facts(load_model(Path(path)))
    except InputError as error:
        print("refused:", error.what)
    else:
        print(facts.tensors[facts.outputs[0]].shape, facts.inference_problem)
"""


@pytest.fixture
def within_a_gigabyte(tmp_path: Path) -> Callable[..., list[str]]:
    """What one process of a gigabyte says of each model: its refusal, or the shape of the first output."""

    def run(*models: bytes) -> list[str]:
        paths = [tmp_path / f"m{number}.onnx" for number in range(len(models))]
        for path, model in zip(paths, models, strict=True):
            path.write_bytes(model)
        argv = [sys.executable, "-c", LIMITED, *map(str, paths)]
        done = subprocess.run(argv, capture_output=True, encoding="utf-8", check=False, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run
