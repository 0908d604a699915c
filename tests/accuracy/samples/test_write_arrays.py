"""Arrays under names that come from strangers: every one is read back as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from deploykit.accuracy.samples.arrays import read_arrays, write_arrays
from tables import each_row


@each_row("name", ["file", "allow_pickle", "args", "x.npy", "a/b", "../up", "é", "a" * 5000, ""])
def test_any_name_is_kept(name: str, tmp_path: Path) -> None:
    """``numpy.savez(path, file=…)`` is an error, and quantizing a model with such an input was one."""
    values: dict[str, Any] = {name: np.arange(6, dtype=np.float32).reshape(2, 3), "other": np.ones((), np.int64)}
    write_arrays(tmp_path / "a.npz", values)
    for read in (read_arrays(tmp_path / "a.npz"), dict(np.load(tmp_path / "a.npz"))):
        assert read.keys() == values.keys()
        np.testing.assert_array_equal(read[name], values[name])
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
