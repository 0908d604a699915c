"""Samples to run a model on: .npz and .npy files or folders of them, else seeded random numbers; and its weights.

What a file means is decided by the model's inputs; nothing is guessed from values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from deploykit.errors import InputError
from deploykit.numerics.outputs import read_outputs
from deploykit.numerics.sessions import random_feeds
from deploykit.quantization.entries import encoded_bounds

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import EncodingSet
    from deploykit.graph import Model

__all__ = ["gather_samples", "load_small_weights", "load_weights", "read_samples"]

_Arrays = dict[str, npt.NDArray[Any]]


def load_weights(model: Model) -> ModelProto:
    """The model as one value with all its weights: a copy where weights lie in files beside it."""
    if not model.external:
        return model.proto
    from onnx import ModelProto
    from onnx.external_data_helper import load_external_data_for_model

    whole = ModelProto()
    whole.CopyFrom(model.proto)
    load_external_data_for_model(whole, str(model.path.parent))
    return whole


def load_small_weights(model: Model, *, limit: int = 1 << 20) -> ModelProto:
    """The model with initializers of at most ``limit`` elements read.

    Enough for matching rewrites, which look at constants and never at the weights of linear ops.
    """
    if not model.external:
        return model.proto
    from onnx import ModelProto, numpy_helper

    from deploykit.graph.weights import weight

    partly = ModelProto()
    partly.CopyFrom(model.proto)
    for tensor in partly.graph.initializer:
        if tensor.data_location == tensor.EXTERNAL and math.prod(tensor.dims) <= limit:
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(weight(model, tensor.name)), tensor.name))
    return partly


def gather_samples(
    model: ModelProto,
    data: Path | None,
    *,
    samples: int | None = None,
    seed: int = 0,
    encodings: EncodingSet | None = None,
) -> list[_Arrays]:
    """At most ``samples`` samples of the data; without data that many random ones (2 by default).

    Random floats are uniform over what the input's entry can hold, standard normal where it has none.
    """
    if data is None:
        count = 2 if samples is None else samples
        return random_feeds(model, samples=count, seed=seed, ranges=encoded_bounds(encodings))
    found: list[_Arrays] = []
    for sample in read_samples(model, data):
        if samples is not None and len(found) == samples:
            break
        found.append(sample)
    return found


def read_samples(model: ModelProto, path: Path) -> Iterator[_Arrays]:
    """The samples of a folder (one per file) or a file, one at a time.

    Arrays are named after the inputs, a lone .npy is the only input's. ``<number>:<name>`` keys hold several samples
    in one file, and so do arrays that are a whole number of times as long as the input along the first axis.
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = {item.name: _shape(item) for item in model.graph.input if item.name not in stored}
    for name, read in read_outputs(path).samples.items():
        for arrays in _numbered(dict(read())):
            yield from _split(_named(arrays, inputs, f"{path}: {name}" if name else str(path)), inputs)


def _shape(item: Any) -> tuple[int | None, ...]:
    dims = item.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)


def _numbered(arrays: _Arrays) -> list[_Arrays]:
    """Split ``<number>:<name>`` keys into samples, in the order of their numbers."""
    if not arrays or not all(key.partition(":")[0].isdigit() and ":" in key for key in arrays):
        return [arrays]
    samples: dict[int, _Arrays] = {}
    for key, value in arrays.items():
        number, _, name = key.partition(":")
        samples.setdefault(int(number), {})[name] = value
    return [samples[number] for number in sorted(samples)]


def _named(arrays: _Arrays, inputs: Mapping[str, tuple[int | None, ...]], where: str) -> _Arrays:
    if set(arrays) == {""} and len(inputs) == 1:
        return {next(iter(inputs)): arrays[""]}
    missing = sorted(inputs.keys() - arrays.keys())
    if missing:
        raise InputError(
            f"{where}: no array for the input {missing[0]!r}",
            why=f"it has {', '.join(sorted(map(repr, arrays)))}",
            next="name the arrays after the model's inputs",
        )
    return {name: arrays[name] for name in inputs}


def _split(arrays: _Arrays, inputs: Mapping[str, tuple[int | None, ...]]) -> Iterator[_Arrays]:
    """One sample as it is, or as many as the arrays are times as long as the inputs."""
    count = min((_times(arrays[name], shape) for name, shape in inputs.items()), default=1)
    for index in range(count):
        yield {name: _slice(arrays[name], shape, index, count) for name, shape in inputs.items()}


def _times(array: npt.NDArray[Any], shape: tuple[int | None, ...]) -> int:
    if not shape or not shape[0] or array.ndim != len(shape):
        return 1
    return max(array.shape[0] // shape[0], 1) if array.shape[0] % shape[0] == 0 else 1


def _slice(array: npt.NDArray[Any], shape: tuple[int | None, ...], index: int, count: int) -> npt.NDArray[Any]:
    if count > 1 and shape and shape[0]:
        array = array[index * shape[0] : (index + 1) * shape[0]]
    return array.astype(np.float32) if array.dtype == np.float64 else array
