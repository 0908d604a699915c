"""Runs ONNX models on the CPU exactly as written: no graph optimisation, asked tensors added as outputs.

A model whose weights lie in files is run group by group: each group is opened once, for all samples, and let go. In
memory at a time are one group's weights and, of each sample, what later groups read. Results are those of the whole
model, bit for bit. Models that begin alike are run in pieces, and each shared piece is run once. Old models that the
runtime no longer knows run in ONNX's own reference, for proofs only. The pieces of a package run in order: the outputs
of the model as it was given are judged.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import filterfalse
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from onnx import ModelProto, ValueInfoProto, helper

from deploykit.accuracy.simulate.quantizers import fake_quantize, quantize_graph
from deploykit.encodings.values import Value
from deploykit.errors import InputError
from deploykit.findings.records import Arrays, Feeds, Names, Numbers, Record, grouped
from deploykit.model.nodes import bodies, copy_of, without_values
from deploykit.model.running import CpuSession, quiet_options, run_within
from deploykit.model.values import byte_size
from deploykit.model.weights import (
    is_mapped,
    is_native,
    mapped_bytes,
    point_outside,
    stored_values,
    weight_files,
)
from deploykit.system.limits import memory_budget

__all__ = ["Known", "Session", "check_feed", "on_grid", "reference_outputs", "run_chain"]

Known: TypeAlias = dict[bytes, dict[str, Numbers]]
"""The results of pieces of models, by a digest of all that they depend on: the piece, its quantizers and its inputs."""

_PROTOBUF_LIMIT = 1_900_000_000
_PLANNED_NODES = 1500
"""In a larger graph memory is not planned: planning time grows with the square of the nodes (20 s for 9,000)."""

_STEPS = 8
"""The most operators of one quantizer."""

_MANY_NODES, _PIECE = 12_000, 1000
"""A graph of more nodes is opened in pieces: the time and memory of opening one grow faster than its nodes."""

_ONE_THREAD, _SMALL = 32 << 20, 1 << 20
"""Bytes of all weights, or of the largest, below which one thread is enough: handing small operators out costs more
than it gains."""

_LARGE = 1 << 16
"""Bytes. A tensor of at least so many is handed over beside a message that would else be too large."""

_GROUP, _LEAST_GROUP = 8 << 20, 1 << 20
_COPIES = 4
"""How many times the weights of an opened model are in memory: as read, quantized, packed, and while they are made."""
_GROUPS_IN_BUDGET = 8 * _COPIES


class Session:
    """One model to run. ``optimize`` allows the runtime's graph optimisations: faster, and not bit exact.

    A model whose weights lie in files is run group by group, anew in each run, where they are more than ``room`` bytes;
    so is one of very many nodes. ``values`` are the quantizers of tensors: stored ones are quantized when they are
    opened, inputs when they are fed. Pieces whose results are ``known`` from other models are not run again, and the
    results of this model are added. Raises InputError for a model that the runtime refuses, and for one that fits the
    memory budget neither as a whole nor in groups.
    """

    def __init__(
        self,
        model: ModelProto,
        *,
        capture: Iterable[str] = (),
        optimize: bool = False,
        values: Mapping[str, Value] | None = None,
        room: int | None = None,
        known: Known | None = None,
    ) -> None:
        self.outputs: Names = tuple(o.name for o in model.graph.output)
        size, values = mapped_bytes(model), values or {}
        if room is None:  # for weights that are worth a group of their own, within a small part of the memory budget
            room = max(_LEAST_GROUP, min(_GROUP, memory_budget() // _GROUPS_IN_BUDGET))
        sizes = [byte_size(tensor, "") for tensor in model.graph.initializer]
        is_small = sum(sizes) < _ONE_THREAD or max(sizes) < _SMALL
        opener = _ModelOpener(optimize=optimize, values=values, size=sum(sizes), is_small=is_small)
        stored = {tensor.name for tensor in model.graph.initializer}
        self._fed = {item.name: values[item.name] for item in model.graph.input if item.name in values.keys() - stored}
        more, whole = [name for name in dict.fromkeys(capture) if name not in self.outputs], model
        if more:
            whole = copy_of(model)
            whole.graph.output.extend(ValueInfoProto(name=name) for name in more)
        steps = _STEPS if values else 1
        self._runner: _OpenModel | StreamedModel
        self.streams = False  # else each run reads the weights anew: several samples are then best run together
        # A body may give something else than arrays; where nothing but time asks for pieces, the model stays whole.
        plain = not any(True for node in model.graph.node for _ in bodies(node))
        many = plain and len(model.graph.node) * steps > _MANY_NODES
        if (size > room or many) and may_stream(whole):
            self.streams = True
            self._runner = StreamedModel(whole, opener.open, room=room, nodes=_PIECE // steps)
            self._check_room(model.graph.name, self._runner.largest, "its largest layer has")
        elif known is not None and plain and may_stream(whole):
            self._runner = StreamedModel(whole, partial(_SharedPiece, opener, known), room=0, nodes=0)
        else:
            if size > room:
                self._check_room(model.graph.name, size, "it cannot be cut into groups, and has")
            self._runner = opener.open(whole)
        self.inputs = self._runner.inputs

    def run(self, feed: Arrays) -> dict[str, Numbers]:
        """All outputs and captured tensors by name. Raises InputError when an input is missing or does not fit."""
        return self.runs([feed])[0]

    def runs(self, feeds: Feeds) -> list[dict[str, Numbers]]:
        """``run`` for each of several samples; of a model in groups each group is opened once for all of them."""
        for feed in feeds:
            check_feed(feed, self.inputs)
        return self._runner.runs(
            [{name: on_grid(value, self._fed.get(name)) for name, value in feed.items()} for feed in feeds]
        )

    @staticmethod
    def _check_room(name: str, size: int, what: str) -> None:
        if size * _COPIES > memory_budget():
            raise InputError(
                f"{name}: cannot be run in {memory_budget() / 1e9:.1f} GB of memory",
                why=f"{what} {size / 1e9:.1f} GB of weights, which running takes {_COPIES} times",
                next="give more with --memory, on a machine that has it",
            )


def on_grid(raw: Numbers, value: Value | None) -> Numbers:
    """An input on the grid of its quantizer; only float32 inputs have one."""
    return raw if value is None or raw.dtype != np.float32 else fake_quantize(raw, value)


def check_feed(feed: Arrays, inputs: Iterable[str]) -> None:
    """Raise InputError when a sample lacks one of the inputs."""
    missing = sorted(set(inputs) - feed.keys())
    if missing:
        raise InputError(f"the sample has no value for input {missing[0]!r}", next="name arrays after the inputs")


class _OpenModel:
    """A model that is in memory as a whole."""

    def __init__(self, session: CpuSession) -> None:
        self._session = session
        self._wanted = [o.name for o in session.outputs]
        self.inputs = frozenset(i.name for i in session.inputs)
        self._wide = {i.name for i in session.inputs if i.type == "tensor(double)"}  # samples have float32

    def runs(self, feeds: Feeds) -> list[dict[str, Numbers]]:
        made = []
        for feed in feeds:
            try:
                wide = {name: feed[name].astype(np.float64) for name in self._wide}
                values = self._session.run(None, {name: feed[name] for name in self.inputs} | wide)
            except Exception as error:
                raise InputError("the model does not run on this sample", why=_first_line(error)) from None
            # A sequence becomes one array: its tensors one behind the other.
            arrays = (np.hstack([*map(np.ravel, v)]) if isinstance(v, list) and v else v for v in values)
            made.append(dict(zip(self._wanted, arrays, strict=True)))
        return made


class _ModelOpener(Record):
    """Opens a model, or a group of a model with ``size`` bytes of weights: groups get the settings of the whole."""

    optimize: bool
    values: Mapping[str, Value]
    size: int
    is_small: bool

    def open(self, model: ModelProto) -> _OpenModel:
        """The opened model; raises InputError for one that the runtime refuses."""
        if self.values:
            model = quantize_graph(model, self.values)
        options = quiet_options(optimize=self.optimize)
        # Threads that spin while they wait would burn the time of whatever runs beside them.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self.is_small:
            options.intra_op_num_threads = 1
        if self.size >= _ONE_THREAD:  # run in groups, opened for a few samples: laying weights out anew gains nothing
            options.add_session_config_entry("session.disable_prepacking", "1")
        if len(model.graph.node) > _PLANNED_NODES:
            options.enable_mem_reuse = options.enable_mem_pattern = False
        with weight_files() as files:
            beside = dict[str, Numbers]()
            for tensor in filter(is_mapped, model.graph.initializer):
                values, value = stored_values(tensor, files), self.values.get(tensor.name)
                beside[tensor.name] = values if value is None else fake_quantize(values, value)
        if sum(byte_size(tensor, "") for tensor in filterfalse(is_mapped, model.graph.initializer)) >= _PROTOBUF_LIMIT:
            # Without the values of large initializers, which no message could hold.
            lean = without_values(model, "node")
            for tensor in model.graph.initializer:
                if len(tensor.raw_data) < _LARGE or is_mapped(tensor) or not is_native(tensor):
                    lean.graph.initializer.append(tensor)
                    continue
                beside[tensor.name] = stored_values(tensor)
                place = lean.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
                point_outside(place, "memory", 0, len(tensor.raw_data))
            model = lean
        try:
            if beside:
                from onnxruntime import OrtValue

                options.add_external_initializers(list(beside), [*map(OrtValue.ortvalue_from_numpy, beside.values())])
            data = model.SerializeToString()
            size = len(data) + sum(array.nbytes for array in beside.values())
            return _OpenModel(CpuSession(data, options, size=size))
        except Exception as error:
            name = model.graph.name
            raise InputError(f"{name}: the model does not load in ONNX Runtime", why=_first_line(error)) from None


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


_Values: TypeAlias = dict[str, Numbers]


def may_stream(model: ModelProto) -> bool:
    """False for models with weights or results of a kind around which no groups can be cut."""
    graph = model.graph
    tensors = all(item.type.WhichOneof("value") in ("tensor_type", None) for item in (*graph.input, *graph.output))
    known = {entry.domain for entry in model.opset_import} <= {"", "ai.onnx", "com.microsoft"}
    return (
        tensors
        and known
        and not graph.sparse_initializer
        and not any(node.op_type.startswith("Optional") for node in graph.node)
    )


class StreamedModel:
    """A model cut into groups of at most ``room`` bytes of weights, and so many ``nodes``.

    ``wanted`` are the tensors that runs return.
    """

    def __init__(
        self,
        model: ModelProto,
        open_group: Callable[[ModelProto], _OpenModel | _SharedPiece],
        *,
        room: int,
        nodes: int,
    ) -> None:
        from deploykit.accuracy.simulate.graph_pieces import GraphPieces

        self.wanted = tuple(o.name for o in model.graph.output)
        self._open = open_group
        self._pieces = GraphPieces(model, self.wanted, size=nodes, room=room)
        self.inputs = frozenset(self._pieces.inputs)
        self._declared = {item.name: item for item in model.graph.input}
        # By group: the tensors that no later group reads, except those that are wanted.
        self._last = grouped((number, name) for name, number in self._pieces.last.items() if name not in self.wanted)

    @property
    def largest(self) -> int:
        """The bytes of the weights of the largest group."""
        stored, holds = self._pieces.stored, self._pieces.holds
        groups = ({name for place in piece for name in holds[place]} for piece in self._pieces.pieces)
        return max((sum(byte_size(stored[name], name) for name in names) for names in groups), default=0)

    def runs(self, feeds: Sequence[Arrays]) -> list[_Values]:
        """The wanted tensors of each sample. Raises whatever opening and running a group raises."""
        kept = [{name: np.asarray(feed[name]) for name in self._pieces.inputs} for feed in feeds]
        types = dict[str, int]()
        for number in range(len(self._pieces.pieces) if feeds else 0):
            fresh = {name: value for name, value in kept[0].items() if name not in types}
            types |= {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in fresh.items()}
            pieces, outputs = self._pieces, self._pieces.crossing[number]
            if outputs:
                places, declared = pieces.pieces[number], self._declared
                group = self._open(
                    pieces.model_of(places, outputs, stored=pieces.stored, types=types, declared=declared)
                )
                for values, made in zip(kept, group.runs(kept), strict=True):
                    values.update(made)
                del group  # before the next one is opened
            for values in kept:
                for name in self._last.get(number, ()):
                    values.pop(name, None)
        stored = self._pieces.stored
        kept_too = {name: np.array(stored_values(stored[name])) for name in self.wanted if name in stored}
        return [{name: values[name] if name in values else kept_too[name] for name in self.wanted} for values in kept]


class _SharedPiece(Struct, frozen=True):
    """A piece of a model that is opened only for samples whose results are not known yet."""

    opener: _ModelOpener
    known: Known
    model: ModelProto

    def runs(self, feeds: Feeds) -> list[_Values]:
        graph, known = self.model.graph, self.known
        names = [*(tensor.name for tensor in graph.initializer), *(name for node in graph.node for name in node.output)]
        about = blake2b(pickle.dumps([self.model.SerializeToString(), *map(self.opener.values.get, names)])).digest()
        read = [item.name for item in graph.input]
        # A known result is told by the piece that made it: it takes longer to read all of them again.
        made = {id(array): (key, name) for key, results in known.items() for name, array in results.items()}
        fed = [[made.get(id(feed.get(name)), feed.get(name)) for name in read] for feed in feeds]
        keys = [blake2b(pickle.dumps([about, *values])).digest() for values in fed]
        fresh = {key: feed for key, feed in zip(keys, feeds, strict=True) if key not in known}
        if fresh:
            known.update(zip(fresh, self.opener.open(self.model).runs(list(fresh.values())), strict=True))
        found = [known[key] for key in keys]
        # Known results take a small part of the memory budget: the oldest go first.
        room, held = memory_budget() // 16, sum(array.nbytes for made in known.values() for array in made.values())
        while held > room:
            held -= sum(array.nbytes for array in known.pop(next(iter(known))).values())
        return found


def reference_outputs(model: ModelProto, feeds: Feeds, seconds: float = 0) -> list[Arrays]:
    """The outputs by ONNX's reference for each sample.

    Raises InputError where the reference cannot compute them either, or not in some ``seconds``: it goes through pools
    and loops number by number.
    """
    from onnx.reference import ReferenceEvaluator

    def run() -> list[Arrays]:
        made = map(partial(ReferenceEvaluator(model).run, None), map(dict, feeds))
        return [dict(zip(names, map(np.asarray, values), strict=True)) for values in made]

    names = [output.name for output in model.graph.output]
    try:
        return run_within(run, model.ByteSize(), seconds=seconds) if seconds else run()
    except Exception as error:  # it raises whatever numpy raises, and errors of its own
        why = _first_line(error)
        raise InputError(f"{model.graph.name}: ONNX's reference does not run the model", why=why) from None


def run_chain(pieces: Iterable[Session], feeds: Feeds) -> list[_Values]:
    """All inputs and all results of the pieces, for each sample.

    Each piece reads the model's inputs and the results of the pieces before it, by name.
    """
    known = [dict(feed) for feed in feeds]
    for piece in pieces:
        for values, made in zip(known, piece.runs(known), strict=True):
            values.update(made)
    return known
