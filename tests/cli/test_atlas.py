"""``deploykit atlas probe``: a measurement in words."""

from __future__ import annotations

from typing import Any

import pytest

from deploykit.cli import atlas, cli
from deploykit.cli.frame import run

FAR = {"most": 2050.0, "usual": 2050.0, "span": 2050.0, "share": 0.694}


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ({"deviation": FAR}, "up to 2050 of the 2050 steps of its range, 69.4% of the values by more than a hundredth"),
        ({"answer": "refused", "why": "Acos"}, "not taken: Acos"),
    ],
)
def test_a_probe_is_told_in_words(
    numbers: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Table:
        def probe(self, row: str) -> dict[str, Any]:
            return {"row": row, "said": "wrong", "verdict": "wrong", "holds": True, "numbers": {"case": row, **numbers}}

    monkeypatch.setattr(atlas, "_backend", lambda _asked: Table())
    assert run(cli, ["atlas", "probe", "Op: form | fp16"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("wrong (as the row says): Op: form | fp16: ") and told in shown
