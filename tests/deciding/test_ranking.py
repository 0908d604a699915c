"""The choice among ways: a pure function of simulated numbers, and the same on the real detector's encodings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.deciding.ranking import Way, choose
from deploykit.deciding.ways import Ways, prepare_ways
from deploykit.encodings.reading import read_encodings
from deploykit.encodings.values import Affine, EncodingSet
from deploykit.findings import Confidence
from deploykit.graph import load_model
from deploykit.graph.collect import collect_facts
from deploykit.numerics.limiting import limiting_tensors
from deploykit.numerics.sessions import Feed, Session
from deploykit.numerics.simulation import overall_sqnr_db
from deploykit.quantization.placement import place

DETR = Path(__file__).parents[1] / "data" / "aimet" / "detr"


def run_chain(sessions: Sequence[Session], feed: Feed) -> dict[str, Any]:
    """Run models one after the other, each reading inputs and everything made before it."""
    values: dict[str, Any] = dict(feed)
    for session in sessions:
        values.update(session.run(values))
    return values


def _way(identity: str, kind: str, db: float, **more: object) -> Way:
    return Way(id=identity, kind=kind, overall_db=db, **more)  # type: ignore[arg-type]


AS_IS = _way("as-is", "integer", 10.0)
REWRITE = _way("rewrite", "integer", 77.0, intrusion=1)
CUT = _way("cut", "integer", 78.5, intrusion=3)
FALLBACK = _way("fallback", "fallback", 76.0, float16_tensors=5, borders=6, confidence=Confidence.REPORTED)
SEGMENTS = _way("segments", "segments", 74.0, float16_tensors=9, borders=5, confidence=Confidence.OBSERVED, segments=3)
ALL = (AS_IS, REWRITE, CUT, FALLBACK, SEGMENTS)


def test_removing_the_need_comes_first() -> None:
    choice = choose((REWRITE, FALLBACK, SEGMENTS), reference_db=76.5, sdk_mixes_safely=True)
    assert choice.winner is REWRITE
    assert "6 borders" in choice.verdicts["fallback"]


def test_the_less_intrusive_of_two_equals_wins() -> None:
    nearly = _way("cut", "integer", 77.9, intrusion=3)
    assert choose((REWRITE, nearly), reference_db=70).winner is REWRITE
    assert choose((REWRITE, CUT), reference_db=70).winner is CUT


def test_what_is_good_enough_is_not_changed_further() -> None:
    choice = choose(
        (_way("rewrite", "integer", 95.0, intrusion=1), _way("cut", "integer", 104.0, intrusion=3)), reference_db=98
    )
    assert choice.winner is not None
    assert choice.winner.id == "rewrite"


def test_a_way_below_the_reference_gives_way_to_one_that_reaches_it() -> None:
    choice = choose((REWRITE, _way("cut", "integer", 77.6, intrusion=3)), reference_db=77.5)
    assert choice.winner is not None
    assert choice.winner.id == "cut"
    assert "less than the encodings' own simulation" in choice.verdicts["rewrite"]


def test_a_safe_sdk_beats_integers_that_lose() -> None:
    weak = _way("rewrite", "integer", 74.5, intrusion=1)
    assert choose((weak, FALLBACK, SEGMENTS), reference_db=76, sdk_mixes_safely=True).winner is FALLBACK
    assert choose((weak, FALLBACK, SEGMENTS), reference_db=76).winner is weak


def test_float16_goes_by_confidence_where_integers_lose_too_much() -> None:
    choice = choose((AS_IS, FALLBACK, SEGMENTS), reference_db=76)
    assert choice.winner is SEGMENTS
    assert "surer" in choice.verdicts["fallback"]


@pytest.mark.parametrize(("mixed", "winner"), [("fallback", FALLBACK), ("segments", SEGMENTS), ("refuse", CUT)])
def test_the_user_may_insist(mixed: str, winner: Way) -> None:
    choice = choose(ALL, reference_db=76, mixed=mixed)
    assert choice.winner is winner
    others = [way.id for way in ALL if way.kind != winner.kind]
    assert all(f"--mixed {mixed}" in choice.verdicts[identity] for identity in others)


def test_an_unavailable_way_says_why() -> None:
    broken = _way("segments", "segments", 90.0, unavailable="the chain does not equal the whole")
    choice = choose((broken,), reference_db=10)
    assert choice.winner is None
    assert choice.verdicts["segments"] == "the chain does not equal the whole"


def test_infinite_numbers_are_json() -> None:
    choice = choose((_way("as-is", "integer", float("inf")),), reference_db=float("inf"))
    assert choice.winner is not None
    assert json.loads(json.dumps(choice.to_json(), allow_nan=False))[0]["overall_db"] is None


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
def test_someone_wins_everyone_hears_why_and_order_does_not_matter(
    ways: list[Way], reference: float, safe: bool
) -> None:
    choice = choose(ways, reference_db=reference, sdk_mixes_safely=safe)
    assert choice.winner in ways
    assert set(choice.verdicts) == {way.id for way in ways}
    assert all(choice.verdicts.values())
    backwards = choose(ways[::-1], reference_db=reference, sdk_mixes_safely=safe)
    assert backwards.winner == choice.winner


@cache
def _ways(variant: str) -> tuple[Ways, list[dict[str, np.ndarray]], EncodingSet]:
    model = load_model(DETR / "model.onnx")
    encodings = place(read_encodings(DETR / f"{variant}.encodings"), collect_facts(model))
    feeds = _feeds(variant)
    return prepare_ways(model.proto, encodings, feeds), feeds, encodings


def _feeds(variant: str) -> list[dict[str, np.ndarray]]:
    with np.load(DETR / f"{variant.rsplit('.v', 1)[0]}.io.npz") as data:
        numbers = sorted({key.split(":")[0] for key in data.files if key.startswith("input.")})
        return [{k.split(":", 1)[1]: data[k] for k in data.files if k.startswith(f"{n}:")} for n in numbers]


VARIANTS = [
    "w8a16.v0.6.1",
    "w8a16.v1.0.0",
    "w8a16.v2.0.0",
    "w8a16-fp16mix-explicit.v0.6.1",
    "w8a16-fp16mix-omit.v1.0.0",
    "w8a8-fp16mix-explicit.v1.0.0",
    "w8a8-fp16mix-omit.v2.0.0",
    "aimet-2.31.0/w8a8-litemp-fp16.v0.6.1",
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_detector_needs_no_float16_and_is_no_worse_than_aimets_simulation(variant: str) -> None:
    """The floor of 70 dB, and the quality of AIMET's own simulation where that is higher."""
    ways, _, _ = _ways(variant)
    prepared, _ = ways.choose()
    assert prepared is not None
    assert prepared.way.kind == "integer"
    assert prepared.way.float16_tensors == 0
    assert prepared.encodings.floats == frozenset()
    assert prepared.way.overall_db >= 70
    assert prepared.way.overall_db >= ways.reference_db - 0.05


def test_what_the_winner_claims_can_be_measured_again() -> None:
    """The winner's parts, run by hand, give the claimed number."""
    from deploykit.numerics.simulation import Simulator

    ways, feeds, _ = _ways("w8a16-fp16mix-omit.v1.0.0")
    prepared, _ = ways.choose()
    assert prepared is not None
    whole = Session(load_model(DETR / "model.onnx").proto)
    simulator = Simulator(prepared.model, prepared.encodings)
    outputs = []
    for feed in feeds:
        values = {**feed, **simulator.run(feed)}
        outputs.append(values if prepared.tail is None else run_chain([Session(prepared.tail)], values))
    measured = overall_sqnr_db([whole.run(feed) for feed in feeds], outputs)
    assert measured == pytest.approx(prepared.way.overall_db, abs=1e-9)


def test_fallback_and_segments_are_offered_beside() -> None:
    ways, _, _ = _ways("w8a16-fp16mix-omit.v1.0.0")
    by_id = {prepared.way.id: prepared for prepared in ways.prepared}
    assert by_id["fallback"].way.borders == 6
    assert by_id["fallback"].way.float16_tensors == 5
    assert by_id["segments"].way.segments == 3
    proof = by_id["segments"].proof
    assert proof is not None
    assert proof.holds
    for mixed in ("fallback", "segments"):
        chosen, _ = ways.choose(mixed=mixed)
        assert chosen is by_id[mixed]


def test_banned_rewrites_are_not_used() -> None:
    model = load_model(DETR / "model.onnx")
    encodings = read_encodings(DETR / "w8a16.v2.0.0.encodings")
    feeds = _feeds("w8a16.v2.0.0")
    ways = prepare_ways(model.proto, encodings, feeds, no_rewrite=["logit-of-sigmoid", "cut-tail"])
    used = {name for prepared in ways.prepared for name in prepared.way.rewrites}
    assert not used & {"logit-of-sigmoid", "cut-tail"}
    assert {"saturating-constant", "log-of-ratio"} <= used
    prepared, _ = ways.choose()
    assert prepared is not None
    assert prepared.way.overall_db >= 70


def test_what_limits_the_rest_are_8_bit_weights() -> None:
    """Before, one activation spoils everything; after, every weight costs about a decibel."""
    ways, feeds, encodings = _ways("w8a16.v2.0.0")
    model = load_model(DETR / "model.onnx").proto
    before = limiting_tensors(model, encodings, feeds, most=1)[0]
    assert before.tensor == "/decoder/Div_output_0"
    prepared, _ = ways.choose()
    assert prepared is not None
    reference = [Session(model).run(feed) for feed in feeds]
    after = limiting_tensors(prepared.model, prepared.encodings, feeds, reference=reference, tail=prepared.tail, most=3)
    assert all(limit.dtype == "int8" for limit in after)
    assert all(limit.gain_db < 3 for limit in after)
    entry = prepared.encodings.entries[after[0].tensor]
    assert isinstance(entry.value, Affine)
