"""The ways on the real HTP compiler and emulator of onnxruntime-qnn: the emulator has the last word on a rewrite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploykit.accuracy.simulate.sessions import Session
from deploykit.accuracy.simulate.simulation import overall_sqnr_db
from deploykit.encodings.float_sets import predict_float_set
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.place import place
from deploykit.encodings.segments import partition, split_model
from deploykit.encodings.values import EncodingSet
from deploykit.flow.cure import rewrite
from deploykit.model import load_model
from deploykit.model.collect import collect_facts

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.heavy

DETR = Path(__file__).parents[1] / "data" / "aimet" / "detr"
SOC = {"soc_model": "57"}
"""An HTP of architecture v75."""


def _detr(variant: str) -> tuple[onnx.ModelProto, EncodingSet, list[dict[str, np.ndarray]]]:
    model = load_model(DETR / "model.onnx")
    encodings = place(read_encodings(DETR / f"{variant}.encodings"), collect_facts(model))
    with np.load(DETR / f"{variant.rsplit('.v', 1)[0]}.io.npz") as data:
        feeds = [
            {key.split(":", 1)[1]: data[key] for key in data.files if key.startswith(f"input.{index}:")}
            for index in (0, 1)
        ]
    return model.proto, encodings, feeds


def _compile(root: Path, model: onnx.ModelProto) -> None:
    from deploykit_ort_qnn.compiler.jobs import CompileJob, compile_model

    onnx.save(model, root / "model.onnx")
    outcome = compile_model(CompileJob(root=root, model="model.onnx", context="context.onnx", options=SOC))
    assert outcome.ok, (outcome.message, outcome.refused)
    assert not outcome.cpu_nodes


def _emulate(
    root: Path, model: onnx.ModelProto, feeds: Sequence[Mapping[str, np.ndarray]]
) -> list[dict[str, np.ndarray]]:
    from emulator import execute_model

    _compile(root, model)
    wanted = [item.name for item in model.graph.input]
    arrays = {f"{index}:{name}": feed[name] for index, feed in enumerate(feeds) for name in wanted}
    np.savez(root / "inputs.npz", **arrays)  # type: ignore[arg-type]
    made = execute_model(root, "context.onnx", root / "inputs.npz", provider="npu", options=SOC)
    return [
        {key.split(":", 1)[1]: value for key, value in made.items() if key.startswith(f"{index}:")}
        for index in range(len(feeds))
    ]


REWRITES = [
    ("saturating-constant", "log-of-ratio", "log-range"),
    ("saturating-constant", "logit-of-sigmoid", "split-output", "scale-last"),
    ("saturating-constant", "logit-of-sigmoid", "cut-tail"),
]


@pytest.mark.parametrize("names", REWRITES, ids="+".join)
def test_a_rewritten_detector_reaches_70_db_on_the_emulator(tmp_path: Path, names: tuple[str, ...]) -> None:
    from deploykit_ort_qnn.provider_model import provider_model

    model, encodings, feeds = _detr("w8a16.v2.0.0")
    done = rewrite(model, encodings, names, feeds)
    made = _emulate(tmp_path, provider_model(done.model, done.encodings, int16_matmul=True).model, feeds)
    tail = None if done.tail is None else Session(done.tail)
    outputs = [
        values if tail is None else tail.run({**feed, **values}) for feed, values in zip(feeds, made, strict=True)
    ]
    reference = [Session(model).run(feed) for feed in feeds]
    assert overall_sqnr_db(reference, outputs) >= 70


def test_every_segment_compiles_and_the_chain_runs_on_the_emulator(tmp_path: Path) -> None:
    """Quantized segments with their own encodings, the float one in float16: three contexts, one after the other."""
    from deploykit_ort_qnn.provider_model import provider_model

    model, encodings, feeds = _detr("w8a16-fp16mix-omit.v2.0.0")
    facts = collect_facts(load_model(DETR / "model.onnx"))
    prediction = predict_float_set(facts, encodings)
    cut = partition(facts, prediction.intended, absorbed=list(prediction.absorbed))
    values: list[dict[str, np.ndarray]] = [dict(feed) for feed in feeds]
    for segment in split_model(model, encodings, cut):
        folder = tmp_path / segment.name
        folder.mkdir()
        part = segment.model
        if segment.encodings is not None:
            part = provider_model(segment.model, segment.encodings, int16_matmul=True).model
        for known, made in zip(values, _emulate(folder, part, values), strict=True):
            known.update(made)
    reference = [Session(model).run(feed) for feed in feeds]
    assert overall_sqnr_db(reference, values) >= 65
