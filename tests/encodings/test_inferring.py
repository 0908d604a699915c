"""Where ranges come from: the size that a detector multiplies its boxes by is never made up."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace
from onnx import ModelProto

from deploykit.encodings.backward import Evidence, Inference
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.infer import infer_entries
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.place import place
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float
from deploykit.findings.records import Interval
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model, wrap_proto
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


@each_row(
    ("bits", "seen", "kept"),
    (16, (-3.0, 5.0), (-6.0, 10.0)),
    (16, (2.0, 5.0), (2.0, 10.0)),
    (16, (-3e38, -1.0), (-3.4028234663852886e38, -1.0)),
    (16, (1.0, 3e38), (1.0, 3.4028234663852886e38)),
    (8, (-3.0, 5.0), (-3.0, 5.0)),
)
def test_a_grid_has_room_for_more_than_samples_show_at_spare_bits(bits: int, seen: Interval, kept: Interval) -> None:
    """Held-out samples of seven transformers of the zoo went beyond those of the calibration: 1 to 14 dB were lost."""
    model = text_model("float[2] x, float[2] z", "y = Mul (x, z)  e = Exp (y)", "e")
    evidence = Evidence(inputs=frozenset({"x", "z"}), observe=lambda names: dict.fromkeys(names, seen))
    given = entries(bits=bits, e=(0.0, 1.0), x=(-9.0, 9.0), z=(-9.0, 9.0))  # a product of these goes to 81
    found = infer(model, given, "y", evidence=evidence).concluded["y"]
    more = ", and as much again" if bits == 16 else ""
    assert (found.interval, found.why) == (kept, f"seen on the calibration data{more}")


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
