"""The one place where inputs come from: whatever runs a model to judge it runs it on the samples of ``gather``.

Each input has its own source, the best there is for it; its label alone says what may be concluded. ``record`` chooses
the few samples that a package keeps, so that it can be judged on the same data later. Only given or declared values are
kept: the others are made again, and must not come back with a better label than they had.
"""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.lib import format as npy
from onnx import ModelProto

from deploykit.accuracy.samples.domains import (
    SETS,
    VARIED,
    Domain,
    EncodedRange,
    ValuePoint,
    arbitrary_values,
    encoded_range,
    generator,
    input_domains,
    make_floats,
    make_integers,
    make_mask,
)
from deploykit.accuracy.samples.inputs import InputSpec, Label, evenly_chosen, input_specs
from deploykit.encodings.values import EncodingSet
from deploykit.errors import InputError, UsageError
from deploykit.findings.records import Arrays, Json, Numbers, Published, Record, replace
from deploykit.model.facts import GraphFacts
from deploykit.model.graph import view_of
from deploykit.model.values import element_count

if TYPE_CHECKING:
    from deploykit.accuracy.samples.calibration import Declaration

__all__ = [
    "EXPECTED_FILE",
    "MOST",
    "RECORDED_FILE",
    "InputSource",
    "Samples",
    "gather",
    "read_expected",
    "read_recorded",
    "record",
    "record_expected",
]

MOST = 8
"""The number of samples that a judgement uses when nobody says otherwise."""

RECORDED_FILE = "calibration/samples.npz"
EXPECTED_FILE = "artifacts/expected.npz"
"""The outputs of the recorded samples, computed when the package was made: in float, and on the emulator."""
_MARK = "sha256"
_MOST_SAMPLES = 8
_MOST_BYTES = 32 << 20
_KEPT = (Label.GIVEN, Label.RECORDED, Label.DECLARED)
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)

_ARBITRARY_SETS = 4
_READ = 1 << 16
_LARGEST = 64 << 20
"""The most bytes of one made-up sample, of which there are several at once.

It is enough for five images in 4K, or the caches of a small language model.
"""


class InputSource(Published, kw_only=False):
    """Where the values of one input come from: the label, and why in words."""

    label: Label
    why: str


class Samples(Published, kw_only=False, eq=False):
    """Inputs to run a model on, and what they mean. ``available`` is how many the user gave, of which some were taken.

    ``points`` says where the values of each made sample lie; it is empty for stored samples. ``note`` says why given
    data was not used.
    """

    feeds: tuple[Arrays, ...]
    of_inputs: Mapping[str, InputSource]
    points: tuple[ValuePoint, ...] = ()
    available: int = 0
    note: str = ""

    @property
    def label(self) -> Label:
        """The label of the least known input; ``DERIVED`` without inputs: the graph states the one possible sample."""
        return max([source.label for source in self.of_inputs.values()], key=list(Label).index, default=Label.DERIVED)

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(self.feeds)

    @property
    def varied(self) -> tuple[Arrays, ...]:
        """The samples without those that hold one value everywhere.

        Such a sample must give a finite result like any other. But a normalisation finds nothing in it except rounding
        noise, which it makes large: two right executions may differ there by any amount, and that says nothing.
        """
        if not self.points:
            return self.feeds
        return tuple(feed for feed, point in zip(self.feeds, self.points, strict=True) if point in VARIED)

    @property
    def may_judge(self) -> bool:
        """False when some input is arbitrary: then no number computed on these samples decides or reassures."""
        return self.label is not Label.ARBITRARY

    @property
    def described_for_humans(self) -> str:
        """One line: how many samples of which label, and the inputs that the label comes from."""
        some = f"{self.count} of {self.available}" if self.available > self.count else str(self.count)
        line = f"{some} {self.label} sample{'' if some == '1' else 's'}"
        weak = [name for name, source in self.of_inputs.items() if source.label is self.label]
        if not self.may_judge:
            line += f" ({'; '.join(f'{name}: {self.of_inputs[name].why}' for name in weak)})"
        elif 0 < len(weak) < len(self.of_inputs):
            line += f" (because of {', '.join(weak)})"
        return f"{line}; {self.note}" if self.note else line

    def as_published(self) -> Json:
        """Label, count, and both label and reason of each input."""
        return {"label": self.label, "count": self.count, "inputs": self.of_inputs}


_Make: TypeAlias = Callable[[int], Numbers]


class _ValueSource(Record, kw_only=False):
    """The function that makes one input's values for a set, by its number; how many sets differ, and what they mean."""

    source: InputSource
    sets: int
    make: _Make


def gather(
    model: ModelProto,
    facts: GraphFacts,
    *,
    calibration: Path | None = None,
    declared: Mapping[str, Declaration] | None = None,
    recorded: Path | None = None,
    encodings: EncodingSet | None = None,
    most: int = MOST,
    seed: int = 0,
) -> Samples:
    """At most ``most`` samples, in which each input has the best values that are known.

    Calibration data is taken spread over the whole set, first and last included; without it the recorded samples are.
    An input that these lack is as declared, else derived from the input's encoding (or the quantizer behind it) or from
    its domain, else arbitrary. Raises InputError for data that does not fit the model's inputs, UsageError for a
    declaration that the data contradicts.
    """
    said = dict(declared or {})
    inputs = input_specs(facts)
    unknown = sorted(said.keys() - {spec.name for spec in inputs})
    if unknown:
        raise UsageError(f"--input: the model has no input {unknown[0]!r}")
    stored = _stored(inputs, calibration, recorded, said, most)
    missing = tuple(spec for spec in inputs if spec.name not in stored.of_inputs)
    makers = _makers(model, facts, missing, said, encodings, most, seed)
    count = len(stored.feeds) or min(most, max((maker.sets for maker in makers.values()), default=1))
    feeds = [
        {**(stored.feeds[number] if stored.feeds else {}), **{name: m.make(number) for name, m in makers.items()}}
        for number in range(count)
    ]
    sources = {**stored.of_inputs, **{name: m.source for name, m in makers.items()}}
    return Samples(
        tuple({spec.name: feed[spec.name] for spec in inputs} for feed in feeds),
        {spec.name: sources[spec.name] for spec in inputs},
        points=() if stored.feeds or count == 1 else tuple(SETS[number % len(SETS)] for number in range(count)),
        available=stored.available,
        note=stored.note,
    )


def _stored(
    inputs: tuple[InputSpec, ...],
    calibration: Path | None,
    recorded: Path | None,
    declared: Mapping[str, Declaration],
    most: int,
) -> Samples:
    """The samples that lie in files: calibration data, else the samples of a package. They may lack some inputs."""
    note = ""
    if calibration is not None:
        from deploykit.accuracy.samples.calibration import load_calibration, places_of, read_places
        from deploykit.accuracy.samples.images import WANTED, can_decode

        data = load_calibration(calibration, inputs)
        if data.kind == "arrays" or (data.kind == "images" and can_decode()):
            places = places_of(data, inputs, optional=declared.keys())
            if not places:
                raise InputError(f"{calibration}: holds no sample")
            feeds: tuple[Arrays, ...] = tuple(read_places(places[index] for index in evenly_chosen(len(places), most)))
            names = frozenset.intersection(*(frozenset(feed) for feed in feeds))
            for name in sorted(names & declared.keys()):
                if not all(_agrees(declared[name], feed[name]) for feed in feeds):
                    why = f"the data holds other values than {declared[name].described}"
                    error = f"--input {name}: contradicts the calibration data"
                    raise UsageError(error, why=why, next="give one of them")
            source = InputSource(Label.GIVEN, "the calibration data")
            return Samples(feeds, dict.fromkeys(names, source), available=len(places))
        more = f" ({WANTED})" if data.kind == "images" else ""
        note = f"the calibration data ({data.kind}) is not decoded here{more}"
    if recorded is not None:
        feeds = read_recorded(recorded, inputs)
        names = frozenset(feeds[0]) if feeds else frozenset()
        source = InputSource(Label.RECORDED, "samples kept in the package")
        chosen = tuple(feeds[index] for index in evenly_chosen(len(feeds), most))
        return Samples(chosen, dict.fromkeys(names, source), available=len(feeds), note=note)
    return Samples((), {}, note=note)


def _agrees(declaration: Declaration, values: Numbers) -> bool:
    match declaration.kind:
        case "value":
            wanted = np.asarray(declaration.values, dtype=np.float64)
            return bool(np.allclose(np.asarray(values, dtype=np.float64), wanted, rtol=1e-3, atol=0))
        case "range":
            return bool((values >= declaration.low).all() and (values <= declaration.high).all())
        case "file":
            return False  # two files for one input: which is meant is not guessed


def _makers(
    model: ModelProto,
    facts: GraphFacts,
    inputs: tuple[InputSpec, ...],
    declared: Mapping[str, Declaration],
    encodings: EncodingSet | None,
    most: int,
    seed: int,
) -> dict[str, _ValueSource]:
    if not inputs:
        return {}
    size = sum(math.prod(spec.made_shape) * spec.numpy_type.itemsize for spec in inputs)
    if size > _LARGEST:
        raise InputError(
            f"one sample of this model takes {size / 2**20:,.0f} MiB",
            why=f"samples of at most {_LARGEST >> 20} MiB are made here",
            next="give calibration data, if that is what the model really reads",
        )
    graph = view_of(model)

    def read(name: str) -> Numbers | None:
        tensor = graph.stored.get(graph.origin(name))
        return graph.array(name) if tensor is not None and element_count(tensor, name) <= _READ else None

    domains = input_domains(facts, read)
    makers = {}
    for spec in inputs:
        if spec.name in declared:
            makers[spec.name] = _declared(spec, declared[spec.name], most, seed)
            continue
        found = encoded_range(facts, read, encodings, spec.name)
        makers[spec.name] = _made_up(spec, found, domains.get(spec.name), seed)
    return makers


def _declared(spec: InputSpec, declaration: Declaration, most: int, seed: int) -> _ValueSource:
    source = InputSource(Label.DECLARED, declaration.described)
    shape, dtype = spec.made_shape, spec.numpy_type
    match declaration.kind:
        case "value":
            last = (len(declaration.values),) if len(declaration.values) > 1 and spec.shape[-1] is None else ()
            wanted = (*shape[:-1], *last) if last else shape
            fixed = np.broadcast_to(np.asarray(declaration.values).astype(dtype), wanted)
            return _ValueSource(source, 1, make=lambda _: np.array(fixed))
        case "range":
            low, high = declaration.low, declaration.high
            if spec.is_float:
                make = _points(spec, seed, make_floats, np.asarray(low, np.float64), np.asarray(high, np.float64))
            else:
                make = _points(spec, seed, make_integers, int(low), int(high))
            return _ValueSource(source, 1 if low == high else len(SETS), make=make)
        case "file":
            from deploykit.accuracy.samples.calibration import places_in, read_places

            assert declaration.file is not None
            places = places_in(declaration.file, (spec,))
            arrays = [feed[spec.name] for feed in read_places(places[i] for i in evenly_chosen(len(places), most))]
            return _ValueSource(source, len(arrays), make=lambda number: arrays[number % len(arrays)])


def _made_up(spec: InputSpec, found: EncodedRange | None, domain: Domain | None, seed: int) -> _ValueSource:
    """A maker of values in the encoding's range, within the domain of integers; arbitrary where neither says enough.

    Arbitrary are standard normal floats, and integers from the end that is known, else 0 and 1: something to run.
    """
    why = "it has no encoding, and a graph does not say what floats it is made for"
    make, start = None, 0
    if domain is None and found is not None:
        why = f"points of {found.why}"
        make = _points(spec, seed, make_floats, found.low, found.high)
    elif domain is not None:
        low, high, start = domain.low, domain.high, domain.low or 0
        why = domain.why + (f" ({domain.node})" if domain.node else "")
        if found is not None and not domain.is_mask:
            least, most = int(np.ceil(found.low.max())), int(np.floor(found.high.min()))
            least, most = least if low is None else max(least, low), most if high is None else min(most, high)
            if least <= most:
                low, high, why = least, most, f"points of {found.why}"
        if low is not None and high is not None:
            why = f"{low} to {high}: {why}"
            ends = () if domain.is_mask else (low, high)
            make = _points(spec, seed, make_mask if domain.is_mask else make_integers, *ends)
    if make is not None:
        return _ValueSource(InputSource(Label.DERIVED, why), len(SETS), make=make)

    def anything(number: int) -> Numbers:
        rng = generator(seed, spec.name, number)
        return arbitrary_values(rng, spec.made_shape, spec.numpy_type, is_float=spec.is_float, low=start)

    return _ValueSource(InputSource(Label.ARBITRARY, why), _ARBITRARY_SETS, make=anything)


def _points(spec: InputSpec, seed: int, make: Callable[..., Numbers], *ends: Any) -> _Make:
    """A function that calls ``make`` with these ends for each point of ``SETS`` in turn."""
    rest, sets = (spec.made_shape, spec.numpy_type), len(SETS)
    return lambda number: make(SETS[number % sets], *ends, *rest, generator(seed, spec.name, number))


def record(samples: Samples, *, keep: bool = True) -> tuple[Json, bytes | None]:
    """The manifest's record of samples, and the bytes of ``samples.npz``, None where nothing is kept.

    At most eight samples and 32 MiB are kept, spread over all samples. Without ``keep`` only their SHA-256 is recorded,
    in their order. The same samples give the same bytes.
    """
    names = sorted(name for name, source in samples.of_inputs.items() if source.label in _KEPT)
    feeds = [{name: feed[name] for name in names} for feed in samples.feeds] if names else []
    size = max((sum(value.nbytes for value in feed.values()) for feed in feeds), default=0)
    room = min(_MOST_SAMPLES, _MOST_BYTES // size) if size else _MOST_SAMPLES
    chosen = [feeds[index] for index in evenly_chosen(len(feeds), room or _MOST_SAMPLES)]
    why_not = ""
    if not feeds:
        why_not = "nothing was given or declared; derived samples are made again when they are needed"
    elif not keep:
        why_not = "samples are private: only their hashes are kept"
    elif not room:
        why_not = f"one sample has {size / 2**20:.0f} MiB, at most {_MOST_BYTES >> 20} are kept"
    recorded, hashes = 0 if why_not else len(chosen), list(map(_digest, chosen))
    told = {**samples.to_json(), "recorded": recorded, "why_not": why_not, "sha256": hashes}
    return told, None if why_not else _packed(chosen)


def _digest(feed: Arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(feed):
        value = feed[name]
        digest.update(f"{name}\0{value.dtype}\0{value.shape}\0".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def record_expected(feeds: Iterable[Arrays], sides: Mapping[str, Iterable[Arrays]], label: Label) -> bytes | None:
    """The outputs of each sample by who computed them, as bytes to keep beside samples of this label.

    None for samples that are not kept, or too many bytes. The same outputs give the same bytes. ``read_expected`` finds
    them by the samples' values.
    """
    if label not in _KEPT:
        return None
    rows = []
    for feed, *outputs in zip(feeds, *sides.values(), strict=True):
        row = {f"{side}:{name}": value for side, one in zip(sides, outputs, strict=True) for name, value in one.items()}
        rows.append({**row, _MARK: np.frombuffer(_digest(feed).encode(), np.uint8)})
    return _packed(rows) if sum(value.nbytes for row in rows for value in row.values()) <= _MOST_BYTES else None


def read_expected(path: Path, feeds: Iterable[Arrays]) -> dict[str, list[Arrays]]:
    """The recorded outputs of these very samples by who computed them, in order; {} where a sample was not recorded.

    Raises InputError for a file that cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: np.asarray(stored[name]) for name in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: cannot be read", why=str(error)) from None
    rows = dict[str, dict[str, dict[str, Numbers]]]()
    marks = {key.partition(":")[0]: bytes(value) for key, value in arrays.items() if key.endswith(f":{_MARK}")}
    for key, value in arrays.items():
        number, side, name = [*key.split(":", 2), "", ""][:3]
        if name and number in marks:
            rows.setdefault(marks[number].decode("ascii", "replace"), {}).setdefault(side, {})[name] = value
    found = [rows.get(_digest(feed), {}) for feed in feeds]
    sides = set.intersection(*(set(row) for row in found)) if found else set()
    return {side: [row[side] for row in found] for side in sorted(sides)}


def read_recorded(path: Path, inputs: tuple[InputSpec, ...]) -> tuple[Arrays, ...]:
    """The samples of a package, with the inputs that were kept; raises InputError for what does not fit the inputs."""
    from deploykit.accuracy.samples.calibration import places_in, read_places

    inputs = tuple(replace(spec, given=()) for spec in inputs)  # they are kept as the package takes them
    feeds = tuple(read_places(places_in(path, inputs, optional=frozenset(spec.name for spec in inputs))))
    if not feeds or len({frozenset(feed) for feed in feeds}) != 1:
        raise InputError(f"{path}: holds no sample for this model, or not the same inputs in each")
    return feeds


def _packed(feeds: Iterable[Arrays]) -> bytes:
    """The bytes of an .npz without times and without compression, whose result depends on the packer's version."""
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
