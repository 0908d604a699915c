"""Two graphs over one file of weights, as a decoder's ``prefill`` of eight tokens and its ``decode`` of one.

Six layers and a head, weights on int4 grids of 16 rows, what moves on one grid of 16 bits: ``float`` with an encodings
file, or as ``blocks`` with stored integers and Q/DQ pairs.
"""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from text_models import text_model

BLOCK, STEP, ZERO = 16, np.float32(32 / 65535), np.uint16(32768)
SHAPES = {f"layer{n}_{part}": shape for n in range(6) for part, shape in (("up", (64, 128)), ("down", (128, 64)))}
SHAPES["head"] = (64, 32)
LAYER = """
a{0} = MatMul ({hidden}, layer{0}_up); g{0} = Sigmoid ({a}); b{0} = Mul ({a}, {g}); z{0} = Mul ({b}, half);
d{0} = MatMul ({z}, layer{0}_down); m{0} = Mul ({d}, {mask}); hidden{1} = Add ({hidden}, {m})
"""
"""With the names of what is read: every layer reads the mask, one of the inputs."""


def write_graphs(folder: Path, form: Literal["float", "blocks"]) -> None:
    """Write ``prefill.onnx``, ``decode.onnx`` and ``weights.data``; ``decoder.encodings`` beside floats."""
    rng = np.random.default_rng(0)
    integers = {name: rng.integers(-7, 8, shape) for name, shape in SHAPES.items()}
    scales = {
        name: rng.uniform(0.5, 1.5, (rows // BLOCK, columns)).astype(np.float32)
        / (9 * np.sqrt(rows)).astype(np.float32)
        for name, (rows, columns) in SHAPES.items()
    }
    prefill, decode = (_graph(length, integers, scales, form == "blocks") for length in (8, 1))
    beside: dict[str, Any] = {"save_as_external_data": True, "location": "weights.data", "size_threshold": 256}
    onnx.save(prefill, folder / "prefill.onnx", **beside)
    for stored, own in zip(prefill.graph.initializer, decode.graph.initializer, strict=True):
        own.CopyFrom(stored)
    onnx.save(decode, folder / "decode.onnx")
    if form == "float":
        names = [*(item.name for item in prefill.graph.input), *(node.output[0] for node in prefill.graph.node)]
        (folder / "decoder.encodings").write_text(_encodings(names, scales), "utf-8")


def _graph(length: int, integers: dict[str, Any], scales: dict[str, Any], blocks: bool) -> ModelProto:
    lines = [f"{name}_values = DequantizeLinear <axis = 0, block_size = {BLOCK}> ({name}, {name}_s)" for name in SHAPES]
    lines = lines if blocks else []

    def read(name: str, made: str = "") -> str:
        """The name by which a tensor is read, behind its pair where there are pairs."""
        if blocks:
            lines.append(f"{name}_q = QuantizeLinear ({made or name}, step, zero)")
            lines.append(f"{name if made else f'{name}_dq'} = DequantizeLinear ({name}_q, step, zero)")
        return f"{name}_dq" if blocks and not made else name

    names = {"hidden": read("hidden0"), "mask": read("mask")}
    for number in range(6):
        for step in LAYER.split(";"):
            line = step.strip().format(number, number + 1, **names)
            for weight in SHAPES if blocks else ():
                line = line.replace(f"{weight})", f"{weight}_values)")
            lines.append(line)
            made = line.split()[0]
            names[made.rstrip("0123456789")] = read(made)
    lines.append(f"logits{'_exact' if blocks else ''} = MatMul ({names['hidden']}, head{'_values' if blocks else ''})")
    read("logits", "logits_exact")
    given = f"float[1,{length},64] hidden0, float[1,{length},1] mask"
    model = text_model(given, " ".join(lines), f"float[1,{length},32] logits", opset=21, half=0.5, step=STEP, zero=ZERO)
    for name, whole in integers.items():
        if blocks:
            low, high = whole.reshape(-1)[::2] & 15, whole.reshape(-1)[1::2] & 15
            packed = (low | high << 4).astype(np.uint8).tobytes()
            model.graph.initializer.add(name=name, data_type=TensorProto.INT4, dims=whole.shape, raw_data=packed)
            model.graph.initializer.append(onnx.numpy_helper.from_array(scales[name], f"{name}_s"))
        else:
            values = (whole * scales[name].repeat(BLOCK, axis=0)).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def _encodings(names: list[str], scales: dict[str, Any]) -> str:
    """AIMET's layout 1.0.0: one grid for what moves, and scales per block, which it writes output by output."""
    moving = {"enc_type": "PER_TENSOR", "dtype": "INT", "bw": 16, "is_sym": False, "scale": [float(STEP)]}
    params: list[dict[str, Any]] = [{"name": "half", **moving, "scale": [0.5 / 65535], "offset": [0]}]
    for name, per_block in scales.items():
        flat = per_block.T.reshape(-1).astype(np.float64).tolist()
        grid = {"bw": 4, "is_sym": True, "block_size": BLOCK, "scale": flat, "offset": [-8.0] * len(flat)}
        params.append({"name": name, "enc_type": "PER_BLOCK", "dtype": "INT", **grid})
    activations = [{"name": name, **moving, "offset": [-int(ZERO)]} for name in names]
    return json.dumps({"version": "1.0.0", "activation_encodings": activations, "param_encodings": params})
