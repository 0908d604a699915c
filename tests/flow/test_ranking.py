"""The choice among ways: a pure function of simulated numbers, and the same on the real detector's encodings."""

import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from deploykit.accuracy.samples.gathering import InputSource, Samples
from deploykit.accuracy.samples.inputs import Label
from deploykit.backend.backend import MixedSupport
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.place import place
from deploykit.findings import Confidence
from deploykit.flow.choose import BuiltWays, choose, explore, is_proven
from deploykit.flow.ways import Way, WayInputs
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from tables import each_row
from told import check_file

DETR = Path(__file__).parents[1] / "data" / "aimet" / "detr"


def at(db: float, identity: str = "rewrite", kind: str = "integer", **more: object) -> Way:
    """A way of this quality, without any change to the model where nothing more is said."""
    return Way(id=identity, kind=kind, overall_db=db, **more)  # type: ignore[arg-type]


WAYS = st.lists(
    st.builds(
        at,
        st.floats(-20, 120),
        st.sampled_from("abcdef"),
        st.sampled_from(["integer", "fallback", "segments"]),
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


def _ground(variant: str, *, made_up: bool = False, **options: Any) -> WayInputs:
    """On the recorded inputs, as somebody would give them; ``made_up``: as if nobody had."""
    with np.load(DETR / f"{variant.rsplit('.v', 1)[0]}.io.npz") as data:
        numbers = sorted({key.split(":")[0] for key in data.files if key.startswith("input.")})
        feeds = [{k.split(":", 1)[1]: data[k] for k in data.files if k.startswith(f"{n}:")} for n in numbers]
    given = {name: InputSource(label=Label.ARBITRARY if made_up else Label.GIVEN, why="") for name in feeds[0]}
    model = load_model(DETR / "model.onnx")
    facts = collect_facts(model)
    encodings = place(read_encodings(DETR / f"{variant}.encodings"), facts)
    return WayInputs.of(model.proto, encodings, facts, Samples(feeds=tuple(feeds), of_inputs=given), **options)


@cache
def _explored(variant: str, mixed: str = "auto") -> BuiltWays:
    return explore(_ground(variant), EVERY_KIND, mixed=mixed, tell=lambda line: None)


@each_row(
    "variant",
    "w8a16.v1.0.0",
    "w8a16-fp16mix-explicit.v0.6.1",
    "w8a16-fp16mix-omit.v1.0.0",
    "w8a8-fp16mix-omit.v2.0.0",
    "aimet-2.31.0/w8a8-litemp-fp16.v0.6.1",
)
def test_the_detector_needs_no_float16_and_is_no_worse_than_aimets_simulation(variant: str) -> None:
    """The quality of AIMET's own simulation, and at least 70 dB where nothing but 16-bit integers was asked for."""
    explored = _explored(variant)
    prepared, reference = explored.winner, explored.reference
    assert prepared is not None and reference is not None
    assert prepared.way.kind == "integer" and prepared.way.float16_tensors == 0
    assert prepared.encodings.floats == frozenset()
    assert prepared.way.overall_db >= 70 or not variant.startswith("w8a16.")
    assert prepared.way.overall_db >= reference.overall_db - 0.05


def tried(question: str) -> Iterator[str]:
    """``VARIANT, made up | kinds, =how sure, !without one, safe | --mixed | --no-rewrite | --rewrite``."""
    variant, able, mixed, banned, asked = map(str.strip, question.split("|"))
    words = able.replace(" safe", "").split()
    sure = dict(word.split("=") for word in words if "=" in word)
    support = MixedSupport(
        kinds=frozenset(word.partition("=")[0] for word in words if not word.startswith("!")),
        safe=" safe" in able,
        without={word[1:]: "no compiler" for word in words if word.startswith("!")},
        confidence={kind: Confidence(word) for kind, word in sure.items()},
    )
    ground = _ground(variant.partition(",")[0], made_up="," in variant, banned=banned.split(), asked=asked.split())
    news: list[str] = []
    found = explore(ground, support, mixed=mixed, tell=news.append)
    yield f"{', '.join(news)}; {'a tail' if found.winner and found.winner.tail else 'no tail'}"
    for row in found.choice.to_json():
        why = re.sub(r"\d+\.\d dB", "... dB", row["why"])
        yield f"{'* ' * row['won']}{row['id']} ({row['confidence']}): {why}"
        if row["id"] in {way.way.id for way in found.built}:
            counts = [f"{row[name]} {name}" for name in ("float16_tensors", "borders", "segments")]
            yield f"    {', '.join((*counts, *row['rewrites']))}; {row['right']}"


def test_what_is_tried_in_which_order_and_said_of_each_way() -> None:
    check_file(Path(__file__).with_name("explored.told"), tried)


AS_IS, REWRITE, CUT = at(10.0, "as-is"), at(77.0, intrusion=1), at(78.5, "cut", intrusion=3)
FALLBACK = at(76.0, "fallback", "fallback", float16_tensors=5, borders=6, confidence=Confidence.REPORTED)
SEGMENTS = at(74.0, "segments", "segments", segments=3, borders=5, confidence=Confidence.OBSERVED)


@each_row(
    ("ways", "reference", "safe", "winner"),
    # Reaching the reference beats a safe SDK; five hundredths of a decibel are no difference.
    ((at(69.96), FALLBACK), 70, True, "rewrite"),
    ((at(69.94), FALLBACK), 70, True, "fallback"),
    # Beyond 80 dB nobody asks for more.
    ((at(79.96), FALLBACK), 95, True, "rewrite"),
    ((at(79.94), FALLBACK), 95, True, "fallback"),
    # Three decibels are a small loss.
    ((at(66.96), FALLBACK), 70, False, "rewrite"),
    ((at(66.94), FALLBACK), 70, False, "fallback"),
    # A decibel decides against the less intrusive, and above eighty more is not better.
    ((at(77.0, intrusion=1), at(77.99, "cut", intrusion=3)), 60, False, "rewrite"),
    ((at(77.0, intrusion=1), at(78.01, "cut", intrusion=3)), 60, False, "cut"),
    ((at(77.0, intrusion=1), at(75.0, "cut", intrusion=3)), 60, False, "rewrite"),
    ((at(80.01, intrusion=1), at(120.0, "cut", intrusion=3)), 60, False, "rewrite"),
    ((at(79.99, intrusion=1), at(120.0, "cut", intrusion=3)), 60, False, "cut"),
    # What is right goes before what is not; a hundredth of the detections is no difference between wrong ones.
    ((at(79.0, right=False), at(70.0, "cut", intrusion=3, right=True)), 60, False, "cut"),
    ((at(70.0, kept=0.791), at(71.0, "cut", kept=0.8, intrusion=3)), 60, False, "rewrite"),
    ((at(70.0, kept=0.789), at(71.0, "cut", kept=0.8, intrusion=3)), 60, False, "cut"),
    # The energy of boxes says nothing about scores that are all zero.
    ((at(43.0, right=False, kept=0.1), at(40.0, "cut", right=False, kept=0.8, intrusion=3)), 40, False, "cut"),
    # What is safe comes before a small loss, and only the SDK's own mix is.
    ((at(67.0), FALLBACK, SEGMENTS), 70, True, "fallback"),
    ((at(67.0), SEGMENTS), 70, True, "rewrite"),
    ((at(60.0), FALLBACK, replace(SEGMENTS, unavailable="no")), 70, False, "fallback"),
    ((at(75.0, "b"), at(75.5, "a")), 60, False, "a"),
)
def test_which_way_wins(ways: tuple[Way, ...], reference: float, safe: bool, winner: str) -> None:
    choice = choose(ways, reference_db=reference, sdk_mixes_safely=safe)
    assert choice.winner is not None and choice.winner.id == winner


@each_row(
    ("one", "other", "winner"),
    ({"borders": 3}, {"borders": 2}, "b"),
    ({"borders": 2, "segments": 3}, {"borders": 3, "segments": 1}, "b"),
    ({}, {}, "a"),
)
def test_of_two_equals_fewer_borders_and_segments_win(one: dict[str, int], other: dict[str, int], winner: str) -> None:
    ways = (at(75.0, "a", "segments", **one), at(75.0, "b", "segments", **other))
    for choice in (choose(ways, reference_db=60), choose(ways), choose(ways[::-1])):
        assert choice.winner is not None and choice.winner.id == winner


@each_row(
    ("changes", "reference", "proven"),
    ({"overall_db": 60.0}, 60.0, True),
    ({"overall_db": 59.96}, 60.0, True),
    ({"overall_db": 59.94}, 60.0, False),
    ({"overall_db": 79.96}, 95.0, True),
    ({"overall_db": 79.94}, 95.0, False),
    *(({"right": right}, 60.0, False) for right in (False, None)),
    *((changes, 60.0, False) for changes in ({"overall_db": math.nan}, {"unavailable": "no"}, {"kind": "segments"})),
)
def test_what_is_proven(changes: dict[str, Any], reference: float, proven: bool) -> None:
    assert is_proven(replace(at(60.0, right=True), **changes), reference, reference_right=True) is proven


@pytest.mark.parametrize(("db", "proven"), [(69.9, False), (69.96, True), (75.0, True)])
def test_a_reference_that_is_wrong_is_no_measure(db: float, proven: bool) -> None:
    assert is_proven(at(db, right=True), 8.0, reference_right=False) is proven


def test_where_nobody_meant_float16_unjudged_ways_stay_integer() -> None:
    rewritten = at(1.0, rewrites=("fold",), intrusion=1)
    for ways in ((AS_IS, FALLBACK, SEGMENTS), (AS_IS, rewritten, FALLBACK)):
        choice = choose(ways, sdk_mixes_safely=True, means_floats=False)
        assert choice.winner is ways[rewritten in ways] and choice.verdicts[choice.winner.id] == (
            "not judged; the file means no float16, and every range follows from what it says"
        )


@each_row(
    ("loser", "winner", "why"),
    (FALLBACK, REWRITE, "5 float16 tensors and 6 borders that rewrite does without"),
    (at(74.0, "cut", intrusion=3), REWRITE, "74.0 dB against 77.0 dB of rewrite"),
    (at(math.nan, "cut", "integer", unavailable="broken"), REWRITE, "broken"),
    (at(76.5, "cut", intrusion=3), REWRITE, "rewrite is as good and changes less"),
    (at(74.0, "fallback", "fallback"), SEGMENTS, "segments is surer to work"),
    (at(-math.inf, "cut"), REWRITE, "no signal against 77.0 dB of rewrite"),
    (
        at(76.4, intrusion=1),
        at(77.3, "cut", intrusion=3),
        "76.4 dB is less than the encodings' own simulation has (76.5 dB)",
    ),
)
def test_the_loser_hears_why(loser: Way, winner: Way, why: str) -> None:
    choice = choose((loser, winner), reference_db=76.5)
    assert choice.winner is winner and choice.verdicts[loser.id] == why


@each_row(
    ("ways", "safe", "winner", "why"),
    ((AS_IS, FALLBACK, SEGMENTS), True, "fallback", "this SDK mixes float16 and integers safely"),
    ((AS_IS, FALLBACK, SEGMENTS), False, "segments", "float16 was meant, and this is the surest way to it"),
    (
        (AS_IS, at(1.0, rewrites=("fold",), intrusion=1)),
        True,
        "rewrite",
        "its rewrites are proven equal, and each answers a trouble in the graph",
    ),
    ((AS_IS, CUT), False, "as-is", "no other way is available"),
)
def test_unjudged_ways_go_by_structure(ways: tuple[Way, ...], safe: bool, winner: str, why: str) -> None:
    choice = choose(ways, sdk_mixes_safely=safe)
    assert choice.winner is not None and choice.winner.id == winner
    assert choice.verdicts[winner] == f"not judged; {why}"
    others = {way.id for way in ways} - {winner}
    assert {choice.verdicts[other] for other in others} == {f"not judged; {winner} was chosen on structure"}
