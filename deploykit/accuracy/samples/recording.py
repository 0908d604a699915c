"""A few samples that a package keeps, so that it can be judged on the same data later; or their hashes alone.

Only what was given or declared is kept: the rest is made again from what the package says of it, and must not come back
with a better label than it had.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.lib import format as npy

from deploykit.accuracy.samples.inputs import InputSpec
from deploykit.accuracy.samples.labels import Label
from deploykit.accuracy.samples.stored import places_in, read_places, spread
from deploykit.errors import InputError

if TYPE_CHECKING:
    from deploykit.accuracy.samples.gathering import Samples
    from deploykit.accuracy.simulate.sessions import Feed

__all__ = ["RECORDED_FILE", "Recording", "read_recorded", "record"]

RECORDED_FILE = "calibration/samples.npz"
_MOST_SAMPLES = 8
_MOST_BYTES = 32 << 20
_KEPT = (Label.GIVEN, Label.RECORDED, Label.DECLARED)
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The bytes of ``samples.npz`` (None where nothing is kept) and what the manifest says about the samples.

    ``hashes`` are the SHA-256 of each sample's kept inputs, in the order of the samples.
    """

    data: bytes | None
    hashes: tuple[str, ...]
    samples: Mapping[str, Any]
    why_not: str = ""

    def to_json(self) -> dict[str, Any]:
        """What the samples are, how many are kept or why none, and their hashes."""
        kept = 0 if self.data is None else len(self.hashes)
        return {**self.samples, "recorded": kept, "why_not": self.why_not, "sha256": list(self.hashes)}


def record(
    samples: Samples, *, most: int = _MOST_SAMPLES, most_bytes: int = _MOST_BYTES, keep: bool = True
) -> Recording:
    """At most ``most`` samples and ``most_bytes``, spread over those there are. Without ``keep`` only their hashes.

    The same samples give the same bytes.
    """
    names = sorted(name for name, source in samples.of_inputs.items() if source.label in _KEPT)
    feeds = [{name: feed[name] for name in names} for feed in samples.feeds] if names else []
    size = max((sum(value.nbytes for value in feed.values()) for feed in feeds), default=0)
    room = min(most, most_bytes // size) if size else most
    chosen = [feeds[index] for index in spread(len(feeds), room or most)]
    why_not = _why_not(keep, bool(feeds), size, room, most_bytes)
    return Recording(
        data=None if why_not else _packed(chosen),
        hashes=tuple(map(_hash, chosen)),
        samples=samples.to_json(),
        why_not=why_not,
    )


def _why_not(keep: bool, any_kept: bool, size: int, room: int, most_bytes: int) -> str:
    if not any_kept:
        return "nothing was given or declared; derived samples are made again when they are needed"
    if not keep:
        return "samples are private: only their hashes are kept"
    return "" if room else f"one sample has {size / 2**20:.0f} MiB, at most {most_bytes >> 20} are kept"


def read_recorded(path: Path, inputs: tuple[InputSpec, ...]) -> tuple[Feed, ...]:
    """The samples of a package, with the inputs that were kept; raises InputError for what does not fit the inputs."""
    places = places_in(path, inputs, optional=frozenset(spec.name for spec in inputs))
    feeds = tuple(read_places(places))
    if not feeds or len({frozenset(feed) for feed in feeds}) != 1:
        raise InputError(f"{path}: holds no sample for this model, or not the same inputs in each")
    return feeds


def _hash(feed: Feed) -> str:
    digest = hashlib.sha256()
    for name in sorted(feed):
        value = feed[name]
        digest.update(f"{name}\0{value.dtype}\0{value.shape}\0".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _packed(feeds: Iterable[Feed]) -> bytes:
    """An .npz without times, and unpacked: what a packer makes of the same bytes depends on its version."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
        for number, feed in enumerate(feeds):
            for name in sorted(feed):
                info = zipfile.ZipInfo(f"{number}:{name}.npy", _ZIP_EPOCH)
                info.create_system = 3
                info.external_attr = 0o644 << 16
                part = io.BytesIO()
                npy.write_array(part, feed[name], allow_pickle=False)
                archive.writestr(info, part.getvalue())
    return whole.getvalue()
