"""Encodings from one format into another, and how two of them differ."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from deploykit.encodings.formats.aimet import parse_encodings, read_encodings
from deploykit.encodings.formats.conversion import Conversion, OutcomeKind, convert
from deploykit.encodings.formats.differences import EntryChange, Signedness, compare_values, describe_encodings, diff
from deploykit.encodings.place import layouts, place
from deploykit.encodings.values import Affine, EncodingSet, Float, Float8
from deploykit.model.facts import GraphFacts
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"
GraphOf = Callable[[str], GraphFacts]
VARIANTS = sorted(
    path.relative_to(AIMET).as_posix().removesuffix(".v1.0.0.encodings") for path in AIMET.rglob("*.v1.0.0.encodings")
)
OLD = [v for v in VARIANTS if (AIMET / f"{v}.v0.6.1.encodings").exists()]
BLOCKWISE = {v for v in VARIANTS if "/bq-" in v or "/lpbq-" in v}
PLAIN = [v for v in OLD if v not in BLOCKWISE]
NEW = [v for v in VARIANTS if (AIMET / f"{v}.v2.0.0.encodings").exists()]


def read(variant: str, version: str, graph_of: GraphOf | None = None) -> EncodingSet:
    encodings = read_encodings(AIMET / f"{variant}.v{version}.encodings")
    return encodings if graph_of is None else place(encodings, graph_of(variant.split("/")[0]))


def change(variant: str, version: str, to: str, graph_of: GraphOf, signedness: Signedness = "as-is") -> Conversion:
    facts = graph_of(variant.split("/")[0])
    return convert(read(variant, version, graph_of), to, layouts=layouts(facts), signedness=signedness)


def unsigned_zeros(value: Any) -> Any:
    """JSON with -0.0 as 0.0, which AIMET writes now and then."""
    if isinstance(value, dict):
        return {key: unsigned_zeros(item) for key, item in value.items()}
    if isinstance(value, list):
        return [unsigned_zeros(item) for item in value]
    return value + 0.0 if isinstance(value, float) else value


def entries(document: dict[str, Any]) -> dict[str, Any]:
    """The entries of a 1.0.0 or 2.0.0 document by name, with their section."""
    found = {}
    for section in ("activation_encodings", "param_encodings", "encodings"):
        for entry in document.get(section, ()):
            found[entry["name"]] = unsigned_zeros({**entry, "section": section})
    return found


def text_of(variant: str, version: str) -> dict[str, Any]:
    document: dict[str, Any] = unsigned_zeros(json.loads((AIMET / f"{variant}.v{version}.encodings").read_text()))
    return document


FORCED = [
    (variant, tag, signedness)
    for variant in NEW
    for tag, signedness in (("", "unsigned"), ("-actsigned", "signed"), ("-actasis", "as-is"))
    if (AIMET / f"{variant}{tag}.v2.0.0.encodings").exists()
]


@each_row("variant", *PLAIN)
def test_061_and_100_are_turned_into_aimets_own_files(variant: str, graph_of: GraphOf) -> None:
    """Back without a model too: a list of channels keeps its order in both."""
    there = change(variant, "0.6.1", "1.0.0", graph_of)
    assert there.counts["lossless"] == len(there.outcomes) > 0
    assert entries(json.loads(there.text)) == entries(text_of(variant, "1.0.0"))
    old = read(variant, "0.6.1")
    unplaced = convert(old, "1.0.0")
    assert not unplaced.of(OutcomeKind.IMPOSSIBLE)
    again = parse_encodings(json.loads(unplaced.text), where="there")
    for source in (read(variant, "1.0.0", graph_of), read(variant, "1.0.0"), again):
        back = convert(source, "0.6.1")
        assert back.counts["lossless"] == len(back.outcomes)
        assert json.loads(back.text) == text_of(variant, "0.6.1") and not diff(old, back.encodings)


@each_row(("variant", "tag", "signedness"), *FORCED)
def test_100_to_200_is_aimets_own_export(variant: str, tag: str, signedness: Signedness, graph_of: GraphOf) -> None:
    path = AIMET / f"{variant}{tag}.v2.0.0.encodings"
    result = change(variant, "1.0.0", "2.0.0", graph_of, signedness)
    ours, theirs = entries(json.loads(result.text)), entries(json.loads(path.read_text()))
    floats = {e.name for e in read(variant, "1.0.0") if isinstance(e.value, Float)}
    assert result.float_tensors == floats and result.encodings.quantizer_args is None
    assert {o.name for o in result.of(OutcomeKind.LOSSY)} >= floats
    assert not result.of(OutcomeKind.IMPOSSIBLE)
    assert ours.keys() == {e.name for e in read(variant, "1.0.0")} - floats
    if "2.31" in variant:  # that release may write an axis counted from the end
        rank = {name: fact.rank for name, fact in graph_of(variant.split("/")[0]).tensors.items()}
        theirs = {n: e | ({"axis": e["axis"] % (rank[n] or 1)} if "axis" in e else {}) for n, e in theirs.items()}
    for name, entry in ours.items():
        theirs[name].pop("y_zero_point", None) if theirs[name].get("y_zero_point") == 0 else None
        assert entry == theirs[name], name


@each_row(("variant", "tag"), *[forced[:2] for forced in FORCED])
def test_200_to_100_is_aimets_own_export(variant: str, tag: str, graph_of: GraphOf) -> None:
    result = change(variant + tag, "2.0.0", "1.0.0", graph_of)
    ours, theirs = entries(json.loads(result.text)), entries(text_of(variant, "1.0.0"))
    assert not result.of(OutcomeKind.IMPOSSIBLE)
    assert len(result.warnings) == 1 and "none were named" in result.warnings[0]
    lossy = {o.name for o in result.of(OutcomeKind.LOSSY)}
    compared = 0
    for name, entry in theirs.items():
        if entry["dtype"] == "FLOAT":
            assert name not in ours
            continue
        if name in lossy:
            assert "symmetric" in next(o.what for o in result.outcomes if o.name == name)
            if tag != "-actasis":
                ours[name].pop("is_sym"), entry.pop("is_sym")
        assert ours[name] == entry, name
        compared += 1
    assert compared or "fp16" in variant
    assert lossy <= {name for name, entry in ours.items() if entry["section"] == "activation_encodings"}


@each_row("variant", "mlp/bq-w4a16", "mlp/bq-asym-w4a16", "mlp/bq-w2a16-zpshift")
def test_blockwise_061_is_refused_without_a_size_and_to_061_it_is_lost(variant: str, graph_of: GraphOf) -> None:
    facts = graph_of("mlp")
    for to in ("1.0.0", "2.0.0"):
        result = change(variant, "0.6.1", to, graph_of)
        impossible = {o.name: o.what for o in result.of(OutcomeKind.IMPOSSIBLE)}
        layers = {"onnx::MatMul_57", "onnx::MatMul_58", "fc1.weight", "fc2.weight_t", "lm_head.weight"}
        assert impossible.keys() == layers and "block" in impossible["fc1.weight"]
        assert "fc1.weight" not in result.encodings
    # The only block size that fits is the right one.
    inferred = place(read(variant, "0.6.1"), facts, infer_blocks=True)
    result = convert(inferred, "1.0.0", layouts=layouts(facts))
    assert result.counts["lossless"] == len(result.outcomes)
    assert entries(json.loads(result.text)) == entries(text_of(variant, "1.0.0"))
    for version in ("1.0.0", "2.0.0"):
        result = change(variant, version, "0.6.1", graph_of)
        assert not result.of(OutcomeKind.IMPOSSIBLE)
        lost = {o.name: o.what for o in result.of(OutcomeKind.LOSSY)}
        assert "block size 16" in lost["onnx::MatMul_57"]
        ours, theirs = json.loads(result.text)["param_encodings"], text_of(variant, "0.6.1")["param_encodings"]
        assert all(ours[name] == items for name, items in theirs.items())


def grid(scale: float = 0.5, zero_point: float = 0.0, *, bits: int = 8, signed: bool = False) -> Affine:
    return Affine(bits=bits, signed=signed, scale=np.asarray(scale), zero_point=np.asarray(zero_point))


def channels(*scales: float, axis: int | None = 0, placed: bool = True) -> Affine:
    return Affine(
        bits=8, signed=True, scale=np.array(scales), zero_point=np.zeros(len(scales)), axis=axis, placed=placed
    )


def test_every_property_is_named_and_the_worst_of_many_scales_is_shown() -> None:
    assert compare_values(grid(), grid()) == () == compare_values(Float(dtype="float16"), Float(dtype="float16"))
    assert compare_values(grid(0.5), grid(0.25)) == (EntryChange(field="scale", first=0.5, second=0.25),)
    assert [c.field for c in compare_values(grid(), grid(bits=16, zero_point=3))] == ["dtype", "zero_point"]
    assert [c.field for c in compare_values(channels(1, 2), channels(1, 2, axis=1))] == ["axis"]
    assert [c.field for c in compare_values(channels(1, 2), channels(1, 2, 3))] == ["scale shape", "zero_point shape"]
    (change,) = compare_values(grid(), Float(dtype="float16"))
    assert str(change) == "type: uint8 per-tensor -> float16 per-tensor"
    eights = (Float8(dtype=f"float8{kind}", scale=np.asarray(1.0)) for kind in ("e5m2", "e4m3fn"))
    assert [c.field for c in compare_values(*eights)] == ["dtype"]
    (change,) = compare_values(channels(1, 2, 3), channels(1, 2.5, 5))
    assert change.field == "scale (2 of 3 differ; the most at 2)" and (change.first, change.second) == (3.0, 5.0)
    # Lists without an axis compare where their order is certain; tolerance is relative and for scales only.
    assert not compare_values(channels(1, 2, axis=None, placed=False), channels(1, 2))
    assert not compare_values(grid(1e-9), grid(1.0000001e-9), tolerance=1e-6)
    assert compare_values(grid(1e-9), grid(1.1e-9), tolerance=1e-6)
    assert compare_values(grid(zero_point=100), grid(zero_point=101), tolerance=0.5)


def test_the_description_counts_everything() -> None:
    found = describe_encodings(read_encodings(AIMET / "mlp/lpbq-w4a16.v1.0.0.encodings"), arrays=True)
    assert found["version"] == "1.0.0" and (found["counts"]["tensors"], found["counts"]["parameters"]) == (14, 5)
    assert found["counts"]["dtypes"] == {"int4": 5, "uint16": 9} and found["counts"]["kinds"]["lpbq"] == 5
    rows = {row["name"]: row for row in found["tensors"]}
    assert rows["fc1.weight"]["decompressed_bitwidth"] == 8 and rows["fc1.weight"]["block_scale"] == [6.0, 16.0]
    assert rows["logits"]["bitwidth"] == 16 and rows["logits"]["zero_point"] == [28436.0, 28436.0]
    floats = describe_encodings(read_encodings(AIMET / "mlp/wfp8a8.v2.0.0.encodings"), arrays=True)
    assert len({row["name"]: row for row in floats["tensors"]}["fc1.weight"]["values"]["scale"]) == 48
    halves = describe_encodings(read_encodings(AIMET / "detr/fp16.v1.0.0.encodings"))["tensors"][0]
    assert (halves["name"], halves["kind"], halves["bitwidth"], halves["is_param"]) == ("images", "float", 16, False)
