"""An answer is found under its question alone: another question, other code or a moved file make it anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploykit.system import answers
from deploykit.system.answers import answered
from deploykit.system.remembered import cache_folder, is_off

CODE = Path(answers.__file__).parent


class Asked:
    """Counts how often an answer had to be made."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, question: object, *, code: Path = CODE, kind: str = "tested", answer: object = None) -> object:
        def make() -> object:
            self.made += 1
            return (question, answer)

        return answered(kind, question, make, code=(code,))


def _forget_code() -> None:
    answers._makers.cache_clear()
    answers._content.cache_clear()


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DEPLOYKIT_NO_CACHE", raising=False)
    monkeypatch.setattr(answers, "is_off", is_off)
    _forget_code()


def test_the_same_question_is_answered_once() -> None:
    ask = Asked()
    assert ask(("model", 1)) == ask(("model", 1)) == (("model", 1), None)
    assert ask.made == 1


def test_another_question_is_another() -> None:
    ask = Asked()
    for question in (("model", 1), ("model", 2), ("model", 1.0), ["model", 1], ("model", True)):
        assert ask(question) == (question, None)
    assert ask.made == 5


def test_another_kind_is_another() -> None:
    ask = Asked()
    ask(1)
    ask(1, kind="other")
    assert ask.made == 2


def test_other_code_answers_anew(tmp_path: Path) -> None:
    ask, code = Asked(), tmp_path / "code"
    code.mkdir()
    (code / "a.py").write_text("1")
    ask(1, code=code)
    _forget_code()
    ask(1, code=code)
    assert ask.made == 1
    (code / "a.py").write_text("2")
    _forget_code()
    ask(1, code=code)
    assert ask.made == 2


@pytest.mark.parametrize("name", ["deploykit", "numpy", "onnx", "onnxruntime"])
def test_another_version_answers_anew(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Asked()
    ask(1)
    _forget_code()
    monkeypatch.setattr(answers, "_version", lambda asked: "0.0.other" if asked == name else "same")
    ask(1)
    _forget_code()
    monkeypatch.setattr(answers, "_version", lambda _asked: "same")
    ask(1)
    assert ask.made == 3


def test_an_answer_under_the_name_of_another_is_none() -> None:
    ask = Asked()
    ask(1)
    ask(2)
    one, two = sorted(cache_folder().rglob("*.bin"))
    one.write_bytes(two.read_bytes())
    assert ask(1) == (1, None) and ask(2) == (2, None)
    assert ask.made == 3


def test_a_damaged_answer_is_none() -> None:
    ask = Asked()
    ask("x")
    (path,) = cache_folder().rglob("*.bin")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert ask("x") == ("x", None) and ask.made == 2


def test_without_a_cache_nothing_is_taken_or_left(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Asked()
    ask(1)
    monkeypatch.setenv("DEPLOYKIT_NO_CACHE", "1")
    ask(1)
    ask(3)
    assert ask.made == 3 and len(list(cache_folder().rglob("*.bin"))) == 1


def test_what_cannot_be_written_down_is_made_each_time() -> None:
    ask = Asked()
    for _ in range(2):
        ask(1, answer=print)
        ask(print)
    assert ask.made == 4 and not list(cache_folder().rglob("*.bin"))
