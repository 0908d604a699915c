"""A decoder-only transformer of any size, as two graphs over one file of weights. It quantizes nothing by looking.

Both graphs hold static shapes: ``prefill`` reads many tokens at a time, ``decode`` one. What was read before comes
in as keys and values of every layer and the new ones go out; names are the same in both graphs. Weights of linear
layers lie on int4 grids in blocks, written one after the other, so that no model is ever in memory. Two forms have the
same values: ``float`` with an encodings file (blocks for weights, 16 bits for what moves), and ``blocks``, where the
integers are stored and Q/DQ pairs say the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, save

__all__ = ["LARGE", "TINY", "Decoder", "Form", "write_decoder"]

Form = Literal["float", "blocks"]
DATA = "weights.data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The sizes of a Llama-like decoder: RMSNorm, rotary positions, grouped queries, SwiGLU, and a head of its own."""

    layers: int
    width: int
    heads: int
    groups: int
    """Heads of keys and values."""
    inner: int
    words: int
    context: int
    prefill: int
    block: int = 64

    @property
    def head(self) -> int:
        """The width of one head."""
        return self.width // self.heads

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the linear layers of one block of the decoder."""
        narrow = self.groups * self.head
        square, up = (self.width, self.width), (self.width, self.inner)
        projections = {"q": square, "k": (self.width, narrow), "v": (self.width, narrow), "o": square}
        return {**projections, "gate": up, "up": up, "down": (self.inner, self.width)}

    @property
    def parameters(self) -> int:
        """How many numbers are learnt."""
        linear = sum(rows * columns for rows, columns in self.linears.values())
        return self.layers * (linear + 2 * self.width) + 2 * self.words * self.width + self.width


TINY = Decoder(layers=4, width=64, heads=4, groups=2, inner=128, words=96, context=32, prefill=8, block=16)
LARGE = Decoder(layers=28, width=2048, heads=16, groups=4, inner=5632, words=32000, context=512, prefill=128, block=128)
"""1.39 billion parameters."""

RANGES = {"hidden": 16.0, "normed": 8.0, "head": 8.0, "score": 16.0, "masked": 128.0, "logits": 16.0}
"""What is moved stays within these by construction: weights keep the variance, and projections shrink with depth."""


def write_decoder(decoder: Decoder, folder: Path, form: Form) -> int:
    """Write ``prefill.onnx``, ``decode.onnx``, their one data file, and encodings for the float form; its bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    store = _Store(folder / DATA)
    weights = dict(_weights(decoder, store, form))
    for name, length in (("prefill", decoder.prefill), ("decode", 1)):
        graph = _Graph(decoder=decoder, length=length, form=form, store=store)
        save(graph.model(name), folder / f"{name}.onnx")
    if form == "float":
        _write_encodings(folder / "decoder.encodings", graph.ranges, weights, decoder.block)
    return store.size


class _Store:
    """One data file and the tensors that point into it."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._path, self.size = path, 0
        self.tensors: dict[str, TensorProto] = {}

    def add(self, name: str, values: Any, *, kind: int = 0, dims: tuple[int, ...] = ()) -> None:
        """Append an array; ``kind`` and ``dims`` where NumPy has no such type."""
        data = np.ascontiguousarray(values)
        with self._path.open("ab") as file:
            data.tofile(file)
        kind = kind or helper.np_dtype_to_tensor_dtype(values.dtype)
        tensor = TensorProto(name=name, data_type=kind, dims=dims or values.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self._path.name), ("offset", self.size), ("length", data.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        self.size += data.nbytes
        self.tensors[name] = tensor


def _weights(decoder: Decoder, store: _Store, form: Form) -> Iterator[tuple[str, Any]]:
    """Write every weight; the scales per block of the linear ones, by name."""
    rng = np.random.default_rng(0)
    yield "embedding", _table(store, decoder, form, rng)
    depth = 1 / np.sqrt(2 * decoder.layers)
    for layer in range(decoder.layers):
        for part in ("attention", "mlp"):
            yield f"layers.{layer}.{part}.norm", _norm(store, f"layers.{layer}.{part}.norm", decoder, form, rng)
        for part, shape in decoder.linears.items():
            name, gain = f"layers.{layer}.{part}", depth if part in ("o", "down") else 1.0
            yield name, _linear(store, name, shape, gain, decoder.block, form, rng)
    yield "norm", _norm(store, "norm", decoder, form, rng)
    yield "head", _linear(store, "head", (decoder.width, decoder.words), 1.0, decoder.block, form, rng)


def _table(store: _Store, decoder: Decoder, form: Form, rng: np.random.Generator) -> Any:
    """Write the rows of the words, on one grid of 8 bits; its scale."""
    scale, shape = np.float32(1 / 32), (decoder.words, decoder.width)
    integers = np.clip(np.rint(32 * rng.standard_normal(shape, np.float32)), -127, 127).astype(np.int8)
    store.add("embedding", integers if form == "blocks" else integers * scale)
    if form == "blocks":
        store.add("embedding.scale", scale)
    return scale


def _norm(store: _Store, name: str, decoder: Decoder, form: Form, rng: np.random.Generator) -> Any:
    """Write the factors of a norm, on one grid of 16 bits; its scale."""
    scale = np.float32(1.2 / 65535)
    integers = rng.integers(43690, 65536, decoder.width).astype(np.uint16)
    store.add(name, integers if form == "blocks" else integers * scale)
    if form == "blocks":
        store.add(f"{name}.scale", scale)
    return scale


def _linear(
    store: _Store, name: str, shape: tuple[int, int], gain: float, block: int, form: Form, rng: np.random.Generator
) -> Any:
    """Write a weight (inputs, outputs) whose values are int4 times a scale per block of inputs; give the scales."""
    rows, columns = shape
    integers = rng.integers(-7, 8, shape, np.int8)
    spread = rng.uniform(0.5, 1.5, (rows // block, columns))
    scales = (spread * gain / (4.47 * np.sqrt(rows))).astype(np.float32)  # 4.47: the deviation of -7 .. 7 with spread
    if form == "blocks":
        low, high = integers.reshape(-1)[::2] & 15, integers.reshape(-1)[1::2] & 15
        store.add(name, (low | high << 4).astype(np.uint8), kind=TensorProto.INT4, dims=shape)
        store.add(f"{name}.scale", scales)
    else:
        values = integers.reshape(-1, block, columns).astype(np.float32)
        values *= scales[:, None]
        store.add(name, values.reshape(shape))
    return scales


@dataclass(slots=True, kw_only=True)
class _Graph:
    """One graph being built. ``ranges`` are the largest magnitudes of what moves, by name, with the lowest value."""

    decoder: Decoder
    length: int
    form: Form
    store: _Store
    nodes: list[NodeProto] = field(default_factory=list)
    small: dict[str, TensorProto] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    def model(self, name: str) -> ModelProto:
        """The whole graph as a model whose large weights are external."""
        sizes, past = self.decoder, self.decoder.context - self.length
        inputs = [helper.make_tensor_value_info("tokens", TensorProto.INT32, [1, self.length])]
        outputs = []
        rope = [1, 1, self.length, sizes.head]
        inputs += [_float("cos", rope), _float("sin", rope), _float("mask", [1, 1, self.length, sizes.context])]
        hidden = self.op("Gather", self.weight("embedding"), "tokens", "hidden.0", "hidden")
        cos, sin = self.moved("cos", "cos", (-1, 1)), self.moved("sin", "sin", (-1, 1))
        mask = self.moved("mask", "mask", (-RANGES["masked"], 0))
        for layer in range(sizes.layers):
            kept = [f"past.{what}.{layer}" for what in ("key", "value")]
            inputs += [_float(item, [1, sizes.groups, past, sizes.head]) for item in kept]
            outputs += [_float(f"new.{what}.{layer}", [1, sizes.groups, self.length, sizes.head]) for what in _KEPT]
            hidden = self.attention(layer, hidden, cos, sin, mask)
            hidden = self.mlp(layer, hidden)
        normed = self.norm("norm", hidden)
        self.linear("head", normed, "logits", "logits")
        outputs.append(_float("logits", [1, self.length, sizes.words]))
        read = {item for node in self.nodes for item in node.input}
        stored = [tensor for key, tensor in (self.store.tensors | self.small).items() if key in read]
        graph = helper.make_graph(self.nodes, name, inputs, outputs, stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def attention(self, layer: int, hidden: str, cos: str, sin: str, mask: str) -> str:
        """Grouped queries over what was kept and what is new."""
        sizes, at = self.decoder, f"layers.{layer}"
        normed = self.norm(f"{at}.attention.norm", hidden)
        heads = {}
        for part, count in (("q", sizes.heads), ("k", sizes.groups), ("v", sizes.groups)):
            flat = self.linear(f"{at}.{part}", normed, f"{at}.{part}.out", "head")
            apart = self.shaped(flat, f"{at}.{part}.apart", [1, self.length, count, sizes.head], "head")
            outs = {"q": f"{at}.q.heads", "k": f"{at}.k.heads", "v": f"new.value.{layer}"}
            heads[part] = self.op("Transpose", apart, outs[part], "head", perm=[0, 2, 1, 3])
        query = self.rotated(f"{at}.q", heads["q"], cos, sin, f"{at}.q.turned")
        key = self.rotated(f"{at}.k", heads["k"], cos, sin, f"new.key.{layer}")
        both = [self.moved(f"past.{what}.{layer}", f"past.{what}.{layer}", (-8, 8)) for what in _KEPT]
        keys = self.op("Concat", both[0], key, f"{at}.keys", "head", axis=2)
        values = self.op("Concat", both[1], heads["v"], f"{at}.values", "head", axis=2)
        ratio = sizes.heads // sizes.groups
        grouped = self.shaped(query, f"{at}.q.grouped", [1, sizes.groups, ratio * self.length, sizes.head], "head")
        across = self.op("Transpose", keys, f"{at}.keys.across", "head", perm=[0, 1, 3, 2])
        product = self.op("MatMul", grouped, across, f"{at}.product", (-128.0, 128.0))
        scaled = self.op("Mul", product, self.number(sizes.head**-0.5), f"{at}.scaled", "score")
        apart = self.shaped(scaled, f"{at}.scores", [1, sizes.heads, self.length, sizes.context], "score")
        masked = self.op("Add", apart, mask, f"{at}.masked", (-RANGES["masked"] - 16, 16.0))
        weights = self.op("Softmax", masked, f"{at}.weights", (0.0, 1.0), axis=-1)
        together = self.shaped(
            weights, f"{at}.weights.grouped", [1, sizes.groups, ratio * self.length, sizes.context], (0.0, 1.0)
        )
        mixed = self.op("MatMul", together, values, f"{at}.mixed", "head")
        parted = self.shaped(mixed, f"{at}.mixed.heads", [1, sizes.heads, self.length, sizes.head], "head")
        turned = self.op("Transpose", parted, f"{at}.mixed.tokens", "head", perm=[0, 2, 1, 3])
        flat = self.shaped(turned, f"{at}.mixed.flat", [1, self.length, sizes.width], "head")
        out = self.linear(f"{at}.o", flat, f"{at}.o.out", "normed")
        return self.op("Add", hidden, out, f"{at}.hidden", "hidden")

    def mlp(self, layer: int, hidden: str) -> str:
        """SwiGLU."""
        at = f"layers.{layer}"
        normed = self.norm(f"{at}.mlp.norm", hidden)
        gate = self.linear(f"{at}.gate", normed, f"{at}.gate.out", "normed")
        open_ = self.op("Sigmoid", gate, f"{at}.gate.open", (0.0, 1.0))
        swish = self.op("Mul", gate, open_, f"{at}.gate.swish", "normed")
        up = self.linear(f"{at}.up", normed, f"{at}.up.out", "normed")
        both = self.op("Mul", swish, up, f"{at}.both", (-32.0, 32.0))
        out = self.linear(f"{at}.down", both, f"{at}.down.out", "normed")
        return self.op("Add", hidden, out, f"hidden.{layer + 1}", "hidden")

    def norm(self, name: str, hidden: str) -> str:
        """Over the root of the mean square."""
        square = self.op("Mul", hidden, hidden, f"{name}.square", (0.0, RANGES["hidden"] ** 2))
        axes = self.whole([-1])
        mean = self.op("ReduceMean", square, axes, f"{name}.mean", (0.0, 32.0), keepdims=1)
        safe = self.op("Add", mean, self.number(1e-5), f"{name}.safe", (0.0, 32.0))
        root = self.op("Sqrt", safe, f"{name}.root", (0.0, 6.0))
        even = self.op("Div", hidden, root, f"{name}.even", "normed")
        return self.op("Mul", even, self.weight(name), f"{name}.out", "normed")

    def rotated(self, name: str, heads: str, cos: str, sin: str, out: str) -> str:
        """Rotary positions, halves turned against each other."""
        half = self.decoder.head // 2
        ends = self.whole([0]), self.whole([half]), self.whole([2 * half]), self.whole([3])
        first = self.op("Slice", heads, ends[0], ends[1], ends[3], f"{name}.first", "head")
        second = self.op("Slice", heads, ends[1], ends[2], ends[3], f"{name}.second", "head")
        back = self.op("Neg", second, f"{name}.back", "head")
        turned = self.op("Concat", back, first, f"{name}.crossed", "head", axis=3)
        straight = self.op("Mul", heads, cos, f"{name}.cos", "head")
        crossed = self.op("Mul", turned, sin, f"{name}.sin", "head")
        return self.op("Add", straight, crossed, out, "head")

    def linear(self, name: str, source: str, out: str, kind: str) -> str:
        """A product with a weight on a grid of blocks."""
        weight = self.weight(name, axis=0, block_size=self.decoder.block)
        return self.op("MatMul", source, weight, out, kind)

    def weight(self, name: str, **grid: Any) -> str:
        """A stored weight as numbers: behind a DequantizeLinear in the form of blocks."""
        if self.form == "float":
            return name
        self.add("DequantizeLinear", [name, f"{name}.scale"], f"{name}.values", **grid)
        return f"{name}.values"

    def shaped(self, source: str, out: str, shape: list[int], kind: str | tuple[float, float]) -> str:
        """The same numbers in another shape."""
        return self.op("Reshape", source, self.whole(shape), out, kind)

    def op(self, kind: str, *names: Any, **attributes: Any) -> str:
        """One node of inputs, its output, and the range of that."""
        *inputs, out, spread = names
        ends = (-RANGES[spread], RANGES[spread]) if isinstance(spread, str) else spread
        made = f"{out}.exact" if self.form == "blocks" and _is_end(out) else out
        self.add(kind, inputs, made, **attributes)
        return self.moved(made, out, ends)

    def moved(self, made: str, name: str, ends: tuple[float, float]) -> str:
        """A tensor with its grid of 16 bits: a pair of Q and DQ in the form of blocks; the name that is to be read."""
        self.ranges[name] = ends
        if self.form == "float":
            return name
        scale, zero = _grid(ends)
        names = [self.constant(f"scale {scale!r}", np.float32(scale)), self.constant(f"zero {zero}", np.uint16(zero))]
        self.add("QuantizeLinear", [made, *names], f"{name}.q")
        out = name if made != name else f"{name}.dq"
        self.add("DequantizeLinear", [f"{name}.q", *names], out)
        return out

    def add(self, kind: str, inputs: list[str], out: str, **attributes: Any) -> None:
        self.nodes.append(helper.make_node(kind, inputs, [out], name=f"{out}/{kind}", **attributes))

    def number(self, value: float) -> str:
        """A stored number, at the end of a grid of 16 bits."""
        name = f"number {value:.6g}"
        if self.form == "float":
            self.ranges.setdefault(name, (0.0, value))
            return self.constant(name, np.float32(value))
        if name in self.ranges:
            return name
        self.ranges[name] = (0.0, value)
        integer, scale = self.constant("number 65535", np.uint16(65535)), np.float32(value / 65535)
        self.add("DequantizeLinear", [integer, self.constant(f"scale {scale!r}", scale)], name)
        return name

    def whole(self, values: list[int]) -> str:
        """A stored list of whole numbers."""
        return self.constant(f"shape {values}", np.asarray(values, np.int64))

    def constant(self, name: str, value: Any) -> str:
        value = np.asarray(value)
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        self.small[name] = TensorProto(name=name, data_type=kind, dims=value.shape, raw_data=value.tobytes())
        return name


_KEPT = ("key", "value")


def _is_end(name: str) -> bool:
    return name == "logits" or name.startswith("new.")


def _float(name: str, shape: list[int]) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _grid(ends: tuple[float, float]) -> tuple[float, int]:
    low, high = ends
    scale = float(np.float32((high - low) / 65535))
    return scale, round(-low / scale)


def _write_encodings(path: Path, moving: dict[str, tuple[float, float]], weights: dict[str, Any], block: int) -> None:
    """AIMET's layout 1.0.0: one grid for what moves, and scales per block, which it writes output by output."""
    numbers = {name: ends for name, ends in moving.items() if name.startswith("number")}
    activations = [_entry(name, 16, *_grid(ends)) for name, ends in moving.items() if name not in numbers]
    params = [_entry(name, 16, *_grid(ends)) for name, ends in numbers.items()]
    for name, scales in weights.items():
        if scales.ndim:
            flat = scales.T.reshape(-1).astype(np.float64)
            grid = {"bw": 4, "is_sym": True, "offset": [-8.0] * flat.size, "scale": flat.tolist()}
            params.append({"name": name, "enc_type": "PER_BLOCK", "dtype": "INT", "block_size": block, **grid})
        else:
            params.append(
                _entry(name, 8, float(scales), 128) if name == "embedding" else _entry(name, 16, float(scales), 0)
            )
    with path.open("w", encoding="utf-8") as file:
        file.write('{"version": "1.0.0"')
        for section, rows in (("activation_encodings", activations), ("param_encodings", params)):
            file.write(f', "{section}": [')
            for number, row in enumerate(rows):  # one text for all would be as large as the float weights
                file.write((", " if number else "") + json.dumps(row))
            file.write("]")
        file.write("}")


def _entry(name: str, bits: int, scale: float, zero: int) -> dict[str, Any]:
    grid = {"bw": bits, "is_sym": bits == 8, "scale": [scale], "offset": [-zero]}
    return {"name": name, "enc_type": "PER_TENSOR", "dtype": "INT", **grid}
