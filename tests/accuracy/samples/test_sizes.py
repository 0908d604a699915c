"""The sizes that inputs get, and why: what is said, the samples, the model's metadata, then what runs and is usual."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import shape_inference

from deploykit.accuracy.samples.inputs import input_specs
from deploykit.accuracy.samples.sizes import decide_sizes, rows_meet, runs_with, split_shapes
from deploykit.errors import DeploykitError
from deploykit.model.collect import facts_of
from deploykit.model.shape_inference import contradiction
from text_models import text_model
from told import check_file

STORED: dict[str, Any] = {
    "table": np.ones((9, 8), np.float32),
    "high": np.ones((4, 3, 32, 3), np.float32),
    "recurrent": np.ones((1, 24, 8), np.float32),
    "axis": [2],
    "fours": [-1, 4, 8],
    "step": np.ones((512, 4), np.float32),
}


def _answer(question: str) -> list[str]:
    """``inputs; body``, then ``rows``, or ``dense``, ``metadata …``, ``sampled NAME …``, or what ``--input`` says.

    ``tried``: all that is tried where nothing fits.
    """
    given, body, *more = question.split("; ")
    stored = {name: value for name, value in STORED.items() if re.search(rf"\b{name}\b", body)}
    model = shape_inference.infer_shapes(text_model(given, body, **stored))
    facts = facts_of(model)
    dense, sampled, metadata, texts = False, {}, {}, []
    for said in more:
        word, _, rest = said.partition(" ")
        if word == "sampled":
            name, _, shape = rest.partition(" ")
            sampled[name] = tuple(json.loads(shape))
        elif word == "metadata":
            metadata["imgsz"] = rest
        elif word == "rows":
            random = np.random.default_rng(0)
            sample = {
                one.name: random.random((4, *(size or 1 for size in one.shape[1:])), np.float32)
                for one in input_specs(facts)
            }
            return ["rows meet" if rows_meet(model, sample, sample.keys()) else "rows stand apart"]
        elif word in ("dense", "tried"):
            dense |= word == "dense"
        else:
            texts.append(said)
    try:
        declared, others = split_shapes(texts, input_specs(facts))
    except DeploykitError as error:
        return [f"{error.what}; {error.why}"]
    tried = list[str]()

    def fits(shapes: Mapping[str, tuple[int, ...]]) -> bool:
        tried.append(" ".join("x".join(map(str, shape)) for shape in shapes.values()))
        return "tried" not in more and not contradiction(model, shapes)

    found = decide_sizes(
        facts,
        declared=declared,
        sampled=sampled,
        metadata=metadata,
        runs=runs_with(model, facts, {}),
        fits=fits,
        dense=dense,
    )
    lines = [f"{one.name} {one.shape}: {one.why}{', by habit' * one.usual}{', typed' * one.is_typed}" for one in found]
    left = (spec for spec in input_specs(facts) if None in spec.shape and spec.name not in {one.name for one in found})
    lines += [*(f"open: {spec}" for spec in left), *(f"says no shape: {text}" for text in others)]
    return [*lines, f"tried: {', '.join(dict.fromkeys(filter(None, tried)))}"] if "tried" in more else lines


def test_sizes_and_why() -> None:
    check_file(Path(__file__).with_name("sizes.told"), _answer)
