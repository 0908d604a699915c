"""Where ranges come from: the size that a detector multiplies its boxes by is never made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.backward import Evidence, Inference, Origin
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.place import place
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float
from deploykit.model import load_model, wrap_proto
from deploykit.model.collect import collect_facts
from deploykit.model.range_functions import Interval
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

SIXTEEN = GridKind(bits=16, signed=False)


def entries(*floats: str, bits: int = 16, **ranges: Interval) -> EncodingSet:
    kind = GridKind(bits=bits, signed=False)
    made = {name: Encoding(name=name, value=affine_for_range(*ends, kind)) for name, ends in ranges.items()}
    made |= {name: Encoding(name=name, value=Float(dtype="float16")) for name in floats}
    return EncodingSet(version="1.0.0", entries=made)


def infer(
    model: ModelProto,
    encodings: EncodingSet,
    *wanted: str,
    evidence: Evidence | None = None,
    proven: dict[str, Interval] | None = None,
) -> Inference:
    facts = collect_facts(wrap_proto(model, path=Path("tiny.onnx")))
    return infer_entries(model, facts, encodings, wanted, evidence=evidence, proven=proven)


def decoder() -> ModelProto:
    """Boxes in 0..1 times [w, h, w, h] from int64 sizes, as RT-DETR writes it."""
    graph = TinyGraph()
    graph.input("logits", (1, 5, 4))
    graph.input("sizes", (1, 2), "int64")
    for name, value in (("second", [1]), ("times", [1, 1, 2])):
        graph.stored(name, value, "int64")
    graph.op("Sigmoid", ["logits"], "boxes")
    graph.op("Cast", ["sizes"], "cast", to=1)
    graph.op("Split", ["cast"], ["h", "w"], axis=1)
    graph.op("Concat", ["w", "h"], "wh", axis=1)
    graph.op("Unsqueeze", ["wh", "second"], "row")
    graph.op("Tile", ["row", "times"], "scale")
    graph.op("Mul", ["boxes", "scale"], "pixels")
    return graph.model("pixels")


SIZES = ("cast", "h", "w", "wh", "row", "scale")


def test_a_grid_of_640_times_another_tells_the_size() -> None:
    found = infer(decoder(), entries(logits=(-5, 5), boxes=(0, 1.02), pixels=(0, 652.8)), *SIZES)
    assert found.open == ()
    for name in SIZES:
        value = found.encodings.entries[name].value
        assert isinstance(value, Affine)
        assert float(value.maximum) == pytest.approx(640, rel=1e-3)
        assert found.concluded[name].origin is Origin.NEIGHBOURS
    assert "640 times" in found.concluded["scale"].words
    assert "inferred" in found.concluded["scale"].words


@pytest.mark.parametrize("highest", [652.3, 611.7, 0.99])
def test_a_ratio_that_is_no_size_tells_nothing(highest: float) -> None:
    """Then the sizes differ, or the two were not calibrated on the same boxes."""
    found = infer(decoder(), entries(logits=(-5, 5), boxes=(0, 1.02), pixels=(0, highest)), *SIZES)
    assert {tensor.name for tensor in found.open} == set(SIZES)
    assert all(name not in found.encodings for name in SIZES)


def test_without_the_result_the_size_stays_open_with_its_input_and_the_ways_out() -> None:
    found = infer(decoder(), entries(logits=(-5, 5), boxes=(0, 1)), *SIZES, "pixels")
    assert {tensor.name for tensor in found.open} == {*SIZES, "pixels"}
    (cast,) = [tensor for tensor in found.open if tensor.name == "cast"]
    assert cast.inputs == ("sizes",)
    assert cast.ways_out == ("--calibration DATA", "--input sizes=VALUE")
    (pixels,) = [tensor for tensor in found.open if tensor.name == "pixels"]
    assert pixels.inputs == ("sizes",), "the logits have an entry, so they are not what is missing"


def test_a_declared_input_settles_all_of_it() -> None:
    evidence = Evidence(inputs=frozenset({"sizes"}), declared={"sizes": (640, 640)})
    found = infer(decoder(), entries(logits=(-5, 5), boxes=(0, 1)), *SIZES, "pixels", evidence=evidence)
    assert found.open == ()
    assert found.concluded["cast"].interval == (640, 640)
    assert found.concluded["pixels"].interval == pytest.approx((0, 640), rel=1e-3)


def test_the_user_s_data_settles_what_hangs_on_it_alone() -> None:
    """Sizes are declared, images made up: what comes of the sizes is seen, the pixels are computed, nothing else is."""
    seen: list[str] = []

    def observe(names: object) -> dict[str, Interval]:
        assert isinstance(names, list)
        seen.extend(names)
        return dict.fromkeys(names, (480.0, 640.0))

    evidence = Evidence(inputs=frozenset({"sizes"}), observe=observe, words="2 declared samples")
    found = infer(decoder(), entries(), "boxes", "logits", "cast", evidence=evidence)
    assert seen == ["cast"]
    assert found.concluded["cast"].origin is Origin.SAMPLES
    assert found.concluded["boxes"].origin is Origin.OPERATOR
    assert [tensor.name for tensor in found.open] == ["logits"]


@pytest.mark.parametrize(
    ("bits", "seen", "kept"),
    [
        (16, (-3.0, 5.0), (-6.0, 10.0)),
        (16, (2.0, 5.0), (2.0, 10.0)),
        (16, (-3e38, -1.0), (-3.4028234663852886e38, -1.0)),
        (8, (-3.0, 5.0), (-3.0, 5.0)),
    ],
)
def test_a_grid_has_room_for_more_than_the_samples_show_where_bits_are_spare(
    bits: int, seen: Interval, kept: Interval
) -> None:
    """Held-out samples of seven transformers of the zoo went beyond those of the calibration: 1 to 14 dB were lost."""
    graph = TinyGraph()
    graph.op("Exp", [graph.op("Mul", [graph.input("x", (2,)), graph.input("z", (2,))], "y")], "e")
    evidence = Evidence(inputs=frozenset({"x", "z"}), observe=lambda names: dict.fromkeys(names, seen))
    found = infer(graph.model("e"), entries(bits=bits, e=(0.0, 1.0)), "y", evidence=evidence)
    assert found.concluded["y"].interval == kept


def test_two_sided_grids_tell_any_factor() -> None:
    graph = TinyGraph()
    graph.op("Mul", [graph.input("x", (4,)), graph.input("factor", (4,))], "y")
    found = infer(graph.model("y"), entries(x=(-1, 2), y=(-3.3, 6.6)), "factor")
    assert found.concluded["factor"].interval == pytest.approx((0, 3.3), rel=1e-3)
    one_sided = infer(graph.model("y"), entries(x=(0, 2), y=(0, 6.6)), "factor")
    assert [tensor.name for tensor in one_sided.open] == ["factor"]
    uneven = infer(graph.model("y"), entries(x=(-1, 2), y=(-6, 6.6)), "factor")
    assert [tensor.name for tensor in uneven.open] == ["factor"]


def _chain(*ops: str) -> ModelProto:
    graph = TinyGraph()
    graph.input("x", (2, 8))
    graph.stored("w", np.eye(8) - 0.5)
    graph.stored("shape", [8, 2], "int64")
    name = "x"
    for index, op in enumerate(ops):
        extra = {"MatMul": ["w"], "Reshape": ["shape"]}.get(op, [])
        name = graph.op(op, [name, *extra], f"t{index}")
    return graph.model(name)


def _times(x: Interval, y: Interval) -> Inference:
    """What is inferred of a factor that makes y of x."""
    graph = TinyGraph()
    graph.op("Mul", [graph.input("x", (4,)), graph.input("factor", (4,))], "y")
    return infer(graph.model("y"), entries(x=x, y=y), "factor")


@pytest.mark.parametrize(
    ("x", "y", "told"),
    [
        ((-0.051, 1), (-0.153, 3), True),
        ((-0.049, 1), (-0.147, 3), False),
        ((-1, 0.051), (-3, 0.153), True),
        ((-1, 0.049), (-3, 0.147), False),
    ],
)
def test_both_sides_of_zero_count_from_a_twentieth_on(x: Interval, y: Interval, told: bool) -> None:
    assert ("factor" in _times(x, y).concluded) is told


@pytest.mark.parametrize(("low", "high", "told"), [(-3.0001, 6.0002, True), (-3.02, 6, False), (-3, 6.02, False)])
def test_both_ends_agree_to_a_step(low: float, high: float, told: bool) -> None:
    """A step of the larger grid is 9 / 65535."""
    assert ("factor" in _times((-1, 2), (low, high)).concluded) is told


@pytest.mark.parametrize(("least", "told"), [(1.0, True), (0.99, False), (-1.0, False)])
def test_a_divisor_says_enough_where_it_spreads_by_256_at_most(least: float, told: bool) -> None:
    graph = TinyGraph()
    graph.op("Mul", [graph.input("x", (2,)), graph.stored("by", [least, 256.0])], "y")
    found = infer(graph.model("y"), entries(y=(-512, 256)), "x")
    assert ("x" in found.concluded) is told
    if told:
        assert found.concluded["x"].interval == pytest.approx((-512, 256), rel=1e-3)


@each_row(
    ("op", "first", "expected"),
    [
        ("Add", True, (-5, -1)),
        ("Add", False, (-5, -1)),
        ("Sub", True, (-1, 3)),
        ("Sub", False, (1, 5)),
        ("Div", True, (-6, 2)),
        ("Mul", True, (-1.5, 0.5)),
        ("Mul", False, (-1.5, 0.5)),
    ],
)
def test_what_a_result_leaves_to_an_operand(op: str, first: bool, expected: Interval) -> None:
    """The result lies in -3 to 1, the other operand is 2."""
    graph = TinyGraph()
    graph.input("x", (4,))
    graph.stored("two", 2.0)
    graph.op(op, ["x", "two"] if first else ["two", "x"], "y")
    found = infer(graph.model("y"), entries(y=(-3, 1)), "x")
    assert found.concluded["x"].interval == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("mask", "told"), [(-0.9e6, True), (-1.1e6, False)])
def test_a_range_beyond_a_million_is_a_mask(mask: float, told: bool) -> None:
    graph = TinyGraph()
    graph.op("Add", [graph.input("scores", (4,)), graph.input("mask", (4,))], "masked")
    found = infer(graph.model("masked"), entries(mask=(mask, 0), masked=(-5, 5)), "scores")
    assert ("scores" in found.concluded) is told


def test_bounded_operators_need_nothing() -> None:
    for op, ends in {"Sigmoid": (0, 1), "Tanh": (-1, 1), "Softmax": (0, 1)}.items():
        found = infer(_chain(op), entries(), "t0")
        assert found.concluded["t0"].interval == ends
        assert found.concluded["t0"].origin is Origin.OPERATOR


def test_moved_values_keep_the_very_grid() -> None:
    encodings = entries(x=(-1.234, 5.678))
    found = infer(_chain("Reshape", "Relu"), encodings, "t0")
    assert found.encodings.entries["t0"].value is encodings.entries["x"].value
    back = entries(t1=(0, 3))
    found = infer(_chain("Reshape", "Relu"), back, "t0", "x")
    assert found.encodings.entries["x"].value is back.entries["t1"].value
    assert "clamped" in found.concluded["t0"].words


def test_what_one_reader_clamps_another_may_need() -> None:
    graph = TinyGraph()
    graph.input("x", (2, 8))
    graph.stored("shape", [8, 2], "int64")
    graph.op("Relu", [graph.op("Reshape", ["x", "shape"], "r")], "y")
    graph.op("Exp", ["x"], "e")
    found = infer(graph.model("y", "e"), entries(y=(0, 3), e=(0, 90)), "r", "x")
    assert found.concluded["r"].partial
    assert [tensor.name for tensor in found.open] == ["x"]


def test_sums_are_bounded_by_weights_only_where_bits_are_spare() -> None:
    model = _chain("MatMul", "Relu", "MatMul")
    wide = infer(model, entries(x=(-1, 1), t1=(0, 1)), "t2")
    assert wide.concluded["t2"].interval == pytest.approx((-3.5, 0.5))
    assert wide.concluded["t2"].words.startswith("at most")
    narrow = infer(model, entries(x=(-1, 1), t1=(0, 1), bits=8), "t2")
    assert [tensor.name for tensor in narrow.open] == ["t2"]


def test_a_quotient_by_what_nears_zero_is_no_range() -> None:
    graph = TinyGraph()
    graph.op("Div", [graph.input("x", (4,)), graph.input("z", (4,))], "y")
    near = infer(graph.model("y"), entries(x=(0, 1), z=(0, 1)), "y")
    assert [tensor.name for tensor in near.open] == ["y"]


@pytest.mark.parametrize(("least", "told"), [(2.0, True), (-2.0, False), (0.0, False), (1e-9, False)])
def test_a_quotient_by_what_stays_away_from_zero_is_one(least: float, told: bool) -> None:
    graph = TinyGraph()
    graph.op("Div", [graph.input("x", (2,)), graph.stored("by", [least, 4.0])], "y")
    found = infer(graph.model("y"), entries(x=(0, 1)), "y")
    assert ("y" in found.concluded) is told
    if told:
        assert found.concluded["y"].interval == pytest.approx((0, 0.5))


def test_beside_a_mask_arithmetic_says_nothing() -> None:
    graph = TinyGraph()
    graph.op("Add", [graph.input("scores", (4,)), graph.input("mask", (4,))], "masked")
    graph.op("Softmax", ["masked"], "y")
    far = infer(graph.model("y"), entries(mask=(-3.4e38, 0), masked=(-3.4e38, 5)), "scores")
    assert [tensor.name for tensor in far.open] == ["scores"]
    near = infer(graph.model("y"), entries(mask=(-100, 0), masked=(-105, 5)), "scores")
    assert near.concluded["scores"].interval == pytest.approx((-105, 105), abs=0.1)


def test_constants_proofs_and_kinds() -> None:
    graph = TinyGraph()
    graph.input("x", (3,))
    graph.stored("c", [-2, 0.5, 1])
    graph.op("Mul", ["x", "c"], "y")
    encodings = entries("c", x=(-1, 1))
    found = infer(graph.model("y"), encodings, "c", "y", proven={"y": (-0.25, 0.5)})
    assert found.concluded["c"].interval == (-2, 1)
    assert found.concluded["c"].origin is Origin.CONSTANT
    assert found.concluded["y"].interval == (-0.25, 0.5)
    assert found.encodings.entries["c"].dtype == "uint16"


def test_control_flow_hides_what_a_tensor_hangs_on() -> None:
    """What a body reads is not followed: everything counts, so that nothing made up is ever looked at."""
    from onnx import TensorProto, helper

    body = [helper.make_graph([helper.make_node("Neg", ["x"], ["o"])], name, [], [_info("o")]) for name in ("a", "b")]
    node = helper.make_node("If", ["c"], ["y"], then_branch=body[0], else_branch=body[1])
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph([node], "g", [_info("x"), flag], [_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    evidence = Evidence(inputs=frozenset({"c"}), observe=lambda names: dict.fromkeys(names, (0.0, 1.0)))
    found = infer(model, entries(), "y", evidence=evidence)
    assert "y" not in found.encodings
    assert found.open[0].inputs == ("x",)


def _info(name: str):  # type: ignore[no-untyped-def]
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


def test_every_inferred_range_holds_what_the_model_computes() -> None:
    """Forwards and backwards, on data inside the given grids."""
    graph = TinyGraph()
    graph.input("x", (2, 8))
    graph.input("z", (2, 8))
    graph.stored("w", np.linspace(-1, 1, 64).reshape(8, 8))
    graph.op("Add", ["x", "z"], "sum")
    graph.op("Mul", ["sum", "z"], "product")
    graph.op("MatMul", ["product", "w"], "mixed")
    graph.op("Relu", ["mixed"], "y")
    model = graph.model("y")
    found = infer(model, entries(x=(-1, 2), z=(0.5, 3)), "sum", "product", "mixed", "y")
    assert found.open == ()
    session = Session(model, capture=("sum", "product", "mixed", "y"))
    rng = np.random.default_rng(0)
    for _ in range(20):
        feed = {"x": rng.uniform(-1, 2, (2, 8)).astype("f4"), "z": rng.uniform(0.5, 3, (2, 8)).astype("f4")}
        for name, values in session.run(feed).items():
            low, high = found.concluded[name].interval
            assert low - 1e-3 <= values.min()
            assert values.max() <= high + 1e-3


@pytest.mark.parametrize("name", ["segformer", "distilbert"])
@each_row("first", [0, 1, 2])
def test_what_is_inferred_holds_what_aimet_saw(name: str, first: int) -> None:
    """Every third entry of a true file is taken out and inferred again, without any data."""
    folder = Path(__file__).parents[1] / "data" / "zoo" / name
    model = load_model(folder / "model.onnx")
    facts = collect_facts(model)
    whole = place(read_encodings(folder / "w8a16.v1.0.0.encodings"), facts)
    gone = [entry.name for entry in whole if not entry.is_param and not facts.tensors[entry.name].is_weight][first::3]
    rest = replace(whole, entries={n: entry for n, entry in whole.entries.items() if n not in gone})
    found = infer_entries(model.proto, facts, rest, gone)
    compared = 0
    for conclusion in found.concluded.values():
        value = whole.entries[conclusion.name].value
        assert isinstance(value, Affine)
        if not conclusion.partial:
            slack = 2 * float(value.scale)
            assert min(conclusion.low, 0) <= float(value.minimum) + slack, conclusion
            assert max(conclusion.high, 0) >= float(value.maximum) - slack, conclusion
            compared += 1
    assert compared >= len(gone) // 2


def bent(op_type: str, slopes: list[float]) -> ModelProto:
    graph = TinyGraph()
    x = graph.op("Exp", [graph.input("given", (2, 3))], "x")
    if op_type == "PRelu":
        return graph.model(graph.op(op_type, [x, graph.stored("slopes", slopes)], "y"))
    return graph.model(graph.op(op_type, [x], "y", **({"alpha": slopes[0]} if slopes else {})))


@pytest.mark.parametrize(
    ("op_type", "slopes", "low", "high"),
    [
        ("PRelu", [0.25, 0.5, 1.0], -4.0, 3.0),
        ("LeakyRelu", [0.1], -10.0, 3.0),
        ("HardSwish", [], -3.0, 3.0),
    ],
)
def test_what_an_activation_leaves_to_its_operand(op_type: str, slopes: list[float], low: float, high: float) -> None:
    made = infer(bent(op_type, slopes), entries(y=(-1.0, 3.0)), "x").concluded["x"]
    assert (made.low, made.high) == pytest.approx((low, high), rel=1e-4)


@pytest.mark.parametrize("least", [0.0, -0.2, 0.001])
def test_a_bend_that_is_nearly_flat_tells_nothing(least: float) -> None:
    assert infer(bent("PRelu", [least, 0.5, 1.0]), entries(y=(-1.0, 3.0)), "x").open
