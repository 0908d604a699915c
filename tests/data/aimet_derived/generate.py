"""Writes the fixtures next to this file: small graphs full of data movement, quantized and exported by AIMET.

Needs aimet-onnx 2.42.0. Quantizers named in DISABLED are switched off before export, so that entries can only come
from a neighbour. Every 2.0.0 file has AIMET's derived entries and int32 biases in it, the 1.0.0 file has neither.

    python generate.py [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import logging
import pathlib
import tempfile
import warnings

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

warnings.filterwarnings("ignore")

import aimet_onnx  # noqa: E402
from aimet_onnx import QuantizationSimModel  # noqa: E402
from aimet_onnx.quantsim import set_blockwise_quantization_for_weights  # noqa: E402

RNG = np.random.default_rng(5)


def floats(name, *shape, std=0.3):
    return numpy_helper.from_array(RNG.normal(0, std, shape).astype(np.float32), name)


def ints(name, *values):
    return numpy_helper.from_array(np.array(values, dtype=np.int64), name)


def model(name, inputs, outputs, nodes, stored, opset=17):
    made = [helper.make_node(op, ins, outs, name=f"/{outs[0]}/{op}", **attrs) for op, ins, outs, attrs in nodes]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    outs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    proto = helper.make_model(helper.make_graph(made, name, infos, outs, stored), opset_imports=[helper.make_opsetid("", opset)])
    proto.ir_version = 8
    proto = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def moves():
    """One op of every kind that moves data, each after a Sigmoid or before one."""
    nodes = [
        ("Sigmoid", ["x"], ["s"], {}),
        ("Reshape", ["s", "shape"], ["reshape"], {}),
        ("Transpose", ["reshape"], ["transpose"], {"perm": [0, 2, 1]}),
        ("Unsqueeze", ["transpose", "one"], ["unsqueeze"], {}),
        ("Squeeze", ["unsqueeze", "one"], ["squeeze"], {}),
        ("Expand", ["unsqueeze", "wide"], ["expand"], {}),
        ("Tile", ["squeeze", "twice"], ["tile"], {}),
        ("Slice", ["tile", "zero", "four", "one"], ["slice"], {}),
        ("Flatten", ["slice"], ["flatten"], {}),
        ("Gather", ["s", "zero"], ["gather"], {"axis": 1}),
        ("Identity", ["gather"], ["identity"], {}),
        ("Split", ["s", "halves"], ["split_a", "split_b"], {"axis": 1}),
        ("Concat", ["split_a", "split_b"], ["concat_same"], {"axis": 1}),
        ("Tanh", ["x"], ["t"], {}),
        ("Concat", ["s", "t"], ["concat_mixed"], {"axis": 1}),
        ("Pad", ["s", "pads", "low"], ["pad"], {}),
        ("Clip", ["t", "low", "high"], ["clip"], {}),
        ("Relu", ["clip"], ["relu"], {}),
        ("Max", ["s", "s"], ["max_same"], {}),
        ("Max", ["s", "t"], ["max_mixed"], {}),
        ("Where", ["mask", "s", "split_join"], ["where"], {}),
        ("Concat", ["split_b", "split_a"], ["split_join"], {"axis": 1}),
        ("MaxPool", ["s"], ["maxpool"], {"kernel_shape": [2, 2]}),
        ("ReduceMax", ["s"], ["reducemax"], {"axes": [2]}),
        ("TopK", ["s", "one"], ["topk", "topk_index"], {}),
        ("DepthToSpace", ["s"], ["depth"], {"blocksize": 2}),
        ("AveragePool", ["s"], ["average"], {"kernel_shape": [2, 2]}),
        ("Resize", ["s", "", "scales"], ["resize"], {"mode": "nearest"}),
        ("Abs", ["s"], ["abs"], {}),
        ("Transpose", ["abs"], ["abs_t"], {"perm": [0, 2, 3, 1]}),
        ("Sqrt", ["s"], ["root"], {}),
        ("Reshape", ["root", "shape"], ["root_r"], {}),
        ("Sin", ["s"], ["sin"], {}),
        ("Reshape", ["sin", "shape"], ["sin_r1"], {}),
        ("Neg", ["sin"], ["sin_n"], {}),
        ("Exp", ["s"], ["exp"], {}),
        ("Cos", ["s"], ["cos"], {}),
        ("Concat", ["exp", "cos"], ["concat_back"], {"axis": 1}),
        ("Reshape", ["concat_back", "shape2"], ["concat_back_r"], {}),
        ("Softplus", ["x"], ["soft"], {}),
        ("Clip", ["soft", "low2", "high2"], ["soft_clip"], {}),
        ("Softsign", ["x"], ["sign"], {}),
        ("Clip", ["sign", "low3", "high3"], ["sign_clip"], {}),
        ("Neg", ["sign"], ["sign_n"], {}),
        ("Elu", ["x"], ["elu"], {}),
        ("Selu", ["x"], ["selu"], {}),
        ("Max", ["elu", "selu"], ["max_lends"], {}),
        ("Erf", ["x"], ["erf"], {}),
        ("Reshape", ["erf", "shape"], ["erf_r"], {}),
        ("Max", ["erf_r", "low4"], ["erf_max"], {}),
    ]
    # topological order of Where and its Concat
    nodes[20], nodes[21] = nodes[21], nodes[20]
    outs = [
        "flatten", "identity", "concat_same", "concat_mixed", "pad", "relu", "max_same", "max_mixed", "where",
        "maxpool", "reducemax", "topk", "depth", "average", "resize", "abs_t", "root_r", "sin_r1", "sin_n",
        "concat_back_r", "expand", "soft_clip", "sign_clip", "sign_n", "max_lends", "erf_max",
    ]
    stored = [
        ints("shape", 1, 4, 64), ints("shape2", 1, 8, 64), ints("one", 1), ints("zero", 0), ints("four", 4),
        ints("wide", 1, 3, 64, 4), ints("twice", 1, 2, 1), ints("halves", 2, 2), ints("pads", 0, 0, 1, 1, 0, 0, 1, 1),
        *(numpy_helper.from_array(np.float32(-0.25), f"low{i}") for i in ("", 2, 3, 4)),
        *(numpy_helper.from_array(np.float32(0.5), f"high{i}") for i in ("", 2, 3)),
        numpy_helper.from_array(RNG.random((1, 4, 8, 8)) > 0.5, "mask"),
        numpy_helper.from_array(np.array([1, 1, 2, 2], dtype=np.float32), "scales"),
    ]
    return model("moves", {"x": (1, 4, 8, 8)}, outs, nodes, stored)


def masked():
    """ReduceMin inside a masked Softmax, which AIMET leaves alone, and outside of one."""
    nodes = [
        ("Sigmoid", ["x"], ["s"], {}),
        ("ReduceMin", ["s", "last"], ["lowest"], {"keepdims": 1}),
        ("Add", ["lowest", "far"], ["sunk"], {}),
        ("Where", ["mask", "s", "sunk"], ["where"], {}),
        ("Softmax", ["where"], ["softmax"], {"axis": -1}),
        ("Tanh", ["x"], ["t"], {}),
        ("ReduceMin", ["t", "last"], ["lowest_t"], {"keepdims": 1}),
        ("Add", ["lowest_t", "near"], ["sunk_t"], {}),
        ("Where", ["mask", "t", "sunk_t"], ["where_t"], {}),
        ("Softmax", ["where_t"], ["softmax_t"], {"axis": -1}),
    ]
    stored = [
        ints("last", -1), numpy_helper.from_array(np.float32(-20), "far"), numpy_helper.from_array(np.float32(-2), "near"),
        numpy_helper.from_array(RNG.random((1, 4, 8, 8)) > 0.5, "mask"),
    ]
    return model("masked", {"x": (1, 4, 8, 8)}, ["softmax", "softmax_t"], nodes, stored, opset=18)


def layers():
    """Biases of every kind that AIMET derives, and some that it does not."""
    nodes = [
        ("Conv", ["x", "conv.w", "conv.b"], ["conv"], {}),
        ("Transpose", ["conv"], ["conv_t"], {"perm": [0, 1, 3, 2]}),
        ("ConvTranspose", ["conv_t", "deconv.w", "deconv.b"], ["deconv"], {}),
        ("InstanceNormalization", ["deconv", "inorm.w", "inorm.b"], ["inorm"], {}),
        ("Conv", ["inorm", "depth.w", "depth.b"], ["depth"], {"group": 4}),
        ("GlobalAveragePool", ["depth"], ["pool"], {}),
        ("Flatten", ["pool"], ["flat"], {}),
        ("Gemm", ["flat", "gemm.w", "gemm.b"], ["gemm"], {}),
        ("Gemm", ["gemm", "gemm_t.w", "gemm_t.b"], ["gemm_t"], {"transB": 1}),
        ("Transpose", ["turned.w"], ["turned.w_t"], {"perm": [1, 0]}),
        ("MatMul", ["gemm_t", "turned.w_t"], ["turned"], {}),
        ("Add", ["turned", "turned.b"], ["turned_add"], {}),
        ("LayerNormalization", ["turned_add", "ln.w", "ln.b"], ["ln"], {}),
        ("MatMul", ["ln", "plain.w"], ["plain"], {}),
        ("Add", ["plain", "wide.b"], ["plain_add"], {}),
        ("MatMul", ["plain_add", "off.w"], ["off"], {}),
        ("Add", ["off.b", "off"], ["off_add"], {}),
        ("Gemm", ["off_add", "no_bias.w"], ["out"], {}),
    ]
    stored = [
        floats("conv.w", 4, 3, 3, 3), floats("conv.b", 4), floats("deconv.w", 4, 4, 2, 2), floats("deconv.b", 4),
        floats("inorm.w", 4, std=1), floats("inorm.b", 4), floats("depth.w", 4, 1, 3, 3), floats("depth.b", 4),
        floats("gemm.w", 4, 16), floats("gemm.b", 16), floats("gemm_t.w", 16, 16), floats("gemm_t.b", 16),
        floats("turned.w", 32, 16), floats("turned.b", 32), floats("ln.w", 32, std=1), floats("ln.b", 32),
        floats("plain.w", 32, 16), floats("wide.b", 1, 16), floats("off.w", 16, 16), floats("off.b", 16),
        floats("no_bias.w", 16, 6),
    ]
    return model("layers", {"x": (1, 3, 8, 8)}, ["out"], nodes, stored)


def export(sim, out, stem):
    for version in ("1.0.0", "2.0.0"):
        with tempfile.TemporaryDirectory() as tmp:
            options = {"force_activation_as": None} if version == "2.0.0" else {}
            sim.export(tmp, "x", export_model=False, encoding_version=version, **options)
            data = json.loads((pathlib.Path(tmp) / "x.encodings").read_text())
        (out / f"{stem}.v{version}.encodings").write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")


# What is switched off so that it can only be derived, from the input or from the output of a data movement.
DISABLED = {
    "moves": ["soft", "low2", "high2", "sign", "low3", "high3", "elu", "selu", "erf", "low4"],
    "layers": ["off_add", "plain_add"],
}


def simulate(proto, shape, before=None, disabled=()):
    sim = QuantizationSimModel(onnx.load_from_string(proto.SerializeToString()), param_type="int8",
                               activation_type="int8", quant_scheme="min_max", config_file="htp_v73")
    if before:
        before(sim)
    sim.compute_encodings([{"x": RNG.normal(0, 1, shape).astype(np.float32)} for _ in range(4)])
    for name in disabled:
        sim.qc_quantize_op_dict[name].enabled = False
    return sim


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent)
    out = parser.parse_args().out
    logging.disable(logging.INFO)
    proto = moves()
    onnx.save(proto, out / "moves.onnx")
    sim = simulate(proto, (1, 4, 8, 8))
    export(sim, out, "moves")
    export(simulate(proto, (1, 4, 8, 8), disabled=DISABLED["moves"]), out, "moves-lent")
    proto = masked()
    onnx.save(proto, out / "masked.onnx")
    export(simulate(proto, (1, 4, 8, 8)), out, "masked")
    proto = layers()
    onnx.save(proto, out / "layers.onnx")
    export(simulate(proto, (1, 3, 8, 8)), out, "layers")
    export(simulate(proto, (1, 3, 8, 8), disabled=DISABLED["layers"]), out, "layers-gaps")

    def blocks(sim):
        set_blockwise_quantization_for_weights(
            sim, op_types=("Gemm", "MatMul"), bitwidth=4, symmetric=True, block_size=4)

    export(simulate(proto, (1, 3, 8, 8), before=blocks), out, "layers-blocks")
    print("aimet-onnx", aimet_onnx.__version__, "onnx", onnx.__version__)


if __name__ == "__main__":
    main()
