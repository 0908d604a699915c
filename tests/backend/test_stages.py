"""The stages are what they say: planning is pure in every adapter, and nothing is prepared twice."""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from deploykit.backend.backend import Request, Same, SharedWork
from deploykit.flow.read import read_situation

DATA = Path(__file__).parents[1] / "data"
REQUESTS: dict[str, dict[str, Any]] = {
    "qnn-htp": {"target": "sm8650", "sdk": "2.33"},
    "ort-qnn": {"target": "sm8650"},
    "vitis-ai": {"target": "vek385", "precision": "bf16"},
}
MODELS = {
    "with encodings": ("aimet/detr/model.onnx", "aimet/detr/w8a16-fp16mix-omit.v1.0.0.encodings"),
    "float": ("aimet/vit/model.onnx", None),
}


def make_request(backend: str, model: str) -> Request:
    path, encodings = MODELS[model]
    named = None if encodings is None or backend == "vitis-ai" else DATA / encodings
    return Request(model=DATA / path, backend=backend, encodings=named, **REQUESTS[backend])


@pytest.fixture
def no_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every way to a file or to a session leaves its name here and fails."""
    tried: list[str] = []

    def forbidden(name: str) -> Any:
        def fail(*_: object, **__: object) -> Any:
            tried.append(name)
            raise AssertionError(f"{name} while planning")

        return fail

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", forbidden("open"))
        patched.setattr(os, "open", forbidden("os.open"))
        patched.setattr(Path, "open", forbidden("Path.open"))
        patched.setattr(Path, "read_text", forbidden("read_text"))
        patched.setattr(Path, "read_bytes", forbidden("read_bytes"))
        patched.setattr(onnxruntime, "InferenceSession", forbidden("InferenceSession"))
        yield tried


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend_id", REQUESTS)
def test_planning_touches_neither_disk_nor_runtime(backend_id: str, model: str, request: pytest.FixtureRequest) -> None:
    backend, situation = read_situation(make_request(backend_id, model))
    prepared = backend.prepare(situation, SharedWork())
    first = backend.plan(prepared)  # the tables are read by whoever asks first
    tried = request.getfixturevalue("no_world")
    assert backend.plan(prepared).to_json() == first.to_json()
    assert tried == []


def test_what_is_kept_is_made_once_for_the_same_object_only() -> None:
    shared, one, twin = SharedWork(), [1], [1]
    assert shared.once(("list", Same(one)), lambda: object()) is shared.once(("list", Same(one)), lambda: object())
    assert shared.once(("list", Same(one)), lambda: object()) is not shared.once(("list", Same(twin)), lambda: object())
