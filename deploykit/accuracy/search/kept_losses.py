"""The losses of a sensitivity analysis as they are measured, kept between runs so that an ended one goes on.

What is kept is found by a hash of everything that the numbers depend on. It measures nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.accuracy.search.sensitivity import Loss
from deploykit.accuracy.simulate.sessions import Feed
from deploykit.encodings.values import Value
from deploykit.model.values import byte_size
from deploykit.model.weights import WeightFiles, is_mapped, mapped_bytes, stored_values, unmapped
from deploykit.system.store import Store, key_of

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

__all__ = ["KeptLosses", "Question", "key_of_analysis"]

_METHOD = 1
"""Raised with every change of the method that makes other numbers: kept ones are then not found any more."""

_SAVE_EVERY = 2.0
"""Seconds between two writings."""

_LARGEST = 1_900_000_000
"""Bytes of weights up to which a model can be hashed as one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One measurement: only some tensors quantized (``alone``), or all but these."""

    alone: bool
    names: tuple[str, ...]

    @property
    def key(self) -> str:
        """The same for the same tensors in any order."""
        return json.dumps(["alone" if self.alone else "without", *sorted(self.names)])


class KeptLosses:
    """Losses by question. An empty ``key`` keeps nothing."""

    def __init__(self, key: str, *, resume: bool) -> None:
        self._key = key
        self._store = Store("sensitivity")
        self._losses: dict[str, Loss] = dict(_readable(self._store.get(key) or {})) if resume and key else {}
        self.recalled = len(self._losses)
        self._saved = time.monotonic()

    def get(self, question: Question) -> Loss | None:
        """The loss, where it was measured."""
        return self._losses.get(question.key)

    def put(self, question: Question, loss: Loss) -> None:
        """Take a measurement, and write all of them when enough time has passed."""
        self._losses[question.key] = loss
        if time.monotonic() - self._saved > _SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write what there is."""
        if self._key:
            self._store.put(self._key, {key: dict(loss.outputs) for key, loss in self._losses.items()})
        self._saved = time.monotonic()


def _readable(stored: Mapping[str, Any]) -> Sequence[tuple[str, Loss]]:
    return [
        (key, Loss(outputs=outputs))
        for key, outputs in stored.items()
        if isinstance(outputs, dict) and all(isinstance(db, float) for db in outputs.values())
    ]


def key_of_analysis(model: ModelProto, values: Mapping[str, Value], feeds: Sequence[Feed]) -> str:
    """The name under which losses are kept; empty for a model that is too large to be hashed."""
    outside = [tensor for tensor in model.graph.initializer if is_mapped(tensor)]
    if sum(byte_size(tensor, "") for tensor in model.graph.initializer) - mapped_bytes(model) > _LARGEST:
        return ""
    asked = {"method": _METHOD, "values": _digest_of_values(values), "feeds": _digest_of_feeds(feeds)}
    if outside:
        asked["weights"] = _digest_of_weights(outside)
    return key_of(unmapped(model).SerializeToString(deterministic=True), asked)


def _digest_of_weights(tensors: Sequence[TensorProto]) -> str:
    found = sha256()
    with WeightFiles() as files:
        for tensor in tensors:
            found.update(np.ascontiguousarray(stored_values(tensor, files)).tobytes())
    return found.hexdigest()


def _digest_of_feeds(feeds: Sequence[Feed]) -> str:
    found = sha256()
    for feed in feeds:
        for name in sorted(feed):
            found.update(f"{name} {feed[name].dtype} {feed[name].shape}".encode())
            found.update(np.ascontiguousarray(feed[name]).tobytes())
    return found.hexdigest()


_PLAIN = ("axis", "block_axis", "block_size", "decompressed_bits")
_ARRAYS = ("scale", "zero_point")


def _digest_of_values(values: Mapping[str, Value]) -> str:
    found = sha256()
    for name in sorted(values):
        value = values[name]
        found.update(f"{name} {value.dtype} {[getattr(value, part, None) for part in _PLAIN]}".encode())
        for part in _ARRAYS:
            found.update(np.asarray(getattr(value, part, 0.0), np.float64).tobytes())
    return found.hexdigest()
