"""Where ranges come from: the size that a detector multiplies its boxes by is never made up."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from onnx import ModelProto

from deploykit.encodings.backward import Evidence, Inference, Origin
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.place import place
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model, wrap_proto
from deploykit.model.range_functions import Interval
from tables import each_row
from text_models import text_model


def entries(*floats: str, bits: int = 16, **ranges: Interval) -> EncodingSet:
    kind = GridKind(bits=bits, signed=False)
    made = {name: Encoding(name=name, value=affine_for_range(*ends, kind)) for name, ends in ranges.items()}
    made |= {name: Encoding(name=name, value=Float(dtype="float16")) for name in floats}
    return EncodingSet(version="1.0.0", entries=made)


def infer(model: ModelProto, encodings: EncodingSet, *wanted: str, **more: Any) -> Inference:
    facts = collect_facts(wrap_proto(model, path=Path("tiny.onnx")))
    return infer_entries(model, facts, encodings, wanted, **more)


def decoder() -> ModelProto:
    """Boxes in 0..1 times [w, h, w, h] from int64 sizes, as RT-DETR writes it."""
    return text_model(
        "float[1,5,4] logits, int64[1,2] sizes",
        "boxes = Sigmoid (logits)  cast = Cast <to = 1> (sizes)  h, w = Split <axis = 1> (cast)"
        "  wh = Concat <axis = 1> (w, h)  row = Unsqueeze (wh, second)  scale = Tile (row, times)"
        "  pixels = Mul (boxes, scale)",
        "pixels",
        second=[1],
        times=[1, 1, 2],
    )


SIZES = ("cast", "h", "w", "wh", "row", "scale")


def test_a_grid_of_640_times_another_tells_the_size() -> None:
    found = infer(decoder(), entries(logits=(-5, 5), boxes=(0, 1.02), pixels=(0, 652.8)), *SIZES)
    assert found.open == ()
    for name in SIZES:
        value = found.encodings.entries[name].value
        assert isinstance(value, Affine) and float(value.maximum) == pytest.approx(640, rel=1e-3)
        assert found.concluded[name].origin is Origin.NEIGHBOURS
    assert "640 times" in found.concluded["scale"].why and "inferred" in found.concluded["scale"].why


@each_row("highest", 652.3, 611.7, 0.99)
def test_a_ratio_that_is_no_size_tells_nothing(highest: float) -> None:
    """Then the sizes differ, or the two were not calibrated on the same boxes."""
    found = infer(decoder(), entries(logits=(-5, 5), boxes=(0, 1.02), pixels=(0, highest)), *SIZES)
    assert {one.tensor for one in found.open} == set(SIZES)
    assert all(name not in found.encodings for name in SIZES)


@each_row(
    ("bits", "seen", "kept"),
    (16, (-3.0, 5.0), (-6.0, 10.0)),
    (16, (2.0, 5.0), (2.0, 10.0)),
    (16, (-3e38, -1.0), (-3.4028234663852886e38, -1.0)),
    (8, (-3.0, 5.0), (-3.0, 5.0)),
)
def test_a_grid_has_room_for_more_than_samples_show_at_spare_bits(bits: int, seen: Interval, kept: Interval) -> None:
    """Held-out samples of seven transformers of the zoo went beyond those of the calibration: 1 to 14 dB were lost."""
    model = text_model("float[2] x, float[2] z", "y = Mul (x, z)  e = Exp (y)", "e")
    evidence = Evidence(inputs=frozenset({"x", "z"}), observe=lambda names: dict.fromkeys(names, seen))
    given = entries(bits=bits, e=(0.0, 1.0), x=(-9.0, 9.0), z=(-9.0, 9.0))  # a product of these goes to 81
    assert infer(model, given, "y", evidence=evidence).concluded["y"].interval == kept


# What neighbours tell: the graph, the entries that are given, and what is concluded of a tensor, None for nothing.
TIMES, ADDED = "y = Mul (x, f)", "y = Add (x, f)"
TOLD: list[tuple[str, dict[str, Interval], str, Interval | None]] = [
    # Grids on both sides of zero tell any factor, where both ends agree to a step; a side counts from a twentieth on.
    (TIMES, {"x": (-1, 2), "y": (-3.3, 6.6)}, "f", (0, 3.3)),
    (TIMES, {"x": (0, 2), "y": (0, 6.6)}, "f", None),
    (TIMES, {"x": (-1, 2), "y": (-6, 6.6)}, "f", None),
    (TIMES, {"x": (-0.051, 1), "y": (-0.153, 3)}, "f", (0, 3)),
    (TIMES, {"x": (-0.049, 1), "y": (-0.147, 3)}, "f", None),
    (TIMES, {"x": (-1, 0.051), "y": (-3, 0.153)}, "f", (0, 3)),
    (TIMES, {"x": (-1, 0.049), "y": (-3, 0.147)}, "f", None),
    (TIMES, {"x": (-1, 2), "y": (-3.0001, 6.0002)}, "f", (0, 3)),
    (TIMES, {"x": (-1, 2), "y": (-3.02, 6)}, "f", None),
    (TIMES, {"x": (-1, 2), "y": (-3, 6.02)}, "f", None),
    # A factor says enough where it spreads by 256 at most.
    ("y = Mul (x, one_256)", {"y": (-512, 256)}, "x", (-512, 256)),
    ("y = Mul (x, less_256)", {"y": (-512, 256)}, "x", None),
    ("y = Mul (x, minus_256)", {"y": (-512, 256)}, "x", None),
    # What a result between -3 and 1 leaves to an operand beside 2.
    ("y = Add (x, two)", {"y": (-3, 1)}, "x", (-5, -1)),
    ("y = Add (two, x)", {"y": (-3, 1)}, "x", (-5, -1)),
    ("y = Sub (x, two)", {"y": (-3, 1)}, "x", (-1, 3)),
    ("y = Sub (two, x)", {"y": (-3, 1)}, "x", (1, 5)),
    ("y = Div (x, two)", {"y": (-3, 1)}, "x", (-6, 2)),
    ("y = Mul (x, two)", {"y": (-3, 1)}, "x", (-1.5, 0.5)),
    ("y = Mul (two, x)", {"y": (-3, 1)}, "x", (-1.5, 0.5)),
    # A range beyond a million is a mask, beside which arithmetic says nothing.
    (ADDED, {"f": (-0.9e6, 0), "y": (-5, 5)}, "x", (-5, 0.9e6 + 5)),
    (ADDED, {"f": (-1.1e6, 0), "y": (-5, 5)}, "x", None),
    (f"{ADDED}  z = Softmax (y)", {"f": (-3.4e38, 0), "y": (-3.4e38, 5)}, "x", None),
    (f"{ADDED}  z = Softmax (y)", {"f": (-100, 0), "y": (-105, 5)}, "x", (-105, 105)),
    # A quotient is one by what stays away from zero.
    ("y = Div (x, f)", {"x": (0, 1), "f": (0, 1)}, "y", None),
    ("y = Div (x, two_4)", {"x": (0, 1)}, "y", (0, 0.5)),
    ("y = Div (x, minus_4)", {"x": (0, 1)}, "y", None),
    ("y = Div (x, none_4)", {"x": (0, 1)}, "y", None),
    ("y = Div (x, tiny_4)", {"x": (0, 1)}, "y", None),
    # What an activation leaves to its operand; a bend that is nearly flat tells nothing.
    ("e = Exp (x)  y = PRelu (e, slopes)", {"y": (-1, 3)}, "e", (-4, 3)),
    ("e = Exp (x)  y = LeakyRelu <alpha = 0.1> (e)", {"y": (-1, 3)}, "e", (-10, 3)),
    ("e = Exp (x)  y = HardSwish (e)", {"y": (-1, 3)}, "e", (-3, 3)),
    *((f"e = Exp (x)  y = PRelu (e, flat{n})", {"y": (-1.0, 3.0)}, "e", None) for n in range(3)),
    # Bounded operators need nothing.
    ("y = Sigmoid (x)", {}, "y", (0, 1)),
    ("y = Tanh (x)", {}, "y", (-1, 1)),
    ("y = Softmax (x)", {}, "y", (0, 1)),
]
VALUES: Mapping[str, Any] = {
    "two": 2.0,
    "slopes": [0.25, 0.5],
    **{f"flat{number}": [least, 0.5] for number, least in enumerate((0.0, -0.2, 0.001))},
    **{name: [least, 256.0] for name, least in (("one_256", 1.0), ("less_256", 0.99), ("minus_256", -1.0))},
    **{name: [least, 4.0] for name, least in (("two_4", 2.0), ("minus_4", -2.0), ("none_4", 0.0), ("tiny_4", 1e-9))},
}


@each_row(("body", "given", "asked", "expected"), *TOLD)
def test_what_neighbours_tell(body: str, given: dict[str, Any], asked: str, expected: Interval | None) -> None:
    model = text_model("float[2] x, float[2] f", body, "z" if "z =" in body else "y", **VALUES)
    found = infer(model, entries(**given), asked)
    assert [one.tensor for one in found.open] == ([] if expected else [asked])
    if expected is not None:
        assert found.concluded[asked].interval == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_constants_proofs_and_kinds() -> None:
    model = text_model("float[3] x", "y = Mul (x, c)", c=[-2.0, 0.5, 1.0])
    found = infer(model, entries("c", x=(-1, 1)), "c", "y", proven={"y": (-0.25, 0.5)})
    assert (found.concluded["c"].interval, found.concluded["c"].origin) == ((-2, 1), Origin.CONSTANT)
    assert found.concluded["y"].interval == (-0.25, 0.5) and found.encodings.entries["c"].dtype == "uint16"


def test_control_flow_hides_what_a_tensor_hangs_on() -> None:
    """What a body reads is not followed: everything counts, so that nothing made up is ever looked at."""
    branches = "then_branch = a () => (float[2] o) { o = Neg (x) }, else_branch = b () => (float[2] o) { o = Neg (x) }"
    model = text_model("float[2] x, bool c", f"y = If (c) <{branches}>")
    evidence = Evidence(inputs=frozenset({"c"}), observe=lambda names: dict.fromkeys(names, (0.0, 1.0)))
    found = infer(model, entries(), "y", evidence=evidence)
    assert "y" not in found.encodings and found.open[0].inputs == ("x",)


@each_row(("name", "first"), ("segformer", 1), ("distilbert", 0), ("distilbert", 2))
def test_what_is_inferred_holds_what_aimet_saw(name: str, first: int) -> None:
    """Every third entry of a true file is taken out and inferred again, without any data."""
    folder = Path(__file__).parents[1] / "data" / "zoo" / name
    model = load_model(folder / "model.onnx")
    facts = collect_facts(model)
    whole = place(read_encodings(folder / "w8a16.v1.0.0.encodings"), facts)
    gone = [entry.name for entry in whole if not entry.is_param and not facts.tensors[entry.name].is_weight][first::3]
    rest = replace(whole, entries={n: entry for n, entry in whole.entries.items() if n not in gone})
    certain = [made for made in infer_entries(model.proto, facts, rest, gone).concluded.values() if not made.partial]
    for made in certain:
        value = whole.entries[made.tensor].value
        assert isinstance(value, Affine)
        slack = 2 * float(value.scale)
        assert min(made.low, 0) <= float(value.minimum) + slack, made
        assert max(made.high, 0) >= float(value.maximum) - slack, made
    assert len(certain) >= len(gone) // 2


# New grids: both ends and zero are held, and a new entry looks like those around it.


def kind(bits: int, signed: bool, symmetric: bool = False) -> GridKind:
    return GridKind(bits=bits, signed=signed, symmetric=symmetric)


@each_row(
    ("ends", "of", "scale", "zero"),
    ((0, 255), kind(8, False), 1.0, 0),
    ((-55, 200), kind(8, False), 1.0, 55),
    ((100, 255), kind(8, False), 1.0, 0),
    ((0, 0), kind(8, False), 1 / 255, 0),
    ((-127, 5), kind(8, True, True), 1.0, 0),
    ((-5, 127), kind(8, False, True), 1.0, 128),
)
def test_a_range_as_a_grid(ends: Interval, of: GridKind, scale: float, zero: float) -> None:
    made = affine_for_range(*ends, of)
    assert (float(made.scale), float(made.zero_point)) == pytest.approx((scale, zero))
    assert (made.bits, made.signed, made.symmetric) == (of.bits, of.signed, of.symmetric)
    assert float(made.minimum) <= ends[0] and ends[1] <= float(made.maximum)
