"""Inputs of a generated decoder: tokens, rotary positions, a causal mask, and what was read before."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto

from sample_models.decoders import Decoder

__all__ = ["decoder_feeds"]


def decoder_feeds(model: ModelProto, decoder: Decoder, seed: int = 0) -> dict[str, Any]:
    """One sample for either graph; the past is full and the new tokens come last."""
    rng, feeds = np.random.default_rng(seed), dict[str, Any]()
    for item in model.graph.input:
        shape = [dim.dim_value for dim in item.type.tensor_type.shape.dim]
        if item.name == "tokens":
            feeds[item.name] = rng.integers(0, decoder.words, shape, np.int32)
        elif item.name in ("cos", "sin"):
            feeds[item.name] = _rope(item.name, shape, decoder)
        elif item.name == "mask":
            behind = np.arange(shape[3]) > np.arange(shape[3] - shape[2], shape[3])[:, None]
            feeds[item.name] = np.where(behind, np.float32(-100), np.float32(0)).reshape(shape)
        else:
            feeds[item.name] = np.clip(rng.standard_normal(shape), -4, 4).astype(np.float32)
    return feeds


def _rope(name: str, shape: list[int], decoder: Decoder) -> Any:
    places = np.arange(decoder.context - shape[2], decoder.context)[:, None]
    turns = places / 10000 ** (np.arange(shape[3] // 2) * 2 / shape[3])
    angles = np.concatenate([turns, turns], axis=1)
    return (np.cos(angles) if name == "cos" else np.sin(angles)).astype(np.float32).reshape(shape)
