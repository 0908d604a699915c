"""What a sensitivity analysis found: the loss by layer and by tensor, alone and left out. Plain values, no arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.search.layers import Layer
from deploykit.accuracy.simulate.tensor_statistics import TensorStatistics

if TYPE_CHECKING:
    from deploykit.accuracy.samples.gathering import Samples

__all__ = ["LayerLoss", "Loss", "Sensitivity", "TensorLoss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Signal to noise of each output against the float model, in dB; infinite without any difference."""

    outputs: Mapping[str, float]

    @property
    def db(self) -> float:
        """Of the output that suffers most."""
        return min(self.outputs.values(), default=math.inf)

    def to_json(self) -> dict[str, Any]:
        """The published shape: None where there is no difference, or no signal at all."""
        return {"db": _finite(self.db), "outputs": {name: _finite(db) for name, db in self.outputs.items()}}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLoss:
    """One tensor: ``alone`` when only it is quantized, ``without`` when only it is float; None where not measured.

    ``own_db`` is signal to noise of the tensor itself between before and after its quantizer.
    """

    name: str
    kind: str
    dtype: str
    layers: tuple[str, ...]
    own_db: float
    statistics: TensorStatistics | None
    alone: Loss | None = None
    without: Loss | None = None

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        return {
            "tensor": self.name,
            "kind": self.kind,
            "dtype": self.dtype,
            "layers": list(self.layers),
            "own_db": _finite(self.own_db),
            "alone": _json(self.alone),
            "without": _json(self.without),
            "statistics": None if self.statistics is None else self.statistics.to_json(),
        }


def _json(loss: Loss | None) -> dict[str, Any] | None:
    return None if loss is None else loss.to_json()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLoss:
    """One layer, all its tensors together. ``weights`` and ``activations``: only these of the layer are quantized."""

    layer: Layer
    alone: Loss | None = None
    without: Loss | None = None
    weights: Loss | None = None
    activations: Loss | None = None

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        return {
            "layer": self.layer.name,
            "op_type": self.layer.op_type,
            "weights": list(self.layer.weights),
            "activations": list(self.layer.activations),
            "alone": _json(self.alone),
            "without": _json(self.without),
            "weights_alone": _json(self.weights),
            "activations_alone": _json(self.activations),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Everything that was measured, layers and tensors in graph order.

    ``whole`` is the loss with all of them quantized, ``weights`` and ``activations`` with only these. ``unmeasured``
    counts the losses that the budget left open; ``precision`` says where the encodings are from.
    """

    precision: str
    whole: Loss
    weights: Loss
    activations: Loss
    layers: tuple[LayerLoss, ...]
    tensors: tuple[TensorLoss, ...]
    samples: Samples
    used: int
    unmeasured: int = 0

    @property
    def worst_layers(self) -> tuple[LayerLoss, ...]:
        """The measured layers, the one whose quantizing alone costs most first."""
        known = [row for row in self.layers if row.alone is not None]
        return tuple(sorted(known, key=lambda row: row.alone.db if row.alone is not None else math.inf))

    @property
    def worst_tensors(self) -> tuple[TensorLoss, ...]:
        """The measured tensors, the one whose quantizing alone costs most first."""
        known = [row for row in self.tensors if row.alone is not None]
        return tuple(sorted(known, key=lambda row: row.alone.db if row.alone is not None else math.inf))

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit accuracy layers --json``."""
        return {
            "precision": self.precision,
            "samples": {**self.samples.to_json(), "used": self.used},
            "whole": self.whole.to_json(),
            "weights_only": self.weights.to_json(),
            "activations_only": self.activations.to_json(),
            "worst": [row.layer.name for row in self.worst_layers[:20]],
            "layers": [row.to_json() for row in self.layers],
            "tensors": [row.to_json() for row in self.tensors],
            "unmeasured": self.unmeasured,
        }
