"""The user's own measures: functions in a child, with a deadline; the documented examples are right."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploykit.accuracy.judge.metric import UserMetric, user_metric
from deploykit.errors import InputError, ToolError
from tables import each_row

EXAMPLES = Path(__file__).parents[2] / "docs" / "metrics"
Samples = list[dict[str, Any]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(function: str, **more: Any) -> UserMetric:
    found = user_metric(function, **more)
    assert found is not None
    return found


OUTPUTS: Samples = [{"a/b:0": np.asarray([[1.0, 3.0, 2.0]])}, {"a/b:0": np.asarray([[9.0, 3.0, 2.0]])}]
FLOAT: Samples = [{"a/b:0": np.asarray([[0.0, 1.0, 0.5]])}, {"a/b:0": np.asarray([[0.0, 0.5, 1.0]])}]


def test_a_function_gets_outputs_and_the_float_models(here: Path) -> None:
    (here / "mine.py").write_text(
        "class scores:\n"
        "    @staticmethod\n"
        "    def first(outputs, references):\n"
        "        assert list(outputs[0]) == ['a/b:0'] and len(outputs) == 2\n"
        "        return outputs[1]['a/b:0'][0, 0] + references[0]['a/b:0'][0, 2]\n"
    )
    assert asked("mine:scores.first").measure(OUTPUTS, FLOAT) == 9.5
    assert "mine" not in sys.modules


@each_row(
    ("body", "says"),
    ("raise RuntimeError('no labels')", "RuntimeError: no labels"),
    ("return float('nan')", "which is no measure"),
    ("import os; os._exit(3)", "it said nothing"),
)
def test_a_function_that_fails_is_an_error(here: Path, body: str, says: str) -> None:
    (here / "mine.py").write_text(f"def bad(outputs, references):\n    {body}\n")
    with pytest.raises(ToolError) as caught:
        asked("mine:bad").measure(OUTPUTS, FLOAT)
    assert says in caught.value.why


def test_the_deadline_ends_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploykit.accuracy.judge.metric._DEADLINE", 0.3)
    (here / "mine.py").write_text("import time\ndef slow(outputs, references):\n    time.sleep(60)\n")
    with pytest.raises(ToolError, match=r"took longer than 0\.3 s"):
        asked("mine:slow").measure(OUTPUTS, FLOAT)


@pytest.mark.heavy
@each_row(
    ("name", "function", "right", "wrong", "value"),
    ("accuracy", "top1", FLOAT, OUTPUTS, 0.5),
    ("detection", "mean_average_precision", None, None, 0.5),
    ("speech", "word_error_rate", None, None, 1 / 3),
)
def test_the_documented_examples_are_right(
    name: str, function: str, right: Samples | None, wrong: Samples | None, value: float, here: Path
) -> None:
    """Against values worked out by hand: all found, and a part of it lost."""
    (here / f"{name}.py").write_text((EXAMPLES / f"{name}.py").read_text("utf-8"), "utf-8")
    labels = here / "labels"
    labels.mkdir(exist_ok=True)
    if name == "detection":
        (labels / "0.txt").write_text("0 0 0 10 10\n1 20 20 30 30\n")
        found = np.asarray([[0, 0, 10, 10, 0.9, 0], [20, 20, 30, 30, 0.8, 1]])
        right, wrong = (
            [{"boxes": rows[:, :4], "scores": rows[:, 4], "labels": rows[:, 5].astype(int)}]
            for rows in (found, found[:1])
        )
    elif name == "speech":
        (labels / "0.txt").write_text("Hello small world\n")
        spec = importlib.util.spec_from_file_location("speech", EXAMPLES / "speech.py")
        assert spec is not None and spec.loader is not None
        speech = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(speech)
        letters = speech.ALPHABET
        right, wrong = (
            [{"logits": np.eye(len(letters))[[letters.index(c) for c in text]][None]}]
            for text in ("hheel_llo  smal_l__ world", "hel_lo world")
        )
    measure = asked(f"{name}:{function}", references=None if name == "accuracy" else labels)
    assert right is not None and wrong is not None
    assert measure.measure(right, FLOAT if name == "accuracy" else right) == (0.0 if name == "speech" else 1.0)
    assert measure.measure(wrong, FLOAT if name == "accuracy" else wrong) == pytest.approx(value)


def _labelled(folder: Path) -> tuple[Path, Path]:
    """Five references that name their place: a folder of files, and a .npz."""
    files = folder / "labels"
    files.mkdir()
    for place in range(5):
        (files / f"{place}.txt").write_text(str(place))
    np.savez(folder / "labels.npz", y=np.arange(5.0))
    return files, folder / "labels.npz"


def test_some_samples_are_measured_by_the_references_at_their_places(here: Path) -> None:
    """The number says which references came: those of the second and the fourth sample, in this order."""
    files, stored = _labelled(here)
    (here / "mine.py").write_text(
        "def paths(outputs, references):\n"
        "    return float('.'.join(path.read_text() for path in references))\n"
        "def arrays(outputs, references):\n"
        "    return float('.'.join(str(int(row['y'])) for row in references))\n"
    )
    for function, references in (("mine:paths", files), ("mine:arrays", stored)):
        assert asked(function, references=references).of_some((1, 3), 5).measure(OUTPUTS, FLOAT) == 1.3


def test_references_for_another_number_of_samples_are_refused(here: Path) -> None:
    files, _ = _labelled(here)
    (here / "mine.py").write_text("def one(outputs, references):\n    return 1.0\n")
    with pytest.raises(InputError, match="5 references for 6 samples"):
        asked("mine:one", references=files).of_some((1, 3), 6).measure(OUTPUTS, FLOAT)
