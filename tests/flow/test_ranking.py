"""The choice among ways: a pure function of simulated numbers, and the same on the real detector's encodings."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.accuracy.samples.gathering import InputSource, Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.sessions import Feed
from deploykit.backend.backend import MixedSupport
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.place import place
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.findings import Confidence
from deploykit.flow.choose import Explored, choose, explore
from deploykit.flow.ways import Ground, Way
from deploykit.model.collect import collect_facts, facts_of
from deploykit.model.load import load_model
from tables import each_row
from text_models import text_model

DETR = Path(__file__).parents[1] / "data" / "aimet" / "detr"


def _way(identity: str, kind: str, db: float, **more: object) -> Way:
    return Way(id=identity, kind=kind, overall_db=db, **more)  # type: ignore[arg-type]


WAYS = st.lists(
    st.builds(
        _way,
        st.sampled_from("abcdef"),
        st.sampled_from(["integer", "fallback", "segments"]),
        st.floats(-20, 120),
        intrusion=st.integers(0, 3),
        borders=st.integers(0, 9),
        confidence=st.sampled_from(list(Confidence)),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda way: way.id,
)


@settings(max_examples=100, deadline=None)
@given(ways=WAYS, reference=st.floats(-20, 120), safe=st.booleans())
def test_someone_wins_everyone_hears_why_in_any_order(ways: list[Way], reference: float, safe: bool) -> None:
    choice = choose(ways, reference_db=reference, sdk_mixes_safely=safe)
    assert choice.winner in ways and set(choice.verdicts) == {way.id for way in ways}
    assert all(choice.verdicts.values())
    backwards = choose(ways[::-1], reference_db=reference, sdk_mixes_safely=safe)
    assert backwards.winner == choice.winner


EVERY_KIND = MixedSupport(kinds=frozenset({"integer", "fallback", "segments"}))


def _samples(feeds: Sequence[Feed]) -> Samples:
    """Inputs that somebody gave."""
    given = {name: InputSource(label=Label.GIVEN, why="given") for name in feeds[0]}
    return Samples(feeds=tuple(feeds), of_inputs=given)


def _ground(variant: str, **options: Any) -> Ground:
    model = load_model(DETR / "model.onnx")
    facts = collect_facts(model)
    encodings = place(read_encodings(DETR / f"{variant}.encodings"), facts)
    return Ground.of(model.proto, encodings, facts, _samples(_feeds(variant)), **options)


@cache
def _explored(variant: str, mixed: str = "auto") -> Explored:
    return explore(_ground(variant), EVERY_KIND, mixed=mixed, tell=lambda line: None)


def _feeds(variant: str) -> list[dict[str, np.ndarray]]:
    with np.load(DETR / f"{variant.rsplit('.v', 1)[0]}.io.npz") as data:
        numbers = sorted({key.split(":")[0] for key in data.files if key.startswith("input.")})
        return [{k.split(":", 1)[1]: data[k] for k in data.files if k.startswith(f"{n}:")} for n in numbers]


VARIANTS = [
    *(f"w8a16.v{version}" for version in ("0.6.1", "1.0.0", "2.0.0")),
    "w8a16-fp16mix-explicit.v0.6.1",
    "w8a16-fp16mix-omit.v1.0.0",
    "w8a8-fp16mix-explicit.v1.0.0",
    "w8a8-fp16mix-omit.v2.0.0",
    "aimet-2.31.0/w8a8-litemp-fp16.v0.6.1",
]


@each_row("variant", *VARIANTS)
def test_the_detector_needs_no_float16_and_is_no_worse_than_aimets_simulation(variant: str) -> None:
    """The quality of AIMET's own simulation, and at least 70 dB where nothing but 16-bit integers was asked for."""
    explored = _explored(variant)
    prepared, reference = explored.winner, explored.reference
    assert prepared is not None
    assert reference is not None
    assert prepared.way.kind == "integer" and prepared.way.float16_tensors == 0
    assert prepared.encodings.floats == frozenset()
    assert prepared.way.overall_db >= 70 or not variant.startswith("w8a16.")
    assert prepared.way.overall_db >= reference.overall_db - 0.05


@pytest.mark.parametrize("variant", ["w8a16.v1.0.0", "w8a16-fp16mix-omit.v1.0.0"])
def test_nothing_is_built_once_a_way_is_proven(variant: str) -> None:
    explored = _explored(variant)
    assert explored.winner is explored.built[-1] and explored.winner.way.right
    left = {way.id for way in explored.choice.ways} - {item.way.id for item in explored.built}
    assert left and all("proven good" in explored.choice.verdicts[identity] for identity in left)


def test_banned_rewrites_are_not_used() -> None:
    ground = _ground("w8a16.v2.0.0", banned=["logit-of-sigmoid", "cut-tail"])
    explored = explore(ground, EVERY_KIND, mixed="auto", tell=lambda line: None)
    used = {name for prepared in explored.built for name in prepared.way.rewrites}
    assert not used & {"logit-of-sigmoid", "cut-tail"}
    assert {"saturating-constant", "log-of-ratio"} <= used
    assert explored.winner is not None and explored.winner.way.overall_db >= 70


@each_row(
    ("variant", "safe", "wanted"),
    ("w8a16.v1.0.0", False, "rewrite"),
    ("w8a16-fp16mix-omit.v1.0.0", False, "segments"),
    ("w8a16-fp16mix-omit.v1.0.0", True, "fallback"),
)
def test_without_judgement_ways_are_chosen_on_structure(variant: str, safe: bool, wanted: str) -> None:
    """What was meant as float stays float, for nobody knows what integers would cost there.

    Segments are not built beside a mixing of the SDK's own that is safe.
    """
    ground = _ground(variant)
    arbitrary = {name: InputSource(label=Label.ARBITRARY, why="nobody said") for name in ground.samples.feeds[0]}
    samples = Samples(feeds=ground.samples.feeds, of_inputs=arbitrary)
    unjudged = Ground.of(ground.model, ground.encodings, ground.facts, samples)
    surer = replace(EVERY_KIND, confidence={"segments": Confidence.REPORTED, "fallback": Confidence.INFERRED})
    explored = explore(unjudged, replace(surer, safe=safe), mixed="auto", tell=lambda line: None)
    assert explored.winner is not None and explored.winner.way.id == wanted
    assert ("segments" in {item.way.id for item in explored.built}) is (wanted == "segments")
    assert explored.winner.verdict is None
    assert all(row["overall_db"] is None and row["right"] is None for row in explored.choice.to_json())


def test_what_is_left_out_by_habit_is_no_wider_than_its_neighbours() -> None:
    """AIMET gives the result of a Pad no entry: 16 bits in a w8a8 model would mix widths at the convolution."""
    weight = np.ones((4, 3, 3, 3), np.float32)
    body = 'moved = Pad <mode = "reflect"> (x, pads)  y = Conv (moved, w)'
    model = text_model("float[1,3,8,8] x", body, "float[1,4,8,8] y", w=weight, pads=[0, 0, 1, 1, 0, 0, 1, 1])
    grid = Affine(bits=8, signed=False, scale=np.asarray(0.1), zero_point=np.asarray(0.0))
    held = EncodingSet(version="1.0.0", entries={name: Encoding(name=name, value=grid) for name in ("x", "y", "w")})
    samples = Samples(feeds=({"x": np.ones((1, 3, 8, 8), np.float32)},), of_inputs={})
    explored = explore(Ground.of(model, held, facts_of(model), samples), EVERY_KIND, mixed="auto", tell=print)
    assert explored.winner is not None
    made = explored.winner.encodings.entries["moved"].value
    assert isinstance(made, Affine) and (made.bits, made.ends) == (8, grid.ends)


def test_what_is_left_out_by_habit_stays_integer_without_judgement(decoder_detector: Any) -> None:
    """The sizes cast to float have no entry and a grid that follows from their neighbours': nobody meant float16."""
    feeds = decoder_detector.feeds
    arbitrary = {name: InputSource(label=Label.ARBITRARY, why="nobody said") for name in feeds[0]}
    samples = Samples(feeds=feeds, of_inputs=arbitrary)
    ground = Ground.of(decoder_detector.model, decoder_detector.encodings, decoder_detector.facts, samples)
    assert ground.prediction.intended and not ground.prediction.meant
    explored = explore(ground, EVERY_KIND, mixed="auto", tell=lambda line: None)
    assert explored.winner is not None and explored.winner.way.kind == "integer"
    assert explored.winner.verdict is None and not explored.winner.encodings.floats
    assert [item.way.id for item in explored.built] == ["rewrite"]
