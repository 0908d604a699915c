"""Recurrent and streaming nets in plain torch."""

from __future__ import annotations

from torch import Tensor, nn
from torch import cat as concatenated

from .sample import Subject, spectrum, state


class Captions(nn.Module):
    """Speech recognition of the first kind: convolution, GRU both ways, LSTM, log-probabilities."""

    def __init__(self, bins: int = 16, width: int = 16, letters: int = 12) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(bins, 2 * width, 3, 2, 1), nn.ReLU())
        self.gru = nn.GRU(2 * width, width, batch_first=True, bidirectional=True)
        self.lstm = nn.LSTM(2 * width, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, letters)

    def forward(self, sound: Tensor) -> tuple[Tensor]:
        x, _ = self.gru(self.conv(sound).transpose(1, 2))
        x, _ = self.lstm(x)
        return (self.head(x).log_softmax(-1),)


def gru_lstm() -> Subject:
    return Subject(module=Captions(), inputs={"sound": spectrum(16, 24)}, outputs=("letters",))


class Streamed(nn.Module):
    """A causal convolutional net that hears a few frames at a time; what each layer still needs comes and goes."""

    def __init__(self, bins: int = 16, width: int = 24, depth: int = 3, kernel: int = 3) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(bins, width, 1), nn.Conv1d(width, 8, 1)
        self.layers = nn.ModuleList(nn.Conv1d(width, 2 * width, kernel, dilation=2**n) for n in range(depth))

    def forward(self, sound: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        x, kept = self.first(sound), []
        for layer, before in zip(self.layers, past, strict=True):
            heard = concatenated([before, x], 2)
            kept.append(heard[..., -before.shape[2] :])
            signal, gate = layer(heard).chunk(2, 1)
            x = x + signal.tanh() * gate.sigmoid()
        return (self.last(x), *kept)


def streaming() -> Subject:
    past = {f"past.{n}": state(1, 24, 2 * 2**n, size=0.5) for n in range(3)}
    return Subject(
        module=Streamed(),
        inputs={"sound": spectrum(16, 8), **past},
        outputs=("heard", *(name.replace("past", "kept") for name in past)),
    )
