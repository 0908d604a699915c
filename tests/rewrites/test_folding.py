"""BatchNormalization folded, GELU fused, encodings completed, blocks rewritten: each proven on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.complete import complete_encodings
from deploykit.encodings.insert_qdq import dequantized, insert_qdq, quantize_constant
from deploykit.encodings.new_grids import symmetric_blocks
from deploykit.encodings.qdq import extract_qdq
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Float8, Lpbq
from deploykit.rewrites.contract import load_transform
from deploykit_ort_qnn.forms.blocks import blocks_to_matmul
from tables import each_row
from text_models import text_model

AIMET = Path(__file__).parents[1] / "data" / "aimet"


def outputs(model: onnx.ModelProto, feed: dict[str, Any]) -> list[Any]:
    return list(Session(model).run(feed).values())


def close(before: list[Any], after: list[Any], ulps: float | None) -> None:
    assert ulps is not None
    for wanted, got in zip(before, after, strict=True):
        np.testing.assert_allclose(got, wanted, atol=ulps * 2.0**-23 * float(np.abs(wanted).max()))


def set_of(entries: dict[str, Affine | Float], **more: Any) -> EncodingSet:
    return EncodingSet(version="2", entries={n: Encoding(name=n, value=v) for n, v in entries.items()}, **more)


def conv_bn(gamma: Any, *, bias: bool = False, made: str = "y", groups: int = 0, added: Any = None) -> onnx.ModelProto:
    """``groups`` are those of a ConvTranspose, 0 makes a Conv. ``added`` is what an Add behind it adds."""
    rng = np.random.default_rng(1)
    stored: dict[str, Any] = {"w": rng.normal(0, 0.3, (4, 3, 3, 3)), "gamma": np.asarray(gamma)}
    stored |= {name: rng.normal(size=4) for name in ("beta", "mean", "b")} | {"var": rng.uniform(0.5, 2, 4)}
    stored["w"] = stored["w"] if not groups else rng.normal(0, 0.3, (4, 4 // groups, 3, 3))
    layer = f"ConvTranspose <group = {groups}>" if groups else "Conv <kernel_shape = [3, 3]>"
    body = f"c = {layer} (x, w{', b' if bias else ''})"
    stored |= {} if added is None else {"added": np.asarray(added)}
    body += "" if added is None else "  a = Add (added, c)"
    body += f"  y = BatchNormalization ({'c' if added is None else 'a'}, gamma, beta, mean, var)"
    arrays: dict[str, Any] = {name: value.astype(np.float32) for name, value in stored.items()}
    return text_model(f"float[1,{4 if groups else 3},6,6] x", body, made, **arrays)


PER_CHANNEL = [[[1]], [[-2]], [[3]], [[0.5]]]


@each_row(
    ("groups", "bias", "added"),
    *((0, False, None), (0, True, None), (1, False, None), (1, True, None), (1, False, PER_CHANNEL), (0, True, [2.0])),
)
def test_a_folded_layer_computes_the_same(groups: int, bias: bool, added: Any) -> None:
    model, fold = conv_bn([0.5, 2, -1, 3], bias=bias, groups=groups, added=added), load_transform("fold-batchnorm")
    folded = fold.apply(model, None, fold.match(model)).model
    assert "BatchNormalization" not in {node.op_type for node in folded.graph.node}
    feed = {"x": np.random.default_rng(0).normal(size=(1, 4 if groups else 3, 6, 6)).astype(np.float32)}
    close(outputs(model, feed), outputs(folded, feed), 64.0)
    assert not fold.match(conv_bn([1, 2, 3, 4], groups=2)), "its channels lie in other places"
    assert not fold.match(conv_bn([1, 2, 3, 4], added=[1.0, 2, 3, 4])), "these four lie along the width"
    assert not fold.match(conv_bn([1, 2, 3, 4], made="a", added=PER_CHANNEL)), "the sum is an output"


@settings(max_examples=30, deadline=None)
@given(
    gamma=st.lists(st.floats(-3, 3).filter(lambda g: abs(g) > 1e-3), min_size=4, max_size=4),
    signed=st.booleans(),
    per_channel=st.booleans(),
    bias=st.booleans(),
)
def test_a_folded_grid_holds_its_integers(gamma: list[float], signed: bool, per_channel: bool, bias: bool) -> None:
    """Quantizing after folding gives the same as folding after quantizing, but for the one value int8 cannot mirror.

    One lopsided grid becomes a symmetric one per channel, which is as good to half a step.
    """
    model, fold = conv_bn(gamma, bias=bias), load_transform("fold-batchnorm")
    count = (4,) if per_channel else ()
    zero = np.zeros(count) if signed else np.full(count, 131.0)
    value = Affine(bits=8, signed=signed, scale=np.full(count, 0.01), zero_point=zero, axis=0 if per_channel else None)
    weights = numpy_helper.to_array(model.graph.initializer[0])
    snapped = dequantized(quantize_constant(np.clip(weights, -1.2, 1.2), value).values, value)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(snapped, "w"))
    entries = {"w": Encoding(name="w", value=value, is_param=True)}
    done = fold.apply(model, EncodingSet(version="2", entries=entries), fold.match(model))
    assert done.encodings is not None
    carried = done.encodings.entries["w"].value
    assert isinstance(carried, Affine)
    folded = numpy_helper.to_array(next(t for t in done.model.graph.initializer if t.name == "w"))
    again = dequantized(quantize_constant(folded, carried).values, carried)
    half = 0.51 * carried.scale.reshape(-1, 1, 1, 1) if not signed and not per_channel else 1e-7
    assert (np.abs(again - folded) <= half + 1e-5 * np.abs(folded)).all()


SCALES: Any = {"channel_scale": np.full((4, 1, 1, 1), 0.01), "block_scale": np.full((4, 1, 1, 1), 3.0)}
BLOCKS = Lpbq(bits=4, decompressed_bits=8, axis=0, block_axis=1, block_size=3, **SCALES)


@each_row("value", Float(dtype="float16"), Float8(dtype="float8e4m3fn", scale=np.full(4, 0.01), axis=0), BLOCKS)
def test_a_folded_weight_stays_of_its_kind(value: Any) -> None:
    model, fold = conv_bn([0.5, 2, -1, 3]), load_transform("fold-batchnorm")
    done = fold.apply(model, set_of({"w": value}), fold.match(model))
    before, after = (
        next(numpy_helper.to_array(t) for t in one.graph.initializer if t.name == "w") for one in (model, done.model)
    )
    size = np.abs(after / before).reshape(4, -1)[:, 0]
    assert done.encodings is not None
    carried: Any = done.encodings.entries["w"].value
    for name in {"scale", "channel_scale"} & set(dir(value)):
        scale = getattr(value, name)
        np.testing.assert_allclose(getattr(carried, name), scale * size.reshape(scale.shape), rtol=1e-5)
    assert type(carried) is type(value) and carried.dtype == value.dtype


@each_row("variant", "bq-w4a16", "bq-asym-w4a16", "lpbq-w4a16")
def test_blocks_as_matmul_compute_the_same(variant: str) -> None:
    extracted = extract_qdq(onnx.load(AIMET / f"mlp/{variant}.qdq.onnx"))
    encodings, changed = symmetric_blocks(extracted.encodings)
    assert bool(changed) == ("asym" in variant)
    encodings, _ = complete_encodings(extracted.model, encodings)
    found = blocks_to_matmul.match(extracted.model, encodings)
    assert len(found.sites) == 4 and not found.refusals
    done = blocks_to_matmul.apply(extracted.model, encodings, found)
    onnx.checker.check_model(done.model)
    assert not {"Gemm", "Conv"} & {node.op_type for node in done.model.graph.node}
    feed = {"hidden_states": np.random.default_rng(2).normal(size=(1, 8, 64)).astype(np.float32)}
    close(outputs(extracted.model, feed), outputs(done.model, feed), 64.0)
    # The weights keep their integers: what the grids say of them is what they were.
    assert done.encodings is not None
    for name, entry in done.encodings.entries.items():
        stored = next((t for t in done.model.graph.initializer if t.name == name), None)
        if stored is not None and entry.value.granularity in ("per-block", "lpbq"):
            array = numpy_helper.to_array(stored)
            again = dequantized(quantize_constant(array, entry.value).values, entry.value)  # type: ignore[arg-type]
            np.testing.assert_allclose(again, array, rtol=1e-5, atol=1e-7)
    made = insert_qdq(done.model, done.encodings, bias="int32")
    wanted = outputs(insert_qdq(extracted.model, encodings, bias="float").model, feed)[0]
    got = outputs(made.model, feed)[0]
    assert np.abs(got - wanted).max() < 0.01 * np.abs(wanted).max()
