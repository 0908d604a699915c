"""What quantizing each layer and each tensor of a model costs, measured on the simulation, sharing all the work.

One float run and one quantized run are held; each measurement runs only what lies behind the tensors that change. It
judges no precision and chooses none.
"""

from __future__ import annotations

import json
import math
import pickle
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from deploykit.accuracy.judge.measures import overall_db
from deploykit.accuracy.samples.gathering import MOST, Samples, gather
from deploykit.accuracy.search.output_losses import Loss, OutputLosses
from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.precisions import min_max_encodings, precision_of
from deploykit.accuracy.simulate.quantizers import fake_quantize, is_simulated
from deploykit.accuracy.simulate.sessions import Feed
from deploykit.accuracy.simulate.tensor_statistics import TensorStatistics, statistics_of
from deploykit.encodings.qdq import extract_qdq
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import EncodingSet, Float, Value
from deploykit.errors import UsageError
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.fusion import BLOCKS
from deploykit.model.load import wrap_proto
from deploykit.model.parameters import ParameterUse, bias_after_matmul, parameter_uses
from deploykit.model.patterns import find_blocks
from deploykit.model.weights import lean_weights, mapped_bytes, stored_values
from deploykit.system.store import Store, key_of

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = [
    "Budget",
    "Layer",
    "LayerLoss",
    "QuestionOfFiles",
    "Sensitivity",
    "TensorLoss",
    "analyze",
    "analyze_files",
    "layers_of",
    "read_question",
]

Tell: TypeAlias = Callable[[str], None]
_Question: TypeAlias = tuple[bool, tuple[str, ...]]  # only these tensors quantized, or all but these


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One operator, a MatMul with its bias, or a norm that is written out.

    ``activations`` are what it makes, and what it reads that nothing makes: inputs and constants.
    """

    name: str
    op_type: str
    weights: tuple[str, ...]
    activations: tuple[str, ...]

    @property
    def tensors(self) -> tuple[str, ...]:
        """All of them, weights first."""
        return (*self.weights, *self.activations)


def layers_of(facts: GraphFacts, names: Collection[str]) -> tuple[Layer, ...]:
    """The layers that hold some of the given tensors, in graph order; the others of a layer are left out.

    A tensor that enters the graph belongs to every operator that reads it.
    """
    uses = parameter_uses(facts)
    heads = _heads(facts)
    groups: dict[int, list[NodeFact]] = {}
    for node in facts.nodes:
        if node.op_type != "Constant":
            groups.setdefault(heads.get(node.index, node.index), []).append(node)
    known = frozenset(names)
    made = (_layer(facts, nodes, known, uses) for nodes in groups.values())
    return tuple(layer for layer in made if layer.tensors)


def _heads(facts: GraphFacts) -> dict[int, int]:
    """The first node of its layer, by node, for those that are in a layer with others."""
    heads = {}
    for block in find_blocks(facts):
        if BLOCKS[block.kind].certain:
            heads.update(dict.fromkeys(block.nodes, block.nodes[0]))
    for node in facts.nodes:
        makers = (facts.producer_of(name) for name in node.inputs) if node.op_type == "Add" else ()
        maker = next((maker for maker in makers if maker is not None and bias_after_matmul(facts, maker)), None)
        if maker is not None:
            heads[node.index] = maker.index
    return heads


def _layer(
    facts: GraphFacts, nodes: list[NodeFact], known: frozenset[str], uses: dict[str, tuple[ParameterUse, ...]]
) -> Layer:
    inside = {node.index for node in nodes}
    read = dict.fromkeys(name for node in nodes for name in _entering(facts, node))
    # A weight may reach its MatMul through Identity or Transpose; the use knows, the list of inputs does not.
    weights = {name for name, found in uses.items() if name in known and any(u.node.index in inside for u in found)}
    made = [name for node in nodes for name in node.outputs]
    activations = dict.fromkeys(name for name in (*read, *made) if name in known and name not in uses)
    return Layer(
        name=nodes[0].label,
        op_type=nodes[0].op_type,
        weights=tuple(sorted(weights)),
        activations=tuple(activations),
    )


def _entering(facts: GraphFacts, node: NodeFact) -> Iterator[str]:
    """Inputs and stored values that a node reads: nothing of the graph makes them."""
    for name in node.inputs:
        fact = facts.tensors.get(name)
        if fact is not None and (fact.producer is None or fact.is_weight):
            yield name


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLoss:
    """One tensor: ``alone`` when only it is quantized, ``without`` when only it is float; None where not measured.

    ``own_db`` is signal to noise of the tensor itself between before and after its quantizer.
    """

    name: str
    kind: str
    dtype: str
    layers: tuple[str, ...]
    own_db: float
    statistics: TensorStatistics | None
    alone: Loss | None = None
    without: Loss | None = None

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        return {
            "tensor": self.name,
            "kind": self.kind,
            "dtype": self.dtype,
            "layers": list(self.layers),
            "own_db": _finite(self.own_db),
            "alone": _json(self.alone),
            "without": _json(self.without),
            "statistics": None if self.statistics is None else self.statistics.to_json(),
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _json(loss: Loss | None) -> dict[str, Any] | None:
    return None if loss is None else loss.to_json()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLoss:
    """One layer, all its tensors together. ``weights`` and ``activations``: only these of the layer are quantized."""

    layer: Layer
    alone: Loss | None = None
    without: Loss | None = None
    weights: Loss | None = None
    activations: Loss | None = None

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        return {
            "layer": self.layer.name,
            "op_type": self.layer.op_type,
            "weights": list(self.layer.weights),
            "activations": list(self.layer.activations),
            "alone": _json(self.alone),
            "without": _json(self.without),
            "weights_alone": _json(self.weights),
            "activations_alone": _json(self.activations),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Everything that was measured, layers and tensors in graph order.

    ``whole`` is the loss with all of them quantized, ``weights`` and ``activations`` with only these. ``unmeasured``
    counts the losses that the budget left open; ``precision`` says where the encodings are from.
    """

    precision: str
    whole: Loss
    weights: Loss
    activations: Loss
    layers: tuple[LayerLoss, ...]
    tensors: tuple[TensorLoss, ...]
    samples: Samples
    used: int
    unmeasured: int = 0

    @property
    def worst_layers(self) -> tuple[LayerLoss, ...]:
        """The measured layers, the one whose quantizing alone costs most first."""
        known = [row for row in self.layers if row.alone is not None]
        return tuple(sorted(known, key=lambda row: row.alone.db if row.alone is not None else math.inf))

    @property
    def worst_tensors(self) -> tuple[TensorLoss, ...]:
        """The measured tensors, the one whose quantizing alone costs most first."""
        known = [row for row in self.tensors if row.alone is not None]
        return tuple(sorted(known, key=lambda row: row.alone.db if row.alone is not None else math.inf))

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit accuracy layers --json``."""
        return {
            "precision": self.precision,
            "samples": {**self.samples.to_json(), "used": self.used},
            "whole": self.whole.to_json(),
            "weights_only": self.weights.to_json(),
            "activations_only": self.activations.to_json(),
            "worst": [row.layer.name for row in self.worst_layers[:20]],
            "layers": [row.to_json() for row in self.layers],
            "tensors": [row.to_json() for row in self.tensors],
            "unmeasured": self.unmeasured,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """``seconds`` end the measuring (None: never); ``bytes`` are what may be kept of all samples together."""

    seconds: float | None = None
    bytes: int = 2 << 30


def analyze_files(
    model: Path,
    *,
    encodings: Path | None = None,
    precision: str | None = None,
    float_tensors: Path | None = None,
    data: Path | None = None,
    samples: int | None = None,
    seed: int = 0,
    budget: Budget | None = None,
    resume: bool = True,
    tell: Tell = lambda _: None,
) -> Sensitivity:
    """``analyze`` for files: encodings of a file or of a QDQ model, else of deploykit's own at a ``precision``.

    Raises UsageError where neither is given, or both.
    """
    given = read_question(
        model,
        encodings=encodings,
        precision=precision,
        float_tensors=float_tensors,
        data=data,
        samples=samples,
        seed=seed,
    )
    return analyze(
        given.model,
        given.facts,
        given.samples,
        encodings=given.encodings,
        precision=precision or "",
        budget=budget,
        resume=resume,
        tell=tell,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuestionOfFiles:
    """The float model with its weights, samples for it, and the encodings that were given, if any were."""

    model: ModelProto
    facts: GraphFacts
    samples: Samples
    encodings: EncodingSet | None


def read_question(
    model: Path,
    *,
    encodings: Path | None = None,
    precision: str | None = None,
    float_tensors: Path | None = None,
    data: Path | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> QuestionOfFiles:
    """Raises UsageError where neither encodings nor a precision say what the model is quantized to, or both do."""
    read = load_model(model)
    facts, proto = collect_facts(read), lean_weights(read)
    if encodings is None and precision is None and not facts.is_qdq:
        raise UsageError("what is the model to be quantized to?", next="give --encodings, or --precision w8a8")
    if precision is not None and (encodings is not None or facts.is_qdq):
        raise UsageError(f"--precision {precision}: the encodings say what each tensor is", next="leave it out")
    placed: EncodingSet | None = None
    if encodings is not None:
        placed = read_placed(encodings, facts, float_tensors=float_tensors)
    elif facts.is_qdq:
        taken = extract_qdq(proto)
        proto, placed = taken.model, taken.encodings
        facts = collect_facts(wrap_proto(proto, path=model))
    made = gather(proto, facts, calibration=data, encodings=placed, most=samples or MOST, seed=seed)
    return QuestionOfFiles(model=proto, facts=facts, samples=made, encodings=placed)


def analyze(
    model: ModelProto,
    facts: GraphFacts,
    samples: Samples,
    *,
    encodings: EncodingSet | None = None,
    precision: str = "",
    budget: Budget | None = None,
    resume: bool = True,
    tell: Tell = lambda _: None,
) -> Sensitivity:
    """The loss of every layer and tensor. Without ``encodings`` they are made from the samples at a ``precision``.

    Samples that do not fit into memory are left out; what the budget of time ends stays open and is counted. With
    ``resume`` the measurements of an earlier call for the same model, encodings and samples are taken over.
    """
    limits = budget or Budget()
    deadline = None if limits.seconds is None else time.monotonic() + limits.seconds
    losses = OutputLosses(facts)
    tell("running the float model")
    exact = _fitting(model, samples.varied, losses, limits)
    given = encodings or min_max_encodings(exact, facts, precision_of(precision))
    losses.hold(exact.reference)
    work = _Work(model, facts, exact, _simulated(given, facts, exact), losses, resume=resume)
    whole, weights, activations = work.totals()
    work.measure(deadline, tell)
    return Sensitivity(
        precision=f"{precision}, ranges of the same samples" if precision else f"encodings {given.version}",
        whole=whole,
        weights=weights,
        activations=activations,
        layers=tuple(map(work.layer_loss, work.layers)),
        tensors=tuple(work.tensor_losses()),
        samples=samples,
        used=len(exact.reference),
        unmeasured=work.unmeasured,
    )


def _fitting(model: ModelProto, feeds: Sequence[Feed], losses: OutputLosses, limits: Budget) -> PartialRuns:
    """The float run on as many samples as may be kept, twice over: the quantized run is kept beside it."""
    first = PartialRuns(model, feeds[:1], wanted=losses.shown)
    most = min(len(feeds), max(1, limits.bytes // max(1, 2 * first.bytes_per_sample)))
    return first if most == 1 else PartialRuns(model, feeds[:most], wanted=losses.shown)


def _simulated(encodings: EncodingSet, facts: GraphFacts, runs: PartialRuns) -> dict[str, Value]:
    """The entries that change something: those of float tensors that the main graph has."""
    values: dict[str, Value] = {entry.name: entry.value for entry in encodings if is_simulated(entry.value)}
    values |= {name: Float(dtype="float16") for name in encodings.float_tensors if name not in values}
    known = {*runs.graph.makers, *runs.graph.stored, *runs.graph.inputs}
    return {
        name: value
        for name, value in values.items()
        if name in known and name in facts.tensors and facts.tensors[name].dtype in ("", "float")
    }


_SAVE_EVERY = 2.0  # seconds: an analysis may be ended at any moment, and writing costs milliseconds
_LARGEST_HASHED = 1_900_000_000  # bytes: protobuf writes no larger message
_METHOD = 1  # raised with every change of the method that makes other numbers


def _key_of(model: ModelProto, values: Mapping[str, Value], feeds: Sequence[Feed]) -> str:
    """The name under which answers are kept between calls; empty for a model that is too large to be hashed."""
    if mapped_bytes(model) or model.ByteSize() > _LARGEST_HASHED:
        return ""
    said = sha256(pickle.dumps((sorted(values.items()), [sorted(feed.items()) for feed in feeds]))).hexdigest()
    return key_of(model.SerializeToString(deterministic=True), {"method": _METHOD, "said": said})


def _earlier_answers(key: str) -> dict[_Question, Loss]:
    found: dict[_Question, Loss] = {}
    for question, outputs in (Store("sensitivity").get(key) or {}).items():
        alone, *names = json.loads(question)
        found[bool(alone), tuple(names)] = Loss(outputs=outputs)
    return found


def _save_answers(key: str, answers: Mapping[_Question, Loss]) -> None:
    if key:
        told = {json.dumps([alone, *names]): dict(loss.outputs) for (alone, names), loss in answers.items()}
        Store("sensitivity").put(key, told)


class _Work:
    """The questions of one analysis, and the answers so far."""

    def __init__(
        self,
        model: ModelProto,
        facts: GraphFacts,
        exact: PartialRuns,
        values: dict[str, Value],
        losses: OutputLosses,
        *,
        resume: bool,
    ) -> None:
        self._model = model
        self._exact = exact
        self._values = values
        self._losses = losses
        self._weights = frozenset(name for name in parameter_uses(facts) if name in values)
        self.layers = layers_of(facts, values.keys())
        self._key = _key_of(model, values, exact.feeds)
        self._answers = _earlier_answers(self._key) if resume and self._key else {}
        self.unmeasured = 0

    @cached_property
    def _quantized(self) -> PartialRuns:
        return PartialRuns(self._model, self._exact.feeds, wanted=self._losses.shown, values=self._values)

    def totals(self) -> tuple[Loss, Loss, Loss]:
        """Everything quantized, only weights, only activations."""
        whole = self._losses.loss(self._quantized.reference)
        return whole, self._total(self._weights), self._total(self._values.keys() - self._weights)

    def _total(self, names: Iterable[str]) -> Loss:
        values = {name: self._values[name] for name in names}
        runs = PartialRuns(self._model, self._exact.feeds, wanted=self._losses.shown, values=values)
        return self._losses.loss(runs.reference)

    def measure(self, deadline: float | None, tell: Tell) -> None:
        """Ask everything, until the time is over; layers come first, since they say most."""
        questions = [question for question in self._questions() if question not in self._answers]
        saved = time.monotonic()
        try:
            for done, (alone, names) in enumerate(questions):
                if deadline is not None and time.monotonic() > deadline:
                    self.unmeasured = len(questions) - done
                    break
                if alone:
                    outputs = self._exact.run({name: self._values[name] for name in names})
                else:
                    outputs = self._quantized.run(dict.fromkeys(names))
                self._answers[alone, names] = self._losses.loss(outputs)
                tell(f"{done + 1} of {len(questions)} measurements")
                if time.monotonic() - saved > _SAVE_EVERY:
                    _save_answers(self._key, self._answers)
                    saved = time.monotonic()
        finally:
            _save_answers(self._key, self._answers)

    def _questions(self) -> list[_Question]:
        """Each question once, by rounds, and in a round in the order of the graph."""
        layers = [tuple(sorted(layer.tensors)) for layer in self.layers]
        parts = [tuple(sorted(part)) for layer in self.layers for part in (layer.weights, layer.activations) if part]
        tensors = [(name,) for name in self._values]
        found: dict[_Question, None] = {}
        for alone, groups in ((True, layers), (True, tensors), (False, layers), (False, tensors), (True, parts)):
            found |= dict.fromkeys((alone, names) for names in sorted(groups, key=self._exact.first_piece))
        return list(found)

    def layer_loss(self, layer: Layer) -> LayerLoss:
        """What is known of one layer."""
        return LayerLoss(
            layer=layer,
            alone=self._answer(True, layer.tensors),
            without=self._answer(False, layer.tensors),
            weights=self._answer(True, layer.weights),
            activations=self._answer(True, layer.activations),
        )

    def _answer(self, alone: bool, names: tuple[str, ...]) -> Loss | None:
        return self._answers.get((alone, tuple(sorted(names))))

    def tensor_losses(self) -> Iterator[TensorLoss]:
        """What is known of every tensor, in the order in which the graph meets them."""
        homes: dict[str, list[str]] = {}
        for layer in self.layers:
            for name in layer.tensors:
                homes.setdefault(name, []).append(layer.name)
        for name in sorted(self._values, key=lambda name: self._exact.first_piece([name])):
            own, statistics = self._values_of(name)
            yield TensorLoss(
                name=name,
                kind="weight" if name in self._weights else "activation",
                dtype=self._values[name].dtype,
                layers=tuple(homes.get(name, ())),
                own_db=own,
                statistics=statistics,
                alone=self._answer(True, (name,)),
                without=self._answer(False, (name,)),
            )

    def _values_of(self, name: str) -> tuple[float, TensorStatistics | None]:
        """How well the tensor's own grid holds it, and what its values are."""
        stored = self._exact.graph.stored.get(name)
        arrays = self._exact.before_quantizer(name) if stored is None else [stored_values(stored)]
        own = overall_db([(array, fake_quantize(array, self._values[name])) for array in arrays])
        return own, statistics_of(arrays)
