"""Which quantizers limit what is left: the quality when each one is taken out, by simulation.

One simulation per tensor: meant for small models or short lists of suspects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.simulate.quantizers import is_simulated
from deploykit.accuracy.simulate.sessions import Feed, Session
from deploykit.accuracy.simulate.simulation import Simulator, overall_sqnr_db
from deploykit.encodings.values import EncodingSet

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["Limit", "limiting_tensors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One tensor: the SQNR over all outputs without its quantizer, and how much better that is than with all."""

    tensor: str
    dtype: str
    without_db: float
    gain_db: float


def limiting_tensors(
    model: ModelProto,
    encodings: EncodingSet,
    feeds: Sequence[Feed],
    *,
    reference: Sequence[Feed] | None = None,
    tail: ModelProto | None = None,
    among: Iterable[str] | None = None,
    most: int = 5,
) -> tuple[Limit, ...]:
    """The tensors whose quantizers cost most, best gain first.

    ``reference`` are the outputs to reach, those of the float model (with its tail) by default; ``among`` limits the
    suspects.
    """
    host = None if tail is None else Session(tail)
    wanted = reference if reference is not None else _outputs(Session(model).run, host, feeds)
    base = overall_sqnr_db(wanted, _outputs(Simulator(model, encodings).run, host, feeds))
    suspects = [name for name in (among if among is not None else encodings.entries) if name in encodings]
    found = []
    for name in suspects:
        entry = encodings.entries[name]
        if not is_simulated(entry.value):
            continue
        entries = {other: value for other, value in encodings.entries.items() if other != name}
        run = Simulator(model, replace(encodings, entries=entries)).run
        without = overall_sqnr_db(wanted, _outputs(run, host, feeds))
        found.append(Limit(tensor=name, dtype=entry.dtype, without_db=without, gain_db=without - base))
    return tuple(sorted(found, key=lambda limit: (-limit.gain_db, limit.tensor))[:most])


def _outputs(run: Any, host: Session | None, feeds: Sequence[Feed]) -> list[dict[str, Any]]:
    made = []
    for feed in feeds:
        values = run(feed)
        made.append(values if host is None else {**values, **host.run({**feed, **values})})
    return made
