"""What small models are drawn with, node by node, with the ends of what their inputs are made for.

A model that has a fault of its own draws it where ``faulty`` is set: what a careless tool would make of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx

from sample_models.tiny_graphs import TinyGraph

SAMPLES = 8


class Sketch(TinyGraph):
    """A graph whose inputs have ends and whose weights are random, but always the same."""

    def __init__(self, *, faulty: bool) -> None:
        super().__init__(opset=17)
        self.faulty = faulty
        self.ends: dict[str, tuple[float, float]] = {}

    def given(self, name: str, *shape: int, low: float = 0, high: float = 1, dtype: str = "float32") -> str:
        self.ends[name] = (low, high)
        return self.input(name, shape, dtype)

    def images(self, name: str = "images", high: float = 1) -> str:
        return self.given(name, 1, 3, 16, 16, high=high)

    def weight(self, name: str, *shape: int, gain: float = 1.0) -> str:
        fan = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        values = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape) * gain / np.sqrt(fan)
        return self.stored(name, values)

    def ints(self, name: str, *values: int) -> str:
        return self.stored(name, values, "int64")

    def conv(self, x: str, into: int, out: int, name: str, size: int = 3, **attributes: int) -> str:
        kernel = self.weight(f"{name}.w", out, into // attributes.get("group", 1), size, size, gain=1.6)
        bias = self.stored(f"{name}.b", np.linspace(-0.3, 0.3, out))
        return self.op("Conv", [x, kernel, bias], name, pads=[size // 2] * 4, **attributes)

    def conv_relu(self, x: str, into: int, out: int, name: str) -> str:
        return self.op("Relu", [self.conv(x, into, out, f"{name}.sum")], name)

    def linear(self, x: str, into: int, out: int, name: str) -> str:
        return self.op("MatMul", [x, self.weight(f"{name}.w", into, out, gain=1.6)], name)

    def pooled(self, x: str, name: str) -> str:
        """What corners of a map hold, as a vector of four per channel: no mean that makes all samples alike."""
        return self.op(
            "Flatten", [self.op("AveragePool", [x], f"{name}.map", kernel_shape=[8, 8], strides=[8, 8])], name
        )

    def half(self, x: str, name: str) -> str:
        """A tensor rounded to float16, as float."""
        return self.op("Cast", [self.op("Cast", [x], f"{name}.half", to=10)], name, to=1)

    def unit(self, x: str, name: str) -> str:
        """A vector over its own length, as exporters write it."""
        length = self.op("ReduceL2", [x], f"{name}.length", axes=[-1], keepdims=1)
        return self.op("Div", [x, length], name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One model: how it is drawn, and the tensor whose range is destroyed in one of the wrong ways.

    ``fault`` says in words what its own fault is, "" for none. ``said`` are inputs of which neither an encoding nor the
    graph says anything: they are declared where the others are derived.
    """

    name: str
    family: str
    draw: Callable[[Sketch], tuple[str, ...]]
    wrecked: str
    fault: str = ""
    said: tuple[str, ...] = ()
    shape: Callable[[int, dict[str, np.ndarray]], None] | None = field(default=None)

    def build(self, *, faulty: bool = False) -> tuple[onnx.ModelProto, Mapping[str, tuple[float, float]]]:
        """The model and the ends of its inputs."""
        sketch = Sketch(faulty=faulty)
        outputs = self.draw(sketch)
        return sketch.model(*outputs), sketch.ends

    def feeds(self) -> list[dict[str, np.ndarray]]:
        """What the user's own samples are: values between the ends, and whatever the model is special for."""
        model, ends = self.build()
        made = []
        for number in range(SAMPLES):
            rng = np.random.default_rng([zlib.crc32(self.name.encode()), number])
            feed = {info.name: _values(info, *ends[info.name], rng) for info in model.graph.input}
            if self.shape is not None:
                self.shape(number, feed)
            made.append(feed)
        return made


def _values(info: onnx.ValueInfoProto, low: float, high: float, rng: np.random.Generator) -> np.ndarray:
    kind = info.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    shape = [dim.dim_value for dim in kind.shape.dim]
    values = (
        rng.uniform(low, high, shape) if dtype.kind == "f" else rng.integers(int(low), int(high), shape, endpoint=True)
    )
    return np.asarray(values, dtype)


MODELS: list[Sample] = []


def entered(family: str, wrecked: str, **rest: object) -> Callable[[Callable[[Sketch], str | tuple[str, ...]]], None]:
    """Enter a drawing under its name; what it returns are the outputs."""

    def enter(draw: Callable[[Sketch], str | tuple[str, ...]]) -> None:
        def outputs(g: Sketch) -> tuple[str, ...]:
            names = draw(g)
            return (names,) if isinstance(names, str) else names

        name = draw.__name__.replace("_", "-")
        MODELS.append(Sample(name=name, family=family, draw=outputs, wrecked=wrecked, **rest))  # type: ignore[arg-type]

    return enter
