"""Where samples come from, in which order, what is declared of them, and how they are stored and read again."""

import io
import re
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import shape_inference

from deploykit.accuracy.samples import arrays
from deploykit.accuracy.samples.arrays import read_arrays, read_headers, write_arrays
from deploykit.accuracy.samples.calibration import (
    Declaration,
    load_calibration,
    parse_declarations,
    places_in,
    read_places,
)
from deploykit.accuracy.samples.domains import (
    SETS,
    VARIED,
    ValuePoint,
    generator,
    input_domains,
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
from deploykit.model.collect import facts_of
from deploykit.system.files import with_folder
from text_models import text_model
from told import check_file

HERE = Path(__file__).parent


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


def _gathered(question: str) -> list[str]:
    """Inputs, a body, then any of: ``entry NAME LOW HIGH``, ``most N``, and what ``--input`` says."""
    given, body, *more = question.split("; ")
    stored: dict[str, Any] = {name: value for name, value in STORED.items() if re.search(rf"\b{name}\b", body)}
    stored |= {"scale": np.float32(0.5), "zero": np.uint8(8)} if "scale" in body else {}
    model = shape_inference.infer_shapes(text_model(given, body, **stored))
    asked: dict[str, Any] = {}
    for word, *rest in (said.split(" ") for said in more):
        if word == "entry":
            asked["encodings"] = _entry(rest[0], float(rest[1]), float(rest[2]))
        elif word == "most":
            asked["most"] = int(rest[0])
    made = _gather(model, inputs=tuple(said for said in more if "=" in said), **asked)
    lines = [
        f"{made.described_for_humans}; judged on: {made.may_judge}; {', '.join(made.points)}; {len(made.varied)} vary"
    ]
    for name, source in made.of_inputs.items():
        arrays = [feed[name] for feed in made.feeds]
        ends = [f"{array.min():.4g}..{array.max():.4g}" for array in arrays]
        lines.append(
            f"{name} {arrays[0].dtype}{list(arrays[0].shape)}: {source.label}, {source.why}: {', '.join(ends)}"
        )
    return lines


def test_what_inputs_are_made_of_and_what_they_mean() -> None:
    check_file(HERE / "gathered.told", _gathered)


def test_what_is_made_up_hangs_on_the_seed() -> None:
    made = [_gather(_single(), seed=seed).feeds[0]["a"].tolist() for seed in (0, 1, -1, 2**32 + 1, 0)]
    assert made[0] == made[4] and made[1] == made[3] and made[0] != made[1] != made[2] != made[0]


def test_recorded_samples_come_back_with_their_label(tmp_path: Path) -> None:
    """What was arbitrary stays arbitrary."""
    np.savez(tmp_path / "x.npz", image=np.arange(10.0).reshape(5, 2), sizes=np.full((5, 2), 640))
    given, made = _gather(_detector(), calibration=tmp_path / "x.npz"), _gather(_detector(), inputs=("image=0..1",))
    found = []
    for samples in (given, made):
        (tmp_path / "samples.npz").write_bytes(record(samples)[1] or b"")
        found.append(_gather(_detector(), recorded=tmp_path / "samples.npz"))
    assert (found[0].label, found[0].count) == (Label.RECORDED, 5)
    for before, after in zip(given.feeds, found[0].feeds, strict=True):
        assert all(np.array_equal(before[name], after[name]) for name in before)
    assert found[1].of_inputs["image"].label is Label.RECORDED
    assert (found[1].of_inputs["sizes"].label, found[1].may_judge) == (Label.ARBITRARY, False)


def test_per_channel_and_float_entries_of_inputs() -> None:
    value = Affine(bits=8, signed=False, scale=np.array([0.1, 1.0, 10.0]), zero_point=np.array([0, 10.0, 128]), axis=1)
    made = _gather(_single(), encodings=EncodingSet(version="1.0.0", entries={"a": Encoding(name="a", value=value)}))
    everything = np.concatenate([feed["a"] for feed in made.feeds])
    assert (everything >= value.minimum).all() and (everything <= value.maximum).all()
    assert np.ptp(everything, axis=0) == pytest.approx(255 * value.scale)
    floats = EncodingSet(version="1.0.0", entries={"a": Encoding(name="a", value=Float(dtype="float16"))})
    assert _gather(_single(), encodings=floats).label is Label.ARBITRARY


def _embedding(is_clipped: bool) -> onnx.ModelProto:
    clipped = "clipped = Clip(ids, zero, last) " if is_clipped else ""
    body = f"{clipped}rows = Gather(table, {'clipped' if is_clipped else 'ids'}) shown = Cast<to=9>(mask)"
    body += " scores = ReduceMean<axes=[2],keepdims=0>(rows) hidden = Where(shown, scores, far) y = Softmax(hidden)"
    stored: dict[str, Any] = {"zero": np.int64(0), "last": np.int64(29)} if is_clipped else {}
    stored |= {"table": np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32), "far": np.float32("-inf")}
    return shape_inference.infer_shapes(text_model("int64[1,16] ids, int64[1,16] mask", body, **stored))


@pytest.mark.parametrize("is_clipped", [True, False])
def test_integer_inputs_stay_within_what_the_graph_allows(is_clipped: bool) -> None:
    model = _embedding(is_clipped)
    made = _gather(model)
    assert made.label is Label.DERIVED
    ids = np.concatenate([feed["ids"].ravel() for feed in made.feeds])
    assert (ids.min(), ids.max()) == (0, 29)
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


def test_whole_numbers_are_spread_over_their_range() -> None:
    """Each as often as the others; of more than there is room for one out of each equal part."""

    def made(low: int, high: int, size: int, dtype: str = "int64") -> list[int]:
        rng = generator(0, "x", 0)
        return sorted(map(int, make_integers(ValuePoint.UNIFORM, low, high, (size,), np.dtype(dtype), rng)))

    assert made(5, 7, 9) == [5, 5, 5, 6, 6, 6, 7, 7, 7]
    assert made(-3, 3, 7) == [-3, -2, -1, 0, 1, 2, 3]
    assert [value // 10 for value in made(0, 99, 10)] == list(range(10))
    assert [(value + 100) // 25 for value in made(-100, 99, 8)] == list(range(8))
    wide = made(-(2**62), 2**62, 100)
    assert wide[0] < -(2**60) and wide[-1] > 2**60 and len({*wide}) == 100
    assert made(2**63, 2**64 - 1, 50, "uint64")[-1] > 2**63
    assert len({*made(0, 2**31 - 2, 50)}) == 50
    corners = make_integers(ValuePoint.CORNERS, 3, 9, (10,), np.dtype("uint8"), generator(0, "x", 0))
    assert sorted(corners.tolist()) == [3] * 5 + [9] * 5
    for point, value in ((ValuePoint.LOW, 3), (ValuePoint.HIGH, 9), (ValuePoint.ZERO, 3)):
        assert make_integers(point, 3, 9, (2,), np.dtype("uint8"), generator(0, "x", 0)).tolist() == [value] * 2


@settings(max_examples=50)
@given(point=st.sampled_from(ValuePoint), shape=st.tuples(st.integers(1, 3), st.integers(2, 9)), seed=st.integers(0, 9))
def test_no_mask_hides_everything(point: ValuePoint, shape: tuple[int, int], seed: int) -> None:
    mask = make_mask(point, shape, np.dtype(np.int64), generator(seed, "x", 0))
    assert set(np.unique(mask)) <= {0, 1}
    assert mask[..., 0].all(), "behind a causal mask the first position sees itself alone"
    assert point not in VARIED or not mask.all(axis=-1).any()
    if point is ValuePoint.HIGH:
        assert mask.all()


def _samples(question: str) -> list[str]:
    """Inputs by name, type and shape (``?`` is open), then the arrays of a file, which count on: each sample."""
    said, held = question.split("; ")
    inputs, arrays = [], {}
    for name, dtype, shape in (words.split(" ") for words in said.split(", ")):
        sizes = tuple(None if dim == "?" else int(dim) for dim in shape.split("x"))
        given = sizes[:1] + sizes[3:] + sizes[1:3] if name == "turned" else ()
        inputs.append(InputSpec(name=name, dtype=dtype, shape=sizes, given=given))
    for name, shape in (words.split(" ") for words in held.split(", ")):
        lengths = [int(dim) for dim in shape.split("x")]
        arrays[name] = np.arange(np.prod(lengths), dtype=np.int64).reshape(lengths)
    with TemporaryDirectory() as folder:
        path = Path(folder, "x.npz")
        write_arrays(path, arrays)
        try:
            found = list(read_places(places_in(path, tuple(inputs))))
        except InputError as error:
            return [error.what.replace(str(path), "x.npz")]
    return [", ".join(f"{n} {v.dtype}{list(v.shape)} {v.ravel().tolist()}" for n, v in one.items()) for one in found]


def test_how_many_samples_are_in_a_file() -> None:
    check_file(HERE / "files.told", _samples)


def _folder(question: str) -> list[str]:
    """What a folder of such files is taken for; ``NAME=TEXT`` has a content."""
    with TemporaryDirectory() as folder:
        for name, _, text in (one.partition("=") for one in question.split("; ")):
            with_folder(Path(folder, name)).write_text(text.replace(", ", "\n"))
        try:
            found = load_calibration(Path(folder), (InputSpec(name="x", dtype="float32", shape=(1, 3, 8, 9)),))
        except (InputError, UsageError) as error:
            return str(error).replace(f"{folder}/", "").replace(folder, "it").splitlines()
    told: dict[str, Any] = {"recipe": found.recipe, "sound": found.sound, "unused": found.unused}
    told |= {"labels": {path.name: label for path, label in found.labels.items()}}
    return [f"{found.kind}: {[path.name for path in found.files]}", *(f"  {k}: {v}" for k, v in told.items() if v)]


def test_what_a_folder_is_taken_for() -> None:
    check_file(HERE / "folders.told", _folder)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_header_that_claims_more_than_there_is_allocates_nothing(tmp_path: Path, suffix: str) -> None:
    stream, path = io.BytesIO(), tmp_path / f"x{suffix}"
    claim = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 1 << 10)}
    np.lib.format.write_array_header_1_0(stream, claim)
    path.write_bytes(stream.getvalue() + b"1234")
    if suffix == ".npz":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.npy", stream.getvalue() + b"1234")
    with pytest.raises(InputError, match="cut off or damaged") as caught:
        read_arrays(path)
    assert "4,503,599,627,370,496 bytes, there are 4" in caught.value.why


def test_an_array_with_bytes_behind_it_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(4, np.float32))
    with (tmp_path / "x.npy").open("ab") as stream:
        stream.write(b"more")
    with pytest.raises(InputError, match="cut off or damaged"):
        read_arrays(tmp_path / "x.npy")


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_large_array_is_mapped_and_a_small_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Literal["C", "F"]
) -> None:
    np.save(tmp_path / "x.npy", kept := np.arange(6.0).reshape((2, 3), order=order))
    for most, kind in ((47, np.memmap), (48, np.ndarray)):
        monkeypatch.setattr(arrays, "_MAPPED", most)
        read = read_arrays(tmp_path / "x.npy")[""]
        assert type(read) is kind and read.tolist() == kept.tolist()


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


SIZES = InputSpec(name="orig_target_sizes", dtype="int64", shape=(1, 2))
IMAGE = InputSpec(name="images", dtype="float32", shape=(1, 3, 4, 4))
HALF = InputSpec(name="half", dtype="float16", shape=(1, None))
BYTES = InputSpec(name="bytes", dtype="uint8", shape=(4,))
FLAG = InputSpec(name="flag", dtype="bool", shape=())
ODD = InputSpec(name="a=1..2", dtype="float32", shape=(2,))
SHORT = InputSpec(name="a", dtype="float32", shape=(2,))
INPUTS = (SIZES, IMAGE, HALF, BYTES, FLAG, ODD, SHORT)


def _one(text: str) -> Declaration:
    (declaration,) = parse_declarations([text], INPUTS).values()
    return declaration


def _declared(text: str) -> list[str]:
    try:
        found = _one(text)
    except UsageError as error:
        return [f"{error.what}; {error.why or error.next}"]
    return [f"{found.name}: {found.described}"]


def test_what_is_said_of_an_input() -> None:
    check_file(HERE / "declarations.told", _declared)


def test_a_file_is_told_by_name_and_never_by_its_path(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 3, 4, 4)))
    found = _one(f"images={tmp_path / 'x.npy'}")
    assert found.described == "declared by the file x.npy" and str(tmp_path) not in found.described + repr(found)


# Stored by their names: a table of ten rows, one of three, data of 5 by 7, whole numbers and floats as they are spelt.
STORED: dict[str, np.ndarray] = {
    "table": np.ones((10, 2), np.float32),
    "small": np.ones((3, 2), np.float32),
    "data": np.zeros((5, 7, 2), np.float32),
    "rows": np.zeros((3, 2), np.float32),
    "counted": np.arange(4),
    "flat": np.asarray([4]),
    "zero8": np.asarray(3, np.int8),
    "choices": np.asarray([0, 1], np.float32),
}
SPELT = re.compile(r"\b[if]m?\d+\b")


def _value(name: str) -> np.ndarray:
    """``i10`` is the integer 10, ``fm1`` the float -1."""
    number = float(name[1:].replace("m", "-"))
    return np.asarray(number, np.int64 if name[0] == "i" else np.float32)


def _domain(question: str) -> list[str]:
    """Of the input x, which a graph reads; it may read s[1,4], b[5,4] and more whole numbers besides."""
    given, body, *opset = question.split("; ")
    stored: dict[str, Any] = {name: value for name, value in STORED.items() if re.search(rf"\b{name}\b", body)}
    stored |= {name: _value(name) for name in SPELT.findall(body)}
    given = f"{given} x, float[1,4] s, float[5,4] b, int64[1,4] other"
    model = text_model(given, body, opset=int(opset[0]) if opset else 17, **stored)
    facts = facts_of(shape_inference.infer_shapes(model, strict_mode=True))
    found = input_domains(facts, stored.get)["x"]
    return [f"{found.low} to {found.high}{', a mask' * found.is_mask}: {found.why} ({found.node or 'no operator'})"]


def test_what_a_graph_says_of_the_values_of_an_input() -> None:
    check_file(HERE / "domains.told", _domain)


def test_a_declared_file_is_fed_in_turn(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.array([[[1, 2]], [[3, 4]], [[5, 6]]]))
    made = _gather(_detector(), encodings=_entry("image", 0, 1), inputs=(f"sizes={tmp_path / 's.npy'}",))
    assert [feed["sizes"].ravel().tolist() for feed in made.feeds[:4]] == [[1, 2], [3, 4], [5, 6], [1, 2]]
