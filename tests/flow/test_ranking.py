"""The choice among ways: a pure function of simulated numbers, and the same on the real detector's encodings."""

import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import convert

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


def way(row: str) -> Way:
    """``DB ID KIND FIELD=VALUE ...``."""
    quality, identity, kind, *words = row.split()
    fields: dict[str, Any] = dict(word.split("=") for word in words)
    fields |= {name: fields[name] == "yes" for name in {"right"} & fields.keys()}
    fields |= {name: fields[name].split(",") for name in {"rewrites"} & fields.keys()}
    return convert({"overall_db": float(quality), "id": identity, "kind": kind, **fields}, Way, strict=False)


def ranked(question: str) -> Iterator[str]:
    """``DB dB, which is wrong | WAY | WAY``, or of ``nothing judged, safe, no floats meant``: what is said of each."""
    said, *rows = question.split(" | ")
    judged, ways = said.partition(" dB")[0] if " dB" in said else "", [way(row) for row in rows]
    asked: dict[str, Any] = {"sdk_mixes_safely": ", safe" in said, "means_floats": ", no floats meant" not in said}
    asked["reference_db"] = float(judged) if judged else None
    choice = choose(ways, **asked)
    assert choose(ways[::-1], **asked).winner == choice.winner
    for one in ways:
        is_enough = judged and is_proven(one, float(judged), reference_right="which is wrong" not in said)
        yield f"{'* ' * (one is choice.winner)}{one.id}: {choice.verdicts[one.id]}{', proven' * bool(is_enough)}"


def test_which_way_wins_and_why() -> None:
    """Beyond 80 dB nobody asks for more, three are a small loss, one decides against what is less intrusive."""
    check_file(Path(__file__).with_name("ranked.told"), ranked)
    assert not is_proven(at(math.nan, right=True), 60.0, reference_right=True)
