"""What an architecture is made of: a module, its inputs' distributions, its outputs' names; knows no architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

Draw = Callable[[np.random.Generator], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A module to export: its forward takes what ``inputs`` draw, in that order, and returns ``outputs``.

    ``heads`` are parts of the names of class heads, whose weights get larger: of equal scores no order can be wrong.
    """

    module: torch.nn.Module
    inputs: Mapping[str, Draw]
    outputs: tuple[str, ...]
    heads: tuple[str, ...] = ()

    def feed(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {name: draw(rng) for name, draw in self.inputs.items()}


def picture(*shape: int, channels: int = 3, low: float = -2.0, high: float = 2.0) -> Draw:
    """Smooth pictures of [1, channels, *shape]: a few waves and one edge, in 256 levels as a camera gives them."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        height, width = np.meshgrid(*(np.linspace(0, 1, size) for size in shape), indexing="ij")
        planes = []
        for _ in range(channels):
            waves = sum(
                rng.uniform(0.2, 1) / n * np.cos(2 * np.pi * (n * (rng.random() * height + rng.random() * width)) + t)
                for n, t in ((1, rng.uniform(0, 6)), (2, rng.uniform(0, 6)), (4, rng.uniform(0, 6)))
            )
            edge = rng.uniform(-0.6, 0.6) * (
                height * rng.uniform(-1, 1) + width * rng.uniform(-1, 1) > rng.random() / 2
            )
            planes.append(waves + edge)
        every = np.stack(planes)
        every = (every - every.min()) / (every.max() - every.min())
        levels = np.round(255 * every * rng.uniform(0.6, 1))
        return (low + (high - low) * levels / 255).astype(np.float32)[None]

    return draw


def sound(length: int) -> Draw:
    """A wave of [1, length]: three tones that fade, and a little noise, in 8 bits."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        time = np.linspace(0, 1, length)
        tones = sum(
            rng.uniform(0.3, 1)
            * np.exp(-rng.uniform(0, 3) * time)
            * np.sin(rng.uniform(20, 400) * time + rng.uniform(0, 6))
            for _ in range(3)
        )
        wave = tones + 0.02 * rng.standard_normal(length)
        return (np.round(127 * wave / np.abs(wave).max()) / 127).astype(np.float32)[None]

    return draw


def spectrum(bins: int, length: int, first: str = "bins") -> Draw:
    """A logarithmic spectrum between -1 and 1, of [1, bins, length], or [1, length, bins] with ``first="time"``."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        plane = picture(bins, length, channels=1, low=-1.0, high=1.0)(rng)[0]
        return plane if first == "bins" else np.ascontiguousarray(plane.transpose(0, 2, 1))

    return draw


def tokens(vocabulary: int, length: int) -> Draw:
    """Token ids of [1, length], small ones more often, as words are; 0 to 2 are kept for special tokens."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        ids = np.minimum(3 + rng.geometric(3 / vocabulary, length), vocabulary - 1)
        return ids.astype(np.int64)[None]

    return draw


def mask(length: int, shortest: int) -> Draw:
    """Ones for at least ``shortest`` tokens, zeros for the padding behind them, of [1, length]."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        return (np.arange(length) < rng.integers(shortest, length + 1)).astype(np.int64)[None]

    return draw


def segments(length: int) -> Draw:
    """Zeros for the first sentence, ones for the second, of [1, length]."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        return (np.arange(length) >= rng.integers(length // 4, 3 * length // 4)).astype(np.int64)[None]

    return draw


def state(*shape: int, size: float = 1.0) -> Draw:
    """What a step before left: values between plus and minus ``size`` in 256 levels."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        return (size * rng.integers(-127, 128, shape) / 127).astype(np.float32)

    return draw


def bias(queries: int, keys: int, masked: float = -100.0) -> Draw:
    """What is added to attention scores, of [1, 1, queries, keys]: ``masked`` for what lies ahead, or is padding."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        own = np.arange(queries)[:, None] + keys - queries
        key = np.arange(keys)[None]
        hidden = (key > own) | ((key < rng.integers(0, keys // 2)) & (key != own))
        return np.where(hidden, masked, 0).astype(np.float32)[None, None]

    return draw


def settle(subject: Subject, feeds: Sequence[Mapping[str, np.ndarray]], seed: int = 1) -> None:
    """Gives a fresh module what training would: weights that keep a signal's size, statistics of its inputs.

    After that every 1-D parameter and every statistic is moved a little, so that none stands at a value that a tool
    could take for its default.
    """
    module, generator = subject.module, torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                wider = 3 if any(part in name for part in subject.heads) else 1
                if not parameter.any():
                    parameter += torch.randn(parameter.shape, generator=generator)
                parameter *= wider / (parameter.std() * parameter[0].numel() ** 0.5)
        _measure(module, feeds)
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        for name, buffer in module.named_buffers():
            if name.endswith("running_mean"):
                buffer += 0.1 * torch.randn(buffer.shape, generator=generator)
            if name.endswith("running_var"):
                buffer *= 1 + 0.3 * torch.rand(buffer.shape, generator=generator)
        _round(module)


def _round(module: torch.nn.Module) -> None:
    """To bfloat16, as checkpoints are published; the recorded files pack twice as well."""
    for parameter in module.parameters():
        parameter.copy_(parameter.bfloat16().float())


def _measure(module: torch.nn.Module, feeds: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Runs the feeds through, so that each BatchNorm knows the mean and the variance of what reaches it."""
    norms = [part for part in module.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    module.eval()
    for norm in norms:
        norm.reset_parameters()
        norm.momentum = None
        norm.train()
    if norms:
        module(*(torch.from_numpy(np.concatenate([feed[name] for feed in feeds])) for name in feeds[0]))
    module.eval()
