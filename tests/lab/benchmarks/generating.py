"""Makes the models and files that are measured, always the same: ``python generating.py KIND FOLDER NUMBER``."""

from __future__ import annotations

import json
import math
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

__all__ = ["blocks", "chain", "detector", "entries", "sampled", "sparse", "stored"]

WIDTH = 266
"""Rows and columns of the weights of a chain: 5,000 nodes are 707 MB of float32."""

DETECTOR = Path(__file__).parents[2] / "data" / "zoo" / "rt_detr_v2.zip"


def sampled(folder: Path, samples: int) -> None:
    """A short chain with so many samples."""
    chain(folder, 40, samples=samples)


def chain(folder: Path, nodes: int, *, samples: int = 4) -> None:
    """``nodes`` nodes, MatMul and Relu in turn, external data, and encodings (w8a16) of every tensor.

    The weights are orthogonal up to a factor that makes up for what Relu takes, so that values keep their size.
    """
    pairs, rng = nodes // 2, np.random.default_rng(0)
    square, _ = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))
    made, made_nodes = _External(folder / "model.data"), []
    for i in range(pairs):
        mixed = square[rng.permutation(WIDTH)] * np.sqrt(2.0)
        made.add(f"w{i}", mixed.astype(np.float32))
        made_nodes += [
            helper.make_node("MatMul", [f"r{i}", f"w{i}"], [f"m{i}"], name=f"product{i}"),
            helper.make_node("Relu", [f"m{i}"], [f"r{i + 1}"], name=f"relu{i}"),
        ]
    made.save(folder / "model.onnx", made_nodes, "r0", f"r{pairs}", WIDTH)
    moving = [f"r{i}" for i in range(pairs + 1)] + [f"m{i}" for i in range(pairs)]
    weights = [_entry(f"w{i}", 8, [2.0 / 127] * WIDTH) for i in range(pairs)]
    _write_encodings(folder / "model.encodings", [_entry(name, 16, [1 / 1024]) for name in moving], weights)
    np.savez(folder / "samples.npz", r0=rng.standard_normal((samples, 1, WIDTH)).astype(np.float32))


def stored(folder: Path, mebibytes: int) -> None:
    """A model of that much external data: MatMuls of 64 MiB each, all of one matrix; encodings and one sample."""
    rng, width, count = np.random.default_rng(0), 4096, max(1, mebibytes // 64)
    made, nodes = _External(folder / "model.data"), []
    # Rows of about one: what is multiplied keeps its size.
    matrix = rng.standard_normal((width, width), dtype=np.float32) / np.float32(width**0.5)
    for i in range(count):
        made.add(f"w{i}", matrix)
        nodes.append(helper.make_node("MatMul", [f"r{i}", f"w{i}"], [f"r{i + 1}"], name=f"product{i}"))
    made.save(folder / "model.onnx", nodes, "r0", f"r{count}", width)
    moving = [_entry(f"r{i}", 16, [1 / 1024]) for i in range(count + 1)]
    step = float(np.abs(matrix).max()) / 127
    weights = [_entry(f"w{i}", 8, [step] * width) for i in range(count)]
    _write_encodings(folder / "model.encodings", moving, weights)
    np.savez(folder / "samples.npz", r0=rng.standard_normal((1, 1, width), dtype=np.float32))


def sparse(folder: Path, mebibytes: int) -> None:
    """The same of that much, all zeros in a file with a hole: no disk is taken, and every byte is read all the same."""
    width, count = 4096, max(1, mebibytes // 64)
    made, nodes = _External(folder / "model.data"), []
    for i in range(count):
        made.skip(f"w{i}", (width, width))
        nodes.append(helper.make_node("MatMul", [f"r{i}", f"w{i}"], [f"r{i + 1}"], name=f"product{i}"))
    made.save(folder / "model.onnx", nodes, "r0", f"r{count}", width)


def entries(folder: Path, count: int) -> None:
    """The same encodings in all three layouts."""
    names = [f"/model/layer.{i // 10}/operator{i}/output_0" for i in range(count)]
    scales = [1e-3 + i * 1e-7 for i in range(count)]
    moving = [_entry(name, 16, [scale]) for name, scale in zip(names, scales, strict=True)]
    _write_encodings(folder / "1.0.0.encodings", moving, [])
    old = {name: [_old_item(scale)] for name, scale in zip(names, scales, strict=True)}
    _write(folder / "0.6.1.encodings", {"version": "0.6.1", "activation_encodings": old, "param_encodings": {}})
    new = [
        {"name": name, "output_dtype": "uint16", "y_scale": scale, "y_zero_point": 32768}
        for name, scale in zip(names, scales, strict=True)
    ]
    _write(folder / "2.0.0.encodings", {"version": "2.0.0", "encodings": new})


def detector(folder: Path, samples: int) -> None:
    """RT-DETRv2 of the zoo with its encodings and so many of its samples."""
    with zipfile.ZipFile(DETECTOR) as archive:
        archive.extractall(folder)
    with np.load(folder / "calibration.npz") as calibration:
        np.savez(folder / "samples.npz", **{name: calibration[name][:samples] for name in calibration.files})


def blocks(folder: Path, layers: int) -> None:
    """A float and an int4-in-blocks model of MatMuls of 4096 x 4096, for LPBQ."""
    rng, width, block = np.random.default_rng(0), 4096, 32
    made, nodes, name = _External(folder / "model.data"), [], "x"
    made.add("s", np.asarray(0.01, np.float32))
    made.add("z", np.asarray(128, np.uint8))
    for i in range(layers):
        made.add(f"ws{i}", rng.uniform(0.01, 0.1, (width // block, width)).astype(np.float32))
        made.add(
            f"w{i}", rng.integers(0, 256, (width, width // 2), np.uint8), kind=TensorProto.INT4, dims=(width, width)
        )
        nodes += [
            helper.make_node("QuantizeLinear", [name, "s", "z"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"a{i}"]),
            helper.make_node("DequantizeLinear", [f"w{i}", f"ws{i}"], [f"d{i}"], axis=0, block_size=block),
            helper.make_node("MatMul", [f"a{i}", f"d{i}"], [f"y{i}"], name=f"layer{i}"),
        ]
        name = f"y{i}"
    nodes += [
        helper.make_node("QuantizeLinear", [name, "s", "z"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "s", "z"], ["y"]),
    ]
    made.save(folder / "model.onnx", nodes, "x", "y", width, opset=21)


class _External:
    """Tensors written one after the other into one data file, so that no model is ever in memory."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._path, self._offset = path, 0
        self.tensors: list[TensorProto] = []

    def add(self, name: str, values: Any, *, kind: int = 0, dims: tuple[int, ...] | None = None) -> None:
        """Append the bytes of an array; ``kind`` and ``dims`` where NumPy has no such type."""
        data = values.tobytes()
        with self._path.open("ab") as file:
            file.write(data)
        kind = kind or helper.np_dtype_to_tensor_dtype(values.dtype)
        self._note(name, kind, values.shape if dims is None else dims, len(data))

    def skip(self, name: str, dims: tuple[int, ...]) -> None:
        """Float32 zeros that nobody writes."""
        size = 4 * math.prod(dims)
        self._path.touch()
        os.truncate(self._path, self._offset + size)
        self._note(name, TensorProto.FLOAT, dims, size)

    def _note(self, name: str, kind: int, dims: tuple[int, ...], size: int) -> None:
        tensor = TensorProto(name=name, data_type=kind, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self._path.name), ("offset", self._offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        self._offset += size
        self.tensors.append(tensor)

    def save(self, path: Path, nodes: list[Any], first: str, last: str, width: int, *, opset: int = 17) -> None:
        """Write the model that holds these tensors."""
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width]) for name in (first, last)]
        graph = helper.make_graph(nodes, "generated", ends[:1], ends[1:], self.tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        onnx.save(model, path)


def _entry(name: str, bits: int, scale: list[float]) -> dict[str, Any]:
    kind = "PER_TENSOR" if len(scale) == 1 else "PER_CHANNEL"
    offset = [-(1 << (bits - 1))] * len(scale)
    common = {"name": name, "enc_type": kind, "dtype": "INT", "bw": bits, "is_sym": len(scale) > 1}
    return {**common, "scale": scale, "offset": offset}


def _old_item(scale: float) -> dict[str, Any]:
    ends = {"min": scale * -32768, "max": scale * 32767, "scale": scale, "offset": -32768}
    return {"bitwidth": 16, "dtype": "int", "is_symmetric": "False", **ends}


def _write_encodings(path: Path, moving: list[dict[str, Any]], weights: list[dict[str, Any]]) -> None:
    _write(path, {"version": "1.0.0", "activation_encodings": moving, "param_encodings": weights})


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document), "utf-8")


_KINDS: dict[str, Callable[[Path, int], None]] = {
    "blocks": blocks,
    "chain": chain,
    "detector": detector,
    "entries": entries,
    "sampled": sampled,
    "sparse": sparse,
    "stored": stored,
}

if __name__ == "__main__":
    where = Path(sys.argv[2])
    where.mkdir(parents=True, exist_ok=True)
    _KINDS[sys.argv[1]](where, int(sys.argv[3]))
