"""The sensitivity analysis: equal to AIMET's where it has the same question, resumable, within its budgets."""

import json
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import parser

from deploykit.accuracy.samples.gathering import InputSource, Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.search.layer_losses import Budget, LayerLoss, Sensitivity, analyze, analyze_files
from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.precisions import min_max_encodings, precision_of, statistics_of
from deploykit.encodings.read import read_placed
from deploykit.errors import UsageError
from deploykit.model.collect import facts_of

DATA = Path(__file__).parents[1] / "data"
RECORDED = DATA / "sensitivity"
NO_DIFFERENCE = 200.0
"""What the recording script writes where nothing differs."""


def _given(arrays: dict[str, npt.NDArray[Any]], count: int) -> Samples:
    feeds = tuple({name: array[index] for name, array in arrays.items()} for index in range(count))
    source = InputSource(label=Label.GIVEN, why="the recorded inputs")
    return Samples(feeds=feeds, of_inputs=dict.fromkeys(arrays, source))


def _analyzed(model: Path, encodings: Path, samples: Samples, **asked: Any) -> Sensitivity:
    proto = onnx.load(model)
    facts = facts_of(proto)
    return analyze(proto, facts, samples, encodings=read_placed(encodings, facts), **asked)


@pytest.fixture(scope="module")
def detr_samples() -> Samples:
    with np.load(DATA / "aimet" / "detr" / "w8a8.io.npz") as stored:
        names = [key.split(":", 1)[1] for key in stored.files if key.startswith("input.0:")]
        arrays = {name: np.stack([stored[f"input.{index}:{name}"] for index in (0, 1)]) for name in names}
    return _given(arrays, 2)


DETR = DATA / "aimet" / "detr" / "model.onnx"
W8A8 = DATA / "aimet" / "detr" / "w8a8.v1.0.0.encodings"


@pytest.fixture(scope="module")
def detr(detr_samples: Samples) -> Sensitivity:
    return _analyzed(DETR, W8A8, detr_samples)


def _from_zoo(name: str, folder: Path) -> Sensitivity:
    with zipfile.ZipFile(DATA / "zoo" / f"{name}.zip") as archive:
        archive.extractall(folder)
    with np.load(folder / "held_out.npz") as stored:
        samples = _given({key: stored[key] for key in stored.files}, 2)
    return _analyzed(folder / "model.onnx", folder / "w8a16.v1.0.0.encodings", samples)


@pytest.mark.parametrize(
    "name", ["detr", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("resnet", "vit", "segformer"))]
)
def test_it_agrees_with_the_recorded_analysis_of_aimet(name: str, tmp_path: Path, detr: Sensitivity) -> None:
    """The same layers with the same tensors, the same loss of the whole, the same 20 worst, nearly the same order."""
    found = detr if name == "detr" else _from_zoo(name, tmp_path)
    recorded = json.loads((RECORDED / f"{name}.json").read_text())
    assert found.whole.db == pytest.approx(
        recorded["all_quantized_db"], abs=0.05
    )  # releases of ONNX Runtime differ by 0.02
    ours = {frozenset(row.layer.tensors): row for row in found.layers}
    theirs = {frozenset(row["tensors"]): row for row in recorded["layers"].values()}
    assert ours.keys() == theirs.keys()
    alone = [(_alone(ours[key]), theirs[key]["alone_db"]) for key in theirs]
    without = [(_without(ours[key]), theirs[key]["without_db"]) for key in theirs]
    assert _worst(alone, 0) == _worst(alone, 1) and _rank_correlation(alone) > 0.99
    # Where AIMET switches a quantizer that tensors share, more than one layer is switched: so far may these two differ.
    alike = sum(abs(one - two) < 0.2 for one, two in alone)
    assert alike >= {"segformer": 0.75}.get(name, 0.88) * len(alone)
    assert all(abs(one - two) < 0.05 for one, two in without)


def _alone(row: LayerLoss) -> float:
    assert row.alone is not None
    return min(row.alone.db, NO_DIFFERENCE)


def _without(row: LayerLoss) -> float:
    assert row.without is not None
    return min(row.without.db, NO_DIFFERENCE)


def _worst(pairs: list[tuple[float, float]], side: int) -> set[int]:
    return set(sorted(range(len(pairs)), key=lambda place: pairs[place][side])[:20])


def _rank_correlation(pairs: list[tuple[float, float]]) -> float:
    """Spearman's, ties by their order."""
    ranks = [np.argsort(np.argsort([pair[side] for pair in pairs], kind="stable")) for side in (0, 1)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def test_an_ended_analysis_goes_on(
    detr: Sensitivity, detr_samples: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path))
    first = _analyzed(DETR, W8A8, detr_samples, budget=Budget(seconds=0.0))
    assert first.unmeasured > 50 and first.worst_layers == ()
    told: list[str] = []

    class EnoughError(Exception):
        pass

    def interrupt(line: str) -> None:
        told.append(line)
        if line.startswith("10 of"):
            raise EnoughError

    with pytest.raises(EnoughError):
        _analyzed(DETR, W8A8, detr_samples, tell=interrupt)
    told.clear()
    whole = _analyzed(DETR, W8A8, detr_samples, tell=told.append)
    measured = [line for line in told if " of " in line]
    assert len(measured) == first.unmeasured - 10
    assert whole.to_json() == detr.to_json()
    told.clear()
    again = _analyzed(DETR, W8A8, detr_samples, tell=told.append)
    assert not [line for line in told if " of " in line]
    assert again.to_json() == detr.to_json()
    # Other samples and other encodings are other questions.
    one = Samples(feeds=detr_samples.feeds[:1], of_inputs=detr_samples.of_inputs)
    wide = W8A8.with_name("w8a16.v1.0.0.encodings")
    for encodings, samples in ((W8A8, one), (wide, detr_samples)):
        assert _analyzed(DETR, encodings, samples, budget=Budget(seconds=0.0)).unmeasured > 50
    _analyzed(DETR, W8A8, detr_samples, tell=told.append, resume=False, budget=Budget(seconds=0.0))


RESIZE = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,1,4,4] x) => (float[1,1,8,8] y)
<float[4] sizes = {1, 1, 2, 2}, float[1,1,1,1] w = {0.5}, float[1] b = {0.25}, float high = {0.75}>
{
    a = Conv(x, w, b)
    r = Relu(a)
    c = Clip(r, , high)
    y = Resize<mode = "nearest">(c, , sizes)
}
"""


def test_settings_biases_and_what_is_fused_get_no_range() -> None:
    """A factor of Resize on a grid would be another size; a bias follows from its Conv."""
    model = parser.parse_model(RESIZE)
    facts = facts_of(model)
    feed = {"x": np.linspace(-1, 3, 16, dtype=np.float32).reshape(1, 1, 4, 4)}
    runs = PartialRuns(model, [feed], wanted=["y"])
    entries = min_max_encodings(runs, facts, precision_of("w8a16"))
    assert {name: entry.dtype for name, entry in entries.entries.items()} == {
        "x": "uint16",
        "w": "int8",
        "r": "uint16",
        "c": "uint16",
        "y": "uint16",
    }
    clipped, resized = entries.entries["c"].value, entries.entries["y"].value
    assert clipped.scale == resized.scale  # type: ignore[union-attr]


def test_statistics_of_huge_odd_and_missing_values() -> None:
    values = np.asarray([1.0, -1.0, 1e30, np.inf, np.nan], np.float32)
    found = statistics_of([values])
    assert found is not None and (found.low, found.not_finite) == (-1.0, 2)
    assert found.high == pytest.approx(1e30) and math.isfinite(found.deviation)
    huge = statistics_of([np.asarray([1e200, -1e300, 3.0])])
    assert huge is not None and huge.peak_db == pytest.approx(10 * math.log10(3))
    assert statistics_of([np.full(3, np.nan)]) is None
    flat = statistics_of([np.zeros(5, np.float32)])
    assert flat is not None and (flat.outliers, flat.peak_db, flat.histogram) == (0.0, 0.0, (5,))
    spike = statistics_of([np.r_[np.random.default_rng(0).normal(size=9999), 50.0].astype(np.float32)])
    assert spike is not None and spike.outliers == pytest.approx(1e-4)


def test_what_it_is_to_be_quantized_to_must_be_said() -> None:
    with pytest.raises(UsageError, match="what is the model to be quantized to"):
        analyze_files(DETR)
    with pytest.raises(UsageError, match="the encodings say"):
        analyze_files(DETR, encodings=W8A8, precision="w8a8")
    with pytest.raises(UsageError, match="cannot be simulated"):
        analyze_files(DETR, precision="w3a9")


def test_a_quantized_model_brings_its_own_encodings() -> None:
    found = analyze_files(DETR.with_name("w8a8.qdq.onnx"), budget=Budget(seconds=0.0))
    assert len(found.tensors) > 30


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that another test measured is known."""
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
