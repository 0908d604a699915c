"""Block quantization to LPBQ beside ONNX Runtime's own MatMulNBits quantizer, in one run; prints ratios, not seconds.

Run it by hand: ``python tests/lab/benchmarks/lpbq.py``. It is no test: a time says nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from deploykit.encodings.lpbq_files import convert_file
from deploykit.model.weights import numpy_type

LAYERS, SHAPE, BLOCK = 4, (4096, 4096), 32
FLOAT_BYTES = LAYERS * SHAPE[0] * SHAPE[1] * 4


def block_model(path: Path) -> None:
    """Four MatMuls of 4096 x 4096 with int4 weights in blocks of 32, external data."""
    rng = np.random.default_rng(0)
    scale, zero = np.asarray(0.01, np.float32), np.asarray(128, np.uint8)
    nodes, stored = [], [numpy_helper.from_array(scale, "s"), numpy_helper.from_array(zero, "z")]
    name = "x"
    for i in range(LAYERS):
        nodes += [
            helper.make_node("QuantizeLinear", [name, "s", "z"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"a{i}"]),
            helper.make_node("DequantizeLinear", [f"w{i}", f"ws{i}"], [f"d{i}"], axis=0, block_size=BLOCK),
            helper.make_node("MatMul", [f"a{i}", f"d{i}"], [f"y{i}"], name=f"layer{i}"),
        ]
        name = f"y{i}"
        stored.append(numpy_helper.from_array(rng.integers(-8, 8, SHAPE).astype(numpy_type("int4")), f"w{i}"))
        scale = rng.uniform(0.01, 0.1, (SHAPE[0] // BLOCK, SHAPE[1])).astype(np.float32)
        stored.append(numpy_helper.from_array(scale, f"ws{i}"))
    nodes += [
        helper.make_node("QuantizeLinear", [name, "s", "z"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "s", "z"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [1, SHAPE[0]])],
        [value("y", TensorProto.FLOAT, [1, SHAPE[1]])],
        stored,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")


def float_model(path: Path) -> None:
    """The same layers in float32, for the other quantizer."""
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", [f"y{i}", f"w{i}"], [f"y{i + 1}"], name=f"layer{i}") for i in range(LAYERS)]
    stored = [numpy_helper.from_array(rng.normal(size=SHAPE).astype(np.float32), f"w{i}") for i in range(LAYERS)]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("y0", TensorProto.FLOAT, [1, SHAPE[0]])],
        [value(f"y{LAYERS}", TensorProto.FLOAT, [1, SHAPE[1]])],
        stored,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")


def timed(work: object) -> float:
    """The best of three, in seconds."""
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        work()  # type: ignore[operator]
        best = min(best, time.perf_counter() - started)
    return best


def main() -> None:
    """Print one table row per way."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        block_model(folder / "blocks.onnx")
        idle, busy = (peak_of(folder, layers) for layers in (0, LAYERS))
        kept = timed(lambda: convert_file(folder / "blocks.onnx", folder / "a.onnx", force=True))
        refined = timed(lambda: convert_file(folder / "blocks.onnx", folder / "b.onnx", refined=True, force=True))
        float_model(folder / "float.onnx")
        other = timed(lambda: nbits(folder / "float.onnx"))
    gigabytes = FLOAT_BYTES / 1e9
    print(f"LPBQ, integers kept:     {gigabytes / kept:.1f} GB/s of float weights, {other / kept:.1f} x MatMulNBits")
    print(
        f"LPBQ, integers refined:  {gigabytes / refined:.1f} GB/s of float weights, {other / refined:.1f} x MatMulNBits"
    )
    layers = 2 * FLOAT_BYTES / LAYERS / 2**20
    print(
        f"a process that converts needs {busy - idle:.0f} MiB more than one that only imports; two layers: {layers:.0f}"
    )


def peak_of(folder: Path, layers: int) -> float:
    """The largest resident set, in MiB, of a fresh process that converts (or only imports, for 0 layers)."""
    source, target = str(folder / "blocks.onnx"), str(folder / "c.onnx")
    call = f"convert_file(Path({source!r}), Path({target!r}), refined=True, force=True)" if layers else ""
    # The high-water mark of the new image: the one of getrusage begins with that of the process that forked.
    mark = "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
    imports = "from pathlib import Path\nimport onnx\nfrom deploykit.encodings.lpbq_files import convert_file"
    done = subprocess.run(
        [sys.executable, "-c", f"{imports}\n{call}\n{mark}"], capture_output=True, encoding="utf-8", check=True
    )
    return float(done.stdout) / 1024


def nbits(path: Path) -> None:
    """ONNX Runtime's quantizer of float weights to 4-bit blocks, as it comes; it needs the package onnx_ir."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    MatMulNBitsQuantizer(onnx.load(path), block_size=BLOCK, is_symmetric=True).process()


if __name__ == "__main__":
    main()
