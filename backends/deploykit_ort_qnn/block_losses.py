"""What LPBQ costs the block-quantized weights of a package: per weight, with integers kept and as they are stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.accuracy.judge.quality import sqnr_db
from deploykit.accuracy.simulate.quantizers import fake_quantize, grid_scale, spread_scale
from deploykit.encodings.lpbq import Loss
from deploykit.encodings.values import Affine, EncodingSet, Lpbq
from deploykit.model.weights import constant_values

if TYPE_CHECKING:
    from onnx import TensorProto

__all__ = ["block_loss", "block_losses"]


def block_losses(
    names: Iterable[str], before: EncodingSet, after: EncodingSet, weights: Mapping[str, TensorProto]
) -> dict[str, Loss]:
    """The loss per named weight that the model stores; one weight is in memory at a time."""
    losses = dict[str, Loss]()
    for name in names:
        old, new = before.entries[name].value, after.entries[name].value
        if name in weights and isinstance(old, Affine) and isinstance(new, Lpbq):
            losses[name] = block_loss(constant_values(weights[name]), old, new)
    return losses


def block_loss(values: Any, old: Affine, new: Lpbq) -> Loss:
    """Against the weight as its block grid holds it; a package stores the refined one, made from the float weight."""
    given = fake_quantize(values, old)
    scale, moved = (spread_scale(grid_scale(value), value, given.shape) for value in (old, new))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(scale > 0, moved / scale, np.float32(1.0))
    return Loss(
        scale_error=float(np.abs(ratio - 1).max(initial=0.0)),
        sqnr_db=sqnr_db(given, given * ratio),
        refined_sqnr_db=sqnr_db(given, fake_quantize(values, new)),
    )
