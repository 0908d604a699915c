"""A package from what earlier runs worked out is the package that is made without them, byte for byte."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deploykit
from deploykit.flow import exploring, simplifying
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.system import answers, remembered

DATA = Path(__file__).parents[1] / "data" / "zoo" / "superres"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(answers, "is_off", remembered.is_off)


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was worked out, as it happens."""
    seen: list[str] = []
    for module, name in ((exploring, "explore"), (simplifying, "rewrite")):
        real = getattr(module, name)

        def noted(*args: Any, name: str = name, real: Any = real, **more: Any) -> Any:
            seen.append(name)
            return real(*args, **more)

        monkeypatch.setattr(module, name, noted)
    return seen


def samples(folder: Path, scale: float = 1.0) -> Path:
    facts, rng = collect_facts(load_model(DATA / "model.onnx")), np.random.default_rng(0)
    static = ((name, facts.tensors[name].shape or ()) for name in facts.inputs)
    shapes = {name: [dim if isinstance(dim, int) else 1 for dim in shape] for name, shape in static}
    arrays = {name: (scale * rng.standard_normal((2, *shape))).astype(np.float32) for name, shape in shapes.items()}
    path = folder / "samples.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def packaged(out: Path, calibration: Path, **options: Any) -> dict[str, str]:
    given: dict[str, Any] = {"backend": "qnn-htp", "sdk": "2.37", "encodings": DATA / "w8a16.v1.0.0.encodings"}
    made = deploykit.package(DATA / "model.onnx", target="sm8650", out=out, calibration=calibration, **given, **options)
    assert made.package is not None
    return {
        path.relative_to(out).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


def test_three_ways_to_the_same_bytes(tmp_path: Path, worked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given = samples(tmp_path)
    first = packaged(tmp_path / "first", given)
    assert "explore" in worked
    worked.clear()
    assert packaged(tmp_path / "again", given) == first
    assert worked == [], "it was taken from what is kept"
    monkeypatch.setenv("DEPLOYKIT_NO_CACHE", "1")
    assert packaged(tmp_path / "without", given) == first
    assert "explore" in worked


def test_other_samples_and_other_wishes_are_other_questions(tmp_path: Path, worked: list[str]) -> None:
    packaged(tmp_path / "first", samples(tmp_path))
    for number, (scale, options) in enumerate(((0.5, {}), (1.0, {"mixed": "refuse"}))):
        worked.clear()
        packaged(tmp_path / f"p{number}", samples(tmp_path, scale), **options)
        assert "explore" in worked


def test_an_answer_that_was_put_there_for_another_question_is_not_taken(tmp_path: Path, worked: list[str]) -> None:
    packaged(tmp_path / "first", samples(tmp_path))
    before = {path.name for path in (tmp_path / "cache" / "explored").iterdir()}
    second = packaged(tmp_path / "second", samples(tmp_path, 0.5))
    (one,) = (path for path in (tmp_path / "cache" / "explored").iterdir() if path.name in before)
    (two,) = (path for path in (tmp_path / "cache" / "explored").iterdir() if path.name not in before)
    two.write_bytes(one.read_bytes())
    worked.clear()
    assert packaged(tmp_path / "third", samples(tmp_path, 0.5)) == second
    assert "explore" in worked
