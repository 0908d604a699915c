"""Results as dicts and tables: every result of the API has a main table, and what cannot be is said."""

from __future__ import annotations

import builtins
import sys
from typing import Any, ClassVar

import pytest

import deploykit
from deploykit.errors import UsageError
from deploykit.system.tabular import Tabular


class Measured(Tabular):
    main_table: ClassVar[str] = "numbers.outputs"

    def to_json(self) -> dict[str, Any]:
        rows = [{"name": "boxes", "loss": {"db": 30.5}}, {"name": "scores", "loss": {"db": 20.0}}]
        return {"version": 1, "words": ["a"], "numbers": {"outputs": rows}, "none": []}


def test_rows_become_a_table_with_dotted_columns() -> None:
    pytest.importorskip("pandas")
    frame = Measured().to_frame()
    assert list(frame.columns) == ["name", "loss.db"]
    assert frame["loss.db"].tolist() == [30.5, 20.0]
    assert len(Measured().to_frame("none")) == 0


def test_a_table_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="words") as refused:
        Measured().to_frame("words")
    assert refused.value.next == "its tables: none, numbers.outputs"


def test_without_pandas_the_answer_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    with pytest.raises(UsageError, match="pandas is not installed") as refused:
        Measured().to_frame()
    assert "pip install pandas" in refused.value.next
    assert Measured().to_dict() == Measured().to_json()


def test_a_real_result_is_a_dict_and_a_table() -> None:
    answer = deploykit.compat("encodings-2.0.0")
    assert answer.to_dict() == answer.to_json()
    pytest.importorskip("pandas")
    frame = answer.to_frame()
    assert len(frame) == len(answer.rows) > 0
    assert {"feature", "status", "source", "confidence"} <= set(frame.columns)
