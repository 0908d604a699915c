"""What kernels are given, and how it is counted how far off they are."""

from __future__ import annotations

import numpy as np

from deploykit_ort_qnn.bench.together import Span, covering, deviation


def test_inputs_cover_the_range_in_every_way() -> None:
    sets = covering((4, 8), Span(low=-1.0, high=3.0), 0, dense=3)
    assert {array.shape for array in sets} == {(4, 8)} and len(sets) == 8
    assert min(map(np.min, sets)) == -1.0 and max(map(np.max, sets)) == 3.0
    assert any(len(np.unique(array)) == 1 for array in sets) and any(len(np.unique(array)) == 2 for array in sets)
    coarse = covering((4, 8), Span(low=-2.0, high=2.0, coarse=True), 0)
    assert all(np.allclose((array - 0.125) * 4, np.rint((array - 0.125) * 4)) for array in coarse)


def test_deviations_are_counted_in_steps() -> None:
    wanted = np.arange(100, dtype=np.float32)
    found = deviation({"y": [wanted, wanted]}, {"y": [wanted, wanted * 2]}, {"y": 0.5})
    assert (found.most, found.span, found.set, found.factor) == (198.0, 198.0, 1, 1.5)
    assert deviation({"y": [wanted]}, {"y": [wanted]}, {"y": 0.5}).most == 0
    broken = wanted.copy()
    broken[3] = np.nan
    assert deviation({"y": [wanted]}, {"y": [broken]}, {}).odd == 1
    assert deviation({"y": [broken]}, {"y": [wanted]}, {}).odd == 0
    assert deviation({"y": [np.arange(4)]}, {"y": [np.array([0, 1, 2, 9])]}, {}).share == 0.25
