"""Decides the size of every open dimension of a model's inputs, from the best evidence there is, and says which it was.

In this order: what the user says, the samples, the model's own metadata, the sizes at which the model runs at all, and
of those the one that its kind usually has. What nothing decides stays open. It changes no model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from onnx import ModelProto

from deploykit.accuracy.samples.inputs import InputSpec, input_specs
from deploykit.errors import DeploykitError, UsageError
from deploykit.findings.records import Arrays, Record, Shape
from deploykit.model.facts import GraphFacts
from deploykit.model.operators import quantizes_at_run_time

__all__ = ["PinnedInput", "decide_sizes", "rows_meet", "runs_with", "split_shapes"]

Runs: TypeAlias = Callable[[Mapping[str, Shape]], bool]

_TYPED = "as typed"  # the reason of a size that --input gives

# Sizes that published models of a kind are used with, most usual first. They are tried until the model runs.
_DENSE = (640, 512, 1024, 416, 320, 224)  # detectors and segmentation: COCO training and its multiples of 32
_CLASSIFIER = (224, 256, 384, 299, 336, 448, 518, 512)  # ImageNet training sizes, then those of CLIP and DINOv2
_TEXT_LINE = ((48, 320), (32, 320), (64, 256), (32, 100))  # PP-OCRv3 and later, PP-OCRv2, others, the first CRNN
_SMALL_SQUARE = 224
_LINE_WIDTH = (320, 256, 192, 128, 100)
_TOKENS = (128, 77, 64, 256, 512)  # 77 is CLIP's
_SOUND = (16000, 48000, 32000, 8000)  # one second at 16 kHz first
_SOUND_CHUNK = (576, 512, 640, 256, 1536, 160, 480)  # streaming voice detectors: 512 new samples and 64 of context
_FRAMES = (3000, 1000, 1024, 300, 100)  # 30 s of Whisper's spectrogram first
_CHANNELS = (1, 3, 4)
_ROWS = (*range(1, 17), 20, 24, 32, 40, 48, 64)  # frames that a model stacks or folds, where one alone is too few
_MOST_TRIALS = 16


class PinnedInput(Record):
    """One input with the shape it gets. ``usual`` is True where only the usual size of its kind decides."""

    name: str
    shape: Shape
    why: str
    usual: bool = False

    @property
    def is_typed(self) -> bool:
        """True for a size that ``--input`` gave."""
        return self.why == _TYPED


def split_shapes(texts: Iterable[str], inputs: Sequence[InputSpec]) -> tuple[dict[str, Shape], tuple[str, ...]]:
    """The shapes that ``--input`` texts state, by input, and the other texts, which state values.

    ``NAME:1,3,640,640`` always is a shape, ``NAME=1,3,640,640`` is one where the input has as many dimensions and one
    of them is open. Raises UsageError for a shape that the model contradicts.
    """
    shapes = dict[str, Shape]()
    rest = []
    for text in texts:
        # A name may hold the signs itself: the longest that matches is meant.
        fitting = [(spec, sign) for sign in ":=" for spec in inputs if text.startswith(spec.name + sign)]
        spec, sign = max(fitting, key=lambda item: (item[1] == ":", len(item[0].name)), default=(None, ""))
        said = "" if spec is None else text[len(spec.name) + 1 :]
        if spec is None or not re.fullmatch(r"\s*\d+(\s*[,x]\s*\d+)*\s*", said):
            rest.append(text)
            continue
        shape = tuple(map(int, re.split(r"[,x]", said)))
        open_ = None in spec.shape and len(shape) == len(spec.shape) and len(shape) > 1
        if sign == "=" and not (open_ and min(shape) > 0 and spec.fits(shape)):
            rest.append(text)
            continue
        if not spec.fits(shape) or min(shape) < 1:
            raise UsageError(f"--input {text}: the shape does not fit", why=f"the model wants {spec}")
        shapes[spec.name] = shape
    return shapes, tuple(rest)


class _SizeDraft(Struct):
    """The sizes known so far, by input and axis; dimensions with one symbol share one size."""

    specs: tuple[InputSpec, ...]
    symbols: Mapping[tuple[str, int], str]
    known: dict[str, int] = {}
    why: dict[str, str] = {}
    usual: set[str] = set()

    def key(self, spec: InputSpec, axis: int) -> str:
        return self.symbols.get((spec.name, axis)) or f"{spec.name}[{axis}]"

    def size(self, spec: InputSpec, axis: int) -> int | None:
        fixed = spec.shape[axis]
        return fixed if fixed is not None else self.known.get(self.key(spec, axis))

    def open_axes(self, spec: InputSpec) -> list[int]:
        return [axis for axis in range(len(spec.shape)) if self.size(spec, axis) is None]

    def settle(self, spec: InputSpec, shape: Sequence[int], why: str, *, usual: bool = False) -> None:
        for axis in self.open_axes(spec):
            self.known[self.key(spec, axis)] = shape[axis]
            self.why[spec.name] = why
            if usual:
                self.usual.add(spec.name)

    def shape(self, spec: InputSpec) -> Shape | None:
        sizes = [self.size(spec, axis) for axis in range(len(spec.shape))]
        return None if None in sizes else tuple(size for size in sizes if size is not None)

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shapes whose sizes are all known, by input."""
        shapes = {spec.name: self.shape(spec) for spec in self.specs}
        return {name: shape for name, shape in shapes.items() if shape is not None}

    def trying(self, more: Mapping[str, int]) -> _SizeDraft:
        """A copy of the draft with these sizes too, to see what follows."""
        return _SizeDraft(specs=self.specs, symbols=self.symbols, known={**self.known, **more})


def decide_sizes(
    facts: GraphFacts,
    *,
    declared: Mapping[str, Shape],
    sampled: Mapping[str, Shape],
    metadata: Mapping[str, str],
    runs: Runs,
    fits: Runs,
    dense: bool,
) -> tuple[PinnedInput, ...]:
    """The shapes of inputs with open dimensions, except inputs whose shape nothing decides.

    ``runs`` tells whether the model runs at given shapes, ``fits`` whether nothing speaks against them, at less cost,
    ``dense`` whether the model's outputs grow with the picture, as those of detectors do.
    """
    specs = input_specs(facts)
    # The symbol of each open dimension; "?" and the like name nothing.
    dims = [(spec.name, axis, dim) for spec in specs for axis, dim in enumerate(facts.tensors[spec.name].shape or ())]
    symbols = {(name, axis): dim for name, axis, dim in dims if isinstance(dim, str) and re.search(r"\w", dim)}
    draft = _SizeDraft(specs=specs, symbols=symbols)
    waiting = tuple(spec for spec in specs if draft.open_axes(spec))
    if not waiting:
        return ()
    for shapes, why in ((declared, _TYPED), (sampled, "as the samples are")):
        for spec in specs:
            if spec.name in shapes:
                draft.settle(spec, shapes[spec.name], why)
                if why == _TYPED:
                    if (shape := draft.shape(spec)) != shapes[spec.name]:
                        told = f"--input {spec.name}: another input has the same dimension, so it would be {shape}"
                        raise UsageError(told, next="give one size for both, or export dimensions of two names")
                    draft.why[spec.name] = why
    single = _settle_batch(draft, facts)
    _settle_by_metadata(draft, metadata)
    _settle_by_trial(draft, facts, lambda shapes: fits(shapes) and runs(shapes), dense=dense)
    # A model that stacks or folds its rows, such as frames of sound, does not fit together with one row.
    trials = (draft.trying(dict.fromkeys(single, rows)) for rows in _ROWS)
    fitting = next((trial for trial in trials if not single or fits(trial.shapes)), draft)
    alone = "one sample at a time" if fitting.known == draft.known else "the fewest rows that fit its operators"
    draft.known = fitting.known
    pinned = []
    for spec in waiting:
        if (shape := draft.shape(spec)) is None:
            continue
        keys = {draft.key(spec, axis) for axis, dim in enumerate(spec.shape) if dim is None}
        shared = (
            f"as {other.name}, which has the same dimension"
            for other in specs
            if other.name in draft.why and keys & {draft.key(other, axis) for axis in range(len(other.shape))}
        )
        why = draft.why.get(spec.name) or next(shared, alone)
        pinned.append(PinnedInput(name=spec.name, shape=shape, why=why, usual=spec.name in draft.usual))
    return tuple(pinned)


def _settle_batch(draft: _SizeDraft, facts: GraphFacts) -> set[str]:
    """Set to one the first dimension, dimensions that are called a batch, and open ones of a state.

    Returns their keys.
    """
    single = set()
    outputs = {tuple(d if isinstance(d, int) else None for d in facts.tensors[n].shape or ()) for n in facts.outputs}
    for spec in draft.specs:
        for axis in draft.open_axes(spec):
            symbol = draft.symbols.get((spec.name, axis), "").lower()
            first = axis == 0 and len(spec.shape) > 1
            state = len(spec.shape) == 3 and axis == 1 and isinstance(spec.shape[2], int) and spec.shape[0] in (1, 2, 4)
            state = state and (spec.shape in outputs or (spec.is_float and not re.search("len|seq|time|frame", symbol)))
            if first or state or "batch" in symbol:
                single.add(draft.key(spec, axis))
    draft.known.update(dict.fromkeys(single, 1))
    return single


def _settle_by_metadata(draft: _SizeDraft, metadata: Mapping[str, str]) -> None:
    """Take height and width from ``imgsz``, which ultralytics writes into its exports."""
    try:
        said = json.loads(metadata.get("imgsz", "null"))
    except ValueError:
        return
    sizes = [said, said] if isinstance(said, int) else said
    if not (isinstance(sizes, list) and len(sizes) == 2 and all(isinstance(s, int) and s > 0 for s in sizes)):
        return
    for spec in draft.specs:
        picture = _picture_axes(spec)
        if picture and draft.open_axes(spec):
            shape = [size or 1 for size in spec.shape]
            shape[picture[0]], shape[picture[1]] = sizes
            draft.settle(spec, shape, "the model's metadata says so (imgsz)")


def _picture_axes(spec: InputSpec) -> tuple[int, int] | None:
    """(height, width) axes of an input that takes pictures, else None."""
    if len(spec.shape) != 4:
        return None
    if spec.shape[1] in _CHANNELS:
        return 2, 3
    return (1, 2) if spec.shape[3] in _CHANNELS else None


def _settle_by_trial(draft: _SizeDraft, facts: GraphFacts, runs: Runs, *, dense: bool) -> None:
    """Try usual sizes until the model runs, one input after the other; what no usual size fits stays open."""
    # An input that looks like a state, beside others, means that the model is fed piece by piece.
    states = any(len(spec.shape) == 3 and spec.shape[-1] is not None for spec in draft.specs)
    streams = states and len(facts.inputs) > 1
    # Compilers write a recurrent layer out step by step: the fewest usual steps come first.
    steps = any(node.op_type.endswith(("GRU", "LSTM", "RNN")) for node in facts.nodes)
    for spec in draft.specs:
        if not draft.open_axes(spec):
            continue

        def fits(shape: Shape, spec: InputSpec = spec) -> bool:
            trial = draft.trying({draft.key(spec, axis): shape[axis] for axis in draft.open_axes(spec)})
            return len(trial.shapes) < len(trial.specs) or runs(trial.shapes)

        # Keras feeds numbers of words as floats, which are cast to integers and used as indices.
        numbers = not spec.is_float and spec.numpy_type != np.int16  # 16 bits are sound
        words = numbers or any(
            reader.op_type == "Gather"
            for node in facts.consumers_of(spec.name)
            if node.op_type == "Cast"
            for reader in facts.consumers_of(node.outputs[0])
        )
        usual = _usual_shapes(draft, spec, fits, dense=dense, streams=streams, words=words, steps=steps)
        chosen = next((one for one in islice(usual, _MOST_TRIALS) if fits(one[0])), None)
        if chosen is not None:
            draft.settle(spec, *chosen, usual=True)


def _usual_shapes(
    draft: _SizeDraft,
    spec: InputSpec,
    fits: Callable[[Shape], bool],
    *,
    dense: bool,
    streams: bool,
    words: bool,
    steps: bool,
) -> Iterator[tuple[Shape, str]]:
    """Shapes that an input of this kind usually has; none where the kind is not known."""
    open_ = draft.open_axes(spec)
    filled = [draft.size(spec, axis) or 1 for axis in range(len(spec.shape))]

    def at(*sizes: tuple[int, int]) -> Shape:
        return tuple(dict(sizes).get(axis, size) for axis, size in enumerate(filled))

    picture, what = _picture_axes(spec), ""
    usual: Sequence[int] = ()
    if picture is not None and open_ == [picture[1]]:
        usual, what = _LINE_WIDTH, "the usual size of models that read lines"
    elif picture is not None and open_ == [picture[0]]:  # a spectrum of sound: its frequencies are fixed, its time not
        usual, what = sorted(_FRAMES), "a usual number of frames at which it runs"
    elif picture is not None:
        high, wide = picture
        kind, sides = ("detectors and segmentation", _DENSE) if dense else ("classifiers", _CLASSIFIER)
        squares = [at((high, side), (wide, side)) for side in sides]
        lines = [at((high, height), (wide, width)) for height, width in _TEXT_LINE]
        # What runs on lines of text and on no small square reads text. Both trials are cheap; a large square is not.
        if not fits(at((high, _SMALL_SQUARE), (wide, _SMALL_SQUARE))):
            yield from ((shape, "the usual size of text lines at which it runs") for shape in lines)
        yield from ((shape, f"the usual size of {kind} at which it runs") for shape in squares)
    elif words and open_ == [len(spec.shape) - 1]:
        usual, what = sorted(_TOKENS) if steps else _TOKENS, "a usual number of tokens"
    elif not words and len(open_) == 1 and max(filled) == 1:
        usual, what = _SOUND_CHUNK if streams else _SOUND, "a usual number of sound samples at which it runs"
    elif spec.is_float and len(spec.shape) == 3 and len(open_) == 1:
        usual, what = sorted(_FRAMES) if steps else _FRAMES, "a usual number of frames at which it runs"
    yield from ((at((open_[0], length)), what) for length in usual)


def runs_with(model: ModelProto, facts: GraphFacts, values: Mapping[str, int]) -> Runs:
    """A function that tells whether the model runs at given shapes; it opens one session, at the first call."""
    from deploykit.accuracy.simulate.sessions import Session

    session = cache(lambda: Session(model))
    specs = input_specs(facts)

    def runs(shapes: Mapping[str, Shape]) -> bool:
        # Values that tell nothing but whether the sizes fit: zeros, and true for masks.
        feed = {
            spec.name: np.full(
                shapes.get(spec.name, spec.made_shape),
                values.get(spec.name, spec.numpy_type.kind == "b"),
                spec.numpy_type,
            )
            for spec in specs
        }
        try:
            session().run(feed)
        except DeploykitError:
            return False
        return True

    return runs


def rows_meet(model: ModelProto, sample: Arrays, several: Collection[str]) -> bool:
    """True where the rows of the inputs ``several`` change each other's results: steps in time, or members of one set.

    False for a model that is random, finds its scales while it runs, or does not run on several rows: it tells nothing.
    """
    if not several or any(
        quantizes_at_run_time(node) or node.op_type.startswith("Random") for node in model.graph.node
    ):
        return False
    from deploykit.accuracy.simulate.sessions import Session

    ends = slice(1), slice(-1, None)
    rows = [{name: value[end] if name in several else value for name, value in sample.items()} for end in ends]
    whole = None
    try:
        session = Session(model)
        whole = session.run(sample)
        single = [session.run(row) for row in rows]
    except DeploykitError:  # where several run and one alone does not, a window looks over them
        return whole is not None
    for end, row in zip(ends, single, strict=True):
        for name, one in row.items():
            longer = [axis for axis, size in enumerate(whole[name].shape) if one.shape[axis : axis + 1] != (size,)]
            part = whole[name][(*[slice(None)] * longer[0], end)] if longer else whole[name]
            near = 1e-4 * float(np.abs(one).max(initial=0))
            if one.dtype.kind == "f" and part.shape == one.shape and not np.allclose(part, one, atol=near):
                return True
    return False
