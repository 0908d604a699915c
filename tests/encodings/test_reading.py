"""AIMET's own files: what is read of them, and that the same is written again."""

import json
from pathlib import Path
from typing import Any

import pytest

from deploykit.encodings.formats.aimet import _cost, fits, read_encodings, write_encodings
from deploykit.encodings.formats.differences import diff
from deploykit.encodings.values import Lpbq

AIMET = Path(__file__).parents[1] / "data" / "aimet"
NEWER = AIMET.parent / "aimet_derived/mlp-lpbq-w4a16.v2.1.0.encodings"
FILES = sorted(AIMET.rglob("*.encodings"))


def normal(value: Any) -> Any:
    """JSON with -0.0 as 0.0, and a zero point of 0 left out as AIMET does wherever it did not force a signedness."""
    if isinstance(value, dict):
        return {k: normal(v) for k, v in value.items() if not (k == "y_zero_point" and v == 0)}
    if isinstance(value, list):
        return [normal(item) for item in value]
    return value + 0.0 if isinstance(value, float) else value


def test_every_fixture_reads_and_writes_back_what_aimet_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(FILES) == 103
    for path in FILES:
        encodings, text = read_encodings(path), path.read_text()
        document = json.loads(text)
        assert encodings.version == document["version"]
        written = write_encodings(encodings, encodings.version)
        # Down to the byte, apart from the two spellings of zero.
        if "-0.0" not in text and "actsigned" not in path.name:
            assert written == text, path
        else:
            assert normal(json.loads(written)) == normal(document), path
        if "param_encodings" in document:
            params = document["param_encodings"]
            names = set(params) if isinstance(params, dict) else {each["name"] for each in params}
            assert {each.name for each in encodings if each.is_param} == names, path
        else:
            assert all(each.is_param is None for each in encodings), path
        with monkeypatch.context() as bound:  # what reading takes is told by counts, and never less than it is
            bound.setattr("deploykit.encodings.formats.aimet._BUDGET", _cost(written.encode()) - 1)
            assert not (encodings.entries and fits(encodings, encodings.version)), path


def test_210_has_lpbq_as_a_scale_of_scales() -> None:
    newer, older = read_encodings(NEWER), read_encodings(AIMET / "mlp/lpbq-w4a16.v2.0.0.encodings")
    assert newer.version == "2.1.0" and not diff(newer, older)
    pairs = [(each.value, older.entries[each.name].value) for each in newer if isinstance(each.value, Lpbq)]
    assert len(pairs) == 5
    assert all((a.axis, a.block_axis) == (b.axis, b.block_axis) for a, b in pairs if isinstance(b, Lpbq))
