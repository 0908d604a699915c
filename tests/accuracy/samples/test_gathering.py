"""Where samples come from, in which order, and what is stored is read again without a copy in memory."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import shape_inference

from deploykit.accuracy.samples import arrays
from deploykit.accuracy.samples.arrays import read_arrays, read_headers, write_arrays
from deploykit.accuracy.samples.calibration import parse_declarations, places_in, read_places, samples_of
from deploykit.accuracy.samples.domains import (
    SETS,
    VARIED,
    ValuePoint,
    generator,
    make_floats,
    make_integers,
    make_mask,
)
from deploykit.accuracy.samples.gathering import Samples, gather, record
from deploykit.accuracy.samples.inputs import InputSpec, Label, input_specs
from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float
from deploykit.errors import InputError, UsageError
from deploykit.model.collect import collect_facts, facts_of
from deploykit.model.load import load_model
from tables import each_row
from text_models import text_model

AIMET = Path(__file__).parents[2] / "data" / "aimet"


def _gather(model: onnx.ModelProto, *, inputs: tuple[str, ...] = (), **more: Any) -> Samples:
    facts = facts_of(model)
    return gather(model, facts, declared=parse_declarations(inputs, input_specs(facts)), **more)


def _detector() -> onnx.ModelProto:
    """An image, and sizes that scale boxes."""
    body = "scale = Cast<to=1>(sizes) boxes = Relu(image) y = Mul(boxes, scale)"
    return shape_inference.infer_shapes(text_model("int64[1,2] sizes, float[1,2] image", body))


def _single() -> onnx.ModelProto:
    return shape_inference.infer_shapes(text_model("float[1,3] a", "y = Relu(a)"))


def _entry(name: str, low: float, high: float, bits: int = 8) -> EncodingSet:
    value = affine_for_range(low, high, GridKind(bits=bits, signed=False))
    return EncodingSet(version="1.0.0", entries={name: Encoding(name=name, value=value)})


def test_one_arbitrary_input_makes_all_of_it_arbitrary() -> None:
    made = _gather(_detector(), encodings=_entry("image", 0, 1))
    assert {n: one.label for n, one in made.of_inputs.items()} == {"image": Label.DERIVED, "sizes": Label.ARBITRARY}
    assert (made.label, made.may_judge) == (Label.ARBITRARY, False)
    assert "Mul" in made.described_for_humans and made.feeds
    assert all((feed["sizes"] >= 1).all() for feed in made.feeds)


def test_a_declaration_makes_the_same_inputs_good_to_judge_on() -> None:
    made = _gather(_detector(), encodings=_entry("image", 0, 1), inputs=("sizes=640,480",))
    assert (made.label, made.may_judge) == (Label.DERIVED, True)
    assert made.of_inputs["sizes"].label is Label.DECLARED
    assert all(feed["sizes"].tolist() == [[640, 480]] for feed in made.feeds)
    assert made.feeds[0]["sizes"].dtype == np.int64
    assert json.loads(json.dumps(made.to_json())) == {
        "label": "derived",
        "count": len(SETS),
        "inputs": {
            "image": {"label": "derived", "why": "points of its encoding"},
            "sizes": {"label": "declared", "why": "declared as 640, 480"},
        },
    }


def test_what_is_wholly_declared_has_as_many_samples_as_differ() -> None:
    assert _gather(_detector(), inputs=("sizes=640", "image=0.5")).count == 1
    made = _gather(_detector(), inputs=("sizes=1..100", "image=-1..1"))
    assert (made.count, made.label) == (len(SETS), Label.DECLARED)
    sizes = np.concatenate([feed["sizes"] for feed in made.feeds])
    assert (sizes.min(), sizes.max()) == (1, 100)


def test_a_declared_file_is_fed_in_turn(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.array([[[1, 2]], [[3, 4]], [[5, 6]]]))
    made = _gather(_detector(), encodings=_entry("image", 0, 1), inputs=(f"sizes={tmp_path / 's.npy'}",))
    assert [feed["sizes"].ravel().tolist() for feed in made.feeds[:4]] == [[1, 2], [3, 4], [5, 6], [1, 2]]


def test_calibration_is_all_of_it_up_to_a_number_and_spread(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(300.0).reshape(100, 3))
    made = _gather(_single(), calibration=tmp_path / "x.npy")
    assert (made.label, made.count, made.available) == (Label.GIVEN, 8, 100)
    rows = [int(feed["a"][0, 0]) // 3 for feed in made.feeds]
    assert (rows[0], rows[-1]) == (0, 99) and max(np.diff(rows)) <= 15
    assert made.described_for_humans == "8 of 100 given samples"
    np.save(tmp_path / "x.npy", np.arange(9.0).reshape(3, 3))
    assert _gather(_single(), calibration=tmp_path / "x.npy").described_for_humans == "3 given samples"


def test_data_may_lack_what_is_declared_and_nothing_else(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", image=np.ones((5, 2)))
    with pytest.raises(InputError, match="'sizes'") as caught:
        _gather(_detector(), calibration=tmp_path / "x.npz")
    assert "--input" in caught.value.next
    made = _gather(_detector(), calibration=tmp_path / "x.npz", inputs=("sizes=640",))
    assert (made.label, made.count) == (Label.DECLARED, 5)


def test_a_declaration_that_the_data_contradicts_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", image=np.ones((5, 2)), sizes=np.full((5, 2), 640))
    assert _gather(_detector(), calibration=tmp_path / "x.npz", inputs=("sizes=640",)).label is Label.GIVEN
    for said in ("sizes=320", "sizes=1..600"):
        with pytest.raises(UsageError, match="contradicts"):
            _gather(_detector(), calibration=tmp_path / "x.npz", inputs=(said,))


def test_recorded_samples_come_back_with_their_label(tmp_path: Path) -> None:
    """What was arbitrary stays arbitrary."""
    np.savez(tmp_path / "x.npz", image=np.arange(10.0).reshape(5, 2), sizes=np.full((5, 2), 640))
    given, made = _gather(_detector(), calibration=tmp_path / "x.npz"), _gather(_detector(), inputs=("image=0..1",))
    found = []
    for samples in (given, made):
        (tmp_path / "samples.npz").write_bytes(record(samples).data or b"")
        found.append(_gather(_detector(), recorded=tmp_path / "samples.npz"))
    assert (found[0].label, found[0].count) == (Label.RECORDED, 5)
    for before, after in zip(given.feeds, found[0].feeds, strict=True):
        assert all(np.array_equal(before[name], after[name]) for name in before)
    assert found[1].of_inputs["image"].label is Label.RECORDED
    assert (found[1].of_inputs["sizes"].label, found[1].may_judge) == (Label.ARBITRARY, False)


def test_the_range_of_an_entry_behind_a_cast_is_the_inputs_own() -> None:
    encodings = _entry("scale", 0, 640, bits=16)
    made = _gather(_detector(), encodings=encodings, inputs=("image=0..1",))
    assert made.of_inputs["sizes"].label is Label.DERIVED
    values = np.concatenate([feed["sizes"] for feed in made.feeds])
    assert (values.min(), values.max()) == (1, 640)


def test_the_quantizer_of_a_qdq_model_says_what_its_input_holds() -> None:
    model = load_model(AIMET / "cnn" / "w8a8.qdq.onnx")
    made = gather(model.proto, collect_facts(model))
    assert made.label is Label.DERIVED and "the quantizer behind it" in made.of_inputs["input"].why


@pytest.mark.parametrize(("dtype", "values"), [("uint8", 256), ("int8", 256), ("uint16", 65536)])
def test_quantized_inputs_are_fed_their_whole_grid(dtype: str, values: int) -> None:
    model = text_model(
        f"{dtype}[1,8,64] x", "y = DequantizeLinear(x, s, z)", opset=21, s=np.float32(0.1), z=np.zeros((), dtype)
    )
    made = _gather(model)
    assert made.label is Label.DERIVED
    seen = np.unique(made.feeds[0]["x"])
    assert len(seen) == min(values, 512)
    assert np.diff(seen.astype(np.int64)).max() <= 2 * values / min(values, 512)
    ends = np.iinfo(dtype)
    everything = np.concatenate([feed["x"].ravel() for feed in made.feeds])
    assert (everything.min(), everything.max()) == (ends.min, ends.max)


def test_per_channel_and_float_entries_of_inputs() -> None:
    value = Affine(bits=8, signed=False, scale=np.array([0.1, 1.0, 10.0]), zero_point=np.array([0, 10.0, 128]), axis=1)
    made = _gather(_single(), encodings=EncodingSet(version="1.0.0", entries={"a": Encoding(name="a", value=value)}))
    everything = np.concatenate([feed["a"] for feed in made.feeds])
    assert (everything >= value.minimum).all() and (everything <= value.maximum).all()
    assert np.ptp(everything, axis=0) == pytest.approx(255 * value.scale)
    floats = EncodingSet(version="1.0.0", entries={"a": Encoding(name="a", value=Float(dtype="float16"))})
    assert _gather(_single(), encodings=floats).label is Label.ARBITRARY


def test_samples_that_are_the_same_everywhere_are_told_apart(tmp_path: Path) -> None:
    made = _gather(_single(), encodings=_entry("a", -2, 6))
    constant = [feed for feed in made.feeds if np.ptp(feed["a"]) == 0]
    assert {float(feed["a"][0, 0]) for feed in constant} >= {float(made.feeds[1]["a"][0, 0]), 0.0}
    assert len(constant) == 4
    assert all(np.ptp(feed["a"]) > 0 for feed in made.varied)
    assert len(made.varied) == made.count - len(constant)
    np.save(tmp_path / "x.npy", np.zeros((4, 3)))
    given = _gather(_single(), calibration=tmp_path / "x.npy")
    assert given.varied == given.feeds


def test_a_model_without_inputs_has_one_sample() -> None:
    made = _gather(text_model("", "y = Relu(a)", a=[1.0]))
    assert (made.feeds, made.may_judge) == (({},), True)


def _embedding(negative: bool) -> onnx.ModelProto:
    clipped = "" if negative else "clipped = Clip(ids, zero, last) "
    body = f"{clipped}rows = Gather(table, {'ids' if negative else 'clipped'}) shown = Cast<to=9>(mask)"
    body += " scores = ReduceMean<axes=[2],keepdims=0>(rows) hidden = Where(shown, scores, far) y = Softmax(hidden)"
    stored: dict[str, Any] = {} if negative else {"zero": np.int64(0), "last": np.int64(29)}
    stored |= {"table": np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32), "far": np.float32("-inf")}
    return shape_inference.infer_shapes(text_model("int64[1,16] ids, int64[1,16] mask", body, **stored))


@pytest.mark.parametrize("negative", [False, True])
def test_integer_inputs_stay_within_what_the_graph_allows(negative: bool) -> None:
    model = _embedding(negative)
    made = _gather(model)
    assert made.label is Label.DERIVED
    ids = np.concatenate([feed["ids"].ravel() for feed in made.feeds])
    assert (ids.min(), ids.max()) == (-30 if negative else 0, 29)
    masks = [feed["mask"] for feed in made.feeds]
    assert any(mask.all() for mask in masks)
    session = Session(model)
    assert all(np.isfinite(session.run(feed)["y"]).all() for feed in made.feeds)


@given(
    low=st.floats(-1e38, 1e38),
    width=st.floats(0, 1e38),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    number=st.integers(0, len(SETS) - 1),
    seed=st.integers(0, 2**32),
)
def test_derived_floats_never_leave_their_range(low: float, width: float, dtype: str, number: int, seed: int) -> None:
    limit = float(np.finfo(dtype).max)
    least, most = (np.asarray(np.clip(end, -limit, limit)) for end in (low, low + width))
    nearest = float(least.astype(dtype)), float(most.astype(dtype))
    assume(any(least <= value <= most for value in nearest))  # else the type may hold no number between them
    made = make_floats(SETS[number], least, most, (3, 5), np.dtype(dtype), generator(seed, "x", number))
    assert made.dtype == dtype and (made.astype(np.float64) >= least).all()
    assert (made.astype(np.float64) <= most).all()


@pytest.mark.parametrize("point", ValuePoint)
@each_row("ends", (0, 2**64 - 1), (2**63, 2**64 - 1), (2**64 - 5, 2**64 - 1))
def test_the_widest_type_is_not_wrapped(point: ValuePoint, ends: tuple[int, int]) -> None:
    made = make_integers(point, *ends, (40,), np.dtype(np.uint64), generator(0, "x", 0))
    assert made.dtype == np.uint64 and ends[0] <= int(made.min()) <= int(made.max()) <= ends[1]
    if point is ValuePoint.CORNERS:
        assert (int(made.min()), int(made.max())) == ends


@settings(max_examples=50)
@given(point=st.sampled_from(ValuePoint), shape=st.tuples(st.integers(1, 3), st.integers(2, 9)), seed=st.integers(0, 9))
def test_no_mask_hides_everything(point: ValuePoint, shape: tuple[int, int], seed: int) -> None:
    mask = make_mask(point, shape, np.dtype(np.int64), generator(seed, "x", 0))
    assert set(np.unique(mask)) <= {0, 1}
    assert mask[..., 0].all(), "behind a causal mask the first position sees itself alone"
    assert point not in VARIED or not mask.all(axis=-1).any()
    if point is ValuePoint.HIGH:
        assert mask.all()


A = InputSpec(name="a", dtype="float32", shape=(1, 3))
B = InputSpec(name="b", dtype="int64", shape=(1, 3))


def test_numbered_names_are_samples_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    numbered: dict[str, Any] = {f"{n}:{name}": np.full((1, 3), n) for n in (10, 2) for name in ("a", "b")}
    np.savez(tmp_path / "x.npz", **numbered)
    assert [sample["b"][0, 0] for sample in samples_of(tmp_path / "x.npz", (A, B))] == [2, 10]


def test_a_single_value_is_fed_to_all_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones((4, 3)), b=np.full((1, 3), 640))
    assert [sample["b"].tolist() for sample in samples_of(tmp_path / "x.npz", (A, B))] == [[[640] * 3]] * 4
    np.savez(tmp_path / "y.npz", a=np.ones((4, 3)), b=np.full((3, 3), 640))
    with pytest.raises(InputError, match="different numbers of samples"):
        places_in(tmp_path / "y.npz", (A, B))


def test_a_missing_input_is_named_unless_it_may_be_missing(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones((1, 3)))
    with pytest.raises(InputError, match="'b'"):
        places_in(tmp_path / "x.npz", (A, B))
    (sample,) = read_places(places_in(tmp_path / "x.npz", (A, B), optional={"b"}))
    assert set(sample) == {"a"}


def test_integers_that_do_not_fit_are_refused_and_not_wrapped(tmp_path: Path) -> None:
    small = InputSpec(name="a", dtype="uint8", shape=(1, 3))
    np.save(tmp_path / "x.npy", np.array([[0, 255, 256]]))
    with pytest.raises(InputError, match="does not hold"):
        list(samples_of(tmp_path / "x.npy", (small,)))
    np.save(tmp_path / "x.npy", np.array([[0, 255, 1]]))
    assert [s["a"].tolist() for s in samples_of(tmp_path / "x.npy", (small,))] == [[[0, 255, 1]]]


def _npz(path: Path, name: str, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return path


def _npy(shape: tuple[int, ...], content: bytes = b"") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue() + content


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_header_that_claims_more_than_there_is_allocates_nothing(tmp_path: Path, suffix: str) -> None:
    claim = _npy((1 << 40, 1 << 10), b"1234")
    path = tmp_path / f"x{suffix}"
    path.write_bytes(claim) if suffix == ".npy" else _npz(path, "a.npy", claim)
    with pytest.raises(InputError, match="cut off or damaged") as caught:
        read_arrays(path)
    assert "4,503,599,627,370,496 bytes, there are 4" in caught.value.why


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_LARGEST", 1 << 20)
    path = tmp_path / "x.npz"
    np.savez_compressed(path, a=np.zeros(100_000, np.float32), b=np.zeros(100_000, np.float32))
    assert set(read_headers(path)) == {"a", "b"}
    np.savez_compressed(path, a=np.zeros(200_000, np.float32), b=np.zeros(200_000, np.float32))
    assert path.stat().st_size < 10_000
    with pytest.raises(InputError, match="too large"):
        read_headers(path)


def test_pickles_and_absurd_headers_are_refused_without_advice_to_trust_them(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    long = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'1,' * 9000})}}".encode()
    (tmp_path / "y.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(long).to_bytes(2, "little") + long)
    for name in ("x.npy", "y.npy"):
        with pytest.raises(InputError, match=name) as caught:
            read_arrays(tmp_path / name)
        assert "allow_pickle" not in str(caught.value)


@pytest.mark.parametrize(("name", "what"), [("notes.txt", "no array"), ("../a.npy", "")])
def test_what_else_lies_in_an_archive(tmp_path: Path, name: str, what: str) -> None:
    path = _npz(tmp_path / "x.npz", name, _npy((1,), b"1234"))
    if what:
        with pytest.raises(InputError, match=what):
            read_arrays(path)
    else:
        assert set(read_arrays(path)) == {"../a"}  # a name like any other: nothing is unpacked to disk


@each_row("name", "file", "allow_pickle", "args", "x.npy", "a/b", "../up", "é", "a" * 5000, "")
def test_any_name_is_kept(name: str, tmp_path: Path) -> None:
    """``numpy.savez(path, file=…)`` is an error, and quantizing a model with such an input was one."""
    values: dict[str, Any] = {name: np.arange(6, dtype=np.float32).reshape(2, 3), "other": np.ones((), np.int64)}
    write_arrays(tmp_path / "a.npz", values)
    for read in (read_arrays(tmp_path / "a.npz"), dict(np.load(tmp_path / "a.npz"))):
        assert read.keys() == values.keys()
        np.testing.assert_array_equal(read[name], values[name])
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("batch", [1, 2])
def test_longer_arrays_are_several_samples(tmp_path: Path, batch: int) -> None:
    spec = InputSpec(name="a", dtype="float32", shape=(batch, 3))
    np.save(tmp_path / "x.npy", np.arange(12).reshape(4, 3))
    samples = [sample["a"].ravel().tolist() for sample in samples_of(tmp_path / "x.npy", (spec,))]
    assert samples == np.arange(12).reshape(4 // batch, 3 * batch).tolist()
