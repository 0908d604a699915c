"""What quantizing each layer and each tensor of a model costs, measured on the simulation, sharing all the work.

One float run and one quantized run are held; each measurement runs only what lies behind the tensors that change. It
judges no precision and chooses none.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from onnx import ModelProto

from deploykit.accuracy.judge.measures import overall_db
from deploykit.accuracy.samples.gathering import Samples
from deploykit.accuracy.search.output_losses import OutputLoss, OutputLosses
from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.precisions import TensorStatistics, min_max_encodings, precision_of, statistics_of
from deploykit.accuracy.simulate.quantizers import fake_quantize, is_simulated
from deploykit.accuracy.simulate.simulation import QuestionOfFiles, read_question
from deploykit.encodings.values import EncodingSet, Float, Value
from deploykit.errors import UsageError
from deploykit.findings.records import Json, Names, Published, Record, Tell, grouped, published, silent
from deploykit.model.facts import GraphFacts
from deploykit.model.parameters import bias_after_matmul, parameter_uses
from deploykit.model.patterns import NORMS, find_blocks
from deploykit.model.weights import mapped_bytes, stored_values
from deploykit.system.store import Store, key_of

__all__ = [
    "Budget",
    "Layer",
    "LayerLoss",
    "Sensitivity",
    "TensorLoss",
    "analyze",
    "analyze_files",
    "quantized_question",
    "worst_first",
]

_Question: TypeAlias = tuple[bool, Names]  # (alone, tensors): only these quantized, or all but these


class Layer(Record):
    """One operator, a MatMul with its bias, or a norm that is written out.

    ``activations`` are its results, and those of its inputs that no node makes: graph inputs and constants.
    """

    name: str
    op_type: str
    weights: Names
    activations: Names

    @property
    def tensors(self) -> Names:
        """All tensors of the layer, weights first."""
        return (*self.weights, *self.activations)


def layers_of(facts: GraphFacts, names: Collection[str]) -> tuple[Layer, ...]:
    """The layers that hold some of the given tensors, in graph order; a layer's other tensors are left out.

    A tensor that enters the graph belongs to every operator that reads it.
    """
    heads = dict[int, int]()  # the first node of the layer, by node, for nodes that share a layer
    for block in find_blocks(facts):
        if block.kind in NORMS:
            heads.update(dict.fromkeys(block.nodes, block.nodes[0]))
    for node in facts.nodes:
        makers = (facts.producer_of(name) for name in node.inputs) if node.op_type == "Add" else ()
        maker = next((maker for maker in makers if maker is not None and bias_after_matmul(facts, maker)), None)
        if maker is not None:
            heads[node.index] = maker.index
    computing = (node for node in facts.nodes if node.op_type != "Constant")
    groups = grouped((heads.get(node.index, node.index), node) for node in computing)
    # A weight may reach its MatMul through Identity or Transpose; the use knows, the list of inputs does not.
    homes = {name: {use.node.index for use in uses} for name, uses in parameter_uses(facts).items()}
    outside = {name for name, fact in facts.tensors.items() if fact.producer is None or fact.is_weight}
    found = []
    for nodes in groups.values():
        inside = {node.index for node in nodes}
        read = [name for node in nodes for name in node.inputs if name in outside]
        held = dict.fromkeys(name for name in (*read, *(n for node in nodes for n in node.outputs)) if name in names)
        weights = sorted(name for name in names if not inside.isdisjoint(homes.get(name, ())))
        activations = tuple(name for name in held if name not in homes)
        first = nodes[0]
        layer = Layer(name=first.label, op_type=first.op_type, weights=tuple(weights), activations=activations)
        found += [layer] if layer.tensors else []
    return tuple(found)


def worst_first(runs: PartialRuns, facts: GraphFacts, values: Mapping[str, Value], most: int) -> list[Layer]:
    """The layers of these tensors, the one first whose quantizing alone costs a float run most.

    They are measured from the end of the graph, where a run is short; those before the last ``most`` are not measured
    and come last.
    """
    losses, layers = OutputLosses(facts), layers_of(facts, values.keys())[::-1]
    losses.hold(runs.reference)
    asked = ({name: values[name] for name in layer.tensors} for layer in layers[:most])
    costs = [losses.loss(runs.run(change)).db for change in asked]
    return [*(layers[at] for at in sorted(range(len(costs)), key=costs.__getitem__)), *layers[most:]]


class TensorLoss(Published):
    """The losses of one tensor: ``alone`` when only it is quantized, ``without`` when only it is float.

    None if not measured. ``own_db`` is the signal to noise of the tensor's values before its quantizer against those
    behind it.
    """

    name: str
    kind: str
    dtype: str
    layers: Names
    own_db: float
    statistics: TensorStatistics | None
    alone: OutputLoss | None
    without: OutputLoss | None

    def as_published(self) -> Json:
        """The published fields; the name is called ``tensor``."""
        return {"tensor": self.name, **published(self, without=("name",))}


class LayerLoss(Published):
    """The losses of one layer, all its tensors quantized together or float together.

    With ``weights`` and ``activations`` only these of the layer are quantized.
    """

    layer: Layer
    alone: OutputLoss | None
    without: OutputLoss | None
    weights: OutputLoss | None
    activations: OutputLoss | None

    def as_published(self) -> Json:
        """The published layer with its losses."""
        layer = {"layer": self.layer.name, **published(self.layer, without=("name",))}
        losses = published(self, without=("layer", "weights", "activations"))
        return {**layer, **losses, "weights_alone": self.weights, "activations_alone": self.activations}


_Row = TypeVar("_Row", LayerLoss, TensorLoss)


class Sensitivity(Published):
    """Everything that was measured, layers and tensors in graph order.

    ``whole`` is the loss with all tensors quantized, ``weights`` and ``activations`` with only these. ``unmeasured``
    counts the losses that the budget left open; ``precision`` says where the encodings are from.
    """

    precision: str
    whole: OutputLoss
    weights: OutputLoss
    activations: OutputLoss
    layers: tuple[LayerLoss, ...]
    tensors: tuple[TensorLoss, ...]
    samples: Samples
    used: int
    unmeasured: int

    @property
    def worst_layers(self) -> tuple[LayerLoss, ...]:
        """The measured layers, the one whose quantizing alone costs most first."""
        return tuple(_worst_first(self.layers))

    @property
    def worst_tensors(self) -> tuple[TensorLoss, ...]:
        """The measured tensors, the one whose quantizing alone costs most first."""
        return tuple(_worst_first(self.tensors))

    def as_published(self) -> Json:
        """What ``deploykit accuracy layers --json`` prints."""
        return published(self, without=("used", "weights", "activations")) | {
            "samples": {**self.samples.to_json(), "used": self.used},
            "weights_only": self.weights,
            "activations_only": self.activations,
            "worst": [row.layer.name for row in self.worst_layers[:20]],
        }


class Budget(Record):
    """The bounds of an analysis: ``seconds`` until it ends (None: never), and ``bytes`` kept of all samples."""

    seconds: float | None = None
    bytes: int = 2 << 30


def _worst_first(rows: Iterable[_Row]) -> list[_Row]:
    known = [(row.alone.db, row) for row in rows if row.alone is not None]
    return [row for _, row in sorted(known, key=lambda item: item[0])]


def analyze_files(
    model: Path,
    *,
    precision: str | None = None,
    budget: Budget | None,
    resume: bool,
    tell: Tell,
    **asked: Any,
) -> Sensitivity:
    """``analyze`` for files: encodings of a file or of a QDQ model, else of deploykit's own at a ``precision``.

    ``asked`` is what ``read_question`` takes besides.
    """
    given = quantized_question(model, precision=precision, **asked)
    more: dict[str, Any] = {"budget": budget, "resume": resume, "tell": tell}
    encodings = given.encodings
    return analyze(given.model, given.facts, given.samples, encodings=encodings, precision=precision or "", **more)


def quantized_question(model: Path, *, precision: str | None = None, **asked: Any) -> QuestionOfFiles:
    """The files as ``read_question`` reads them.

    Raises UsageError where neither encodings nor a precision say what the model is quantized to, or both do.
    """
    given = read_question(model, **asked)
    if given.encodings is None and precision is None:
        raise UsageError("what is the model to be quantized to?", next="give --encodings, or --precision w8a8")
    if given.encodings is not None and precision is not None:
        raise UsageError(f"--precision {precision}: the encodings say what each tensor is", next="leave it out")
    return given


def analyze(
    model: ModelProto,
    facts: GraphFacts,
    samples: Samples,
    *,
    encodings: EncodingSet | None,
    precision: str = "",
    budget: Budget | None = None,
    resume: bool = True,
    tell: Tell = silent,
) -> Sensitivity:
    """The loss of every layer and tensor. Without ``encodings`` they are made from the samples at a ``precision``.

    Samples that do not fit into memory are left out; what the budget of time ends stays open and is counted. With
    ``resume`` the measurements of an earlier call for the same model, encodings and samples are taken over.
    """
    limits = budget or Budget()
    deadline = None if limits.seconds is None else time.monotonic() + limits.seconds
    losses = OutputLosses(facts)
    tell("running the float model")
    exact = PartialRuns(model, samples.varied[:1], wanted=losses.shown)
    # The quantized run is kept beside the float run, so each sample is held twice.
    most = min(len(samples.varied), max(1, limits.bytes // max(1, 2 * exact.bytes_per_sample)))
    if most > 1:
        exact = PartialRuns(model, samples.varied[:most], wanted=losses.shown)
    given = encodings or min_max_encodings(exact, facts, precision_of(precision))
    losses.hold(exact.reference)
    # The entries that change something: those of float tensors that the main graph has.
    values = {entry.name: entry.value for entry in given if is_simulated(entry.value)}
    values |= {name: Float("float16") for name in given.float_tensors if name not in values}
    known = {*exact.graph.makers, *exact.graph.stored, *exact.graph.inputs} & facts.tensors.keys()
    values = {n: v for n, v in values.items() if n in known and facts.tensors[n].dtype in ("", "float")}
    work = _Measurements(model, facts, exact, values, losses, resume=resume)
    work.measure(deadline, tell)
    return Sensitivity(
        precision=f"{precision}, ranges of the same samples" if precision else f"encodings {given.version}",
        whole=losses.loss(work.quantized.reference),
        weights=work.total(work.weights),
        activations=work.total(values.keys() - work.weights),
        layers=tuple(map(work.layer_loss, work.layers)),
        tensors=tuple(work.tensor_losses()),
        samples=samples,
        used=len(exact.reference),
        unmeasured=work.unmeasured,
    )


_SAVE_EVERY = 2.0  # seconds: an analysis may be ended at any moment, and writing costs milliseconds
_LARGEST_HASHED = 1_900_000_000  # bytes: protobuf writes no larger message
_METHOD = 1  # raised with every change of the method that makes other numbers


class _Measurements:
    """The questions of one analysis, and the answers so far, which are kept between calls."""

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
        self._exact, self._values, self._losses = exact, values, losses
        self._run_all = partial(PartialRuns, model, exact.feeds, wanted=losses.shown)
        self.quantized = self._run_all(values=values)
        self.weights = frozenset(name for name in parameter_uses(facts) if name in values)
        self.layers = layers_of(facts, values.keys())
        self.unmeasured = 0
        self._answers: dict[_Question, OutputLoss] = {}
        self._key = ""  # a model that is too large to be hashed has no key, and its answers are not kept
        if not mapped_bytes(model) and model.ByteSize() <= _LARGEST_HASHED:
            fed = [sorted(feed.items()) for feed in exact.feeds]
            said = sha256(pickle.dumps((sorted(values.items()), fed))).hexdigest()
            self._key = key_of(model.SerializeToString(deterministic=True), {"method": _METHOD, "said": said})
        for question, outputs in ((Store("sensitivity").get(self._key) or {}) if resume and self._key else {}).items():
            alone, *names = json.loads(question)
            self._answers[bool(alone), tuple(names)] = OutputLoss(outputs=outputs)

    def total(self, names: Iterable[str]) -> OutputLoss:
        """The loss with these tensors quantized and no others."""
        return self._losses.loss(self._run_all(values={name: self._values[name] for name in names}).reference)

    def measure(self, deadline: float | None, tell: Tell) -> None:
        """Measure everything, until the deadline; layers come first, since they say most."""
        layers = [tuple(sorted(layer.tensors)) for layer in self.layers]
        parts = [tuple(sorted(part)) for layer in self.layers for part in (layer.weights, layer.activations) if part]
        tensors = [(name,) for name in self._values]
        asked = dict[_Question, None]()
        for alone, groups in ((True, layers), (True, tensors), (False, layers), (False, tensors), (True, parts)):
            asked |= dict.fromkeys((alone, names) for names in sorted(groups, key=self._exact.first_piece))
        questions = [question for question in asked if question not in self._answers]
        saved = time.monotonic()
        try:
            for done, (alone, names) in enumerate(questions):
                if deadline is not None and time.monotonic() > deadline:
                    self.unmeasured = len(questions) - done
                    break
                if alone:
                    outputs = self._exact.run({name: self._values[name] for name in names})
                else:
                    outputs = self.quantized.run(dict.fromkeys(names))
                self._answers[alone, names] = self._losses.loss(outputs)
                tell(f"{done + 1} of {len(questions)} measurements")
                if time.monotonic() - saved > _SAVE_EVERY:
                    self._save()
                    saved = time.monotonic()
        finally:
            self._save()

    def _save(self) -> None:
        if self._key:
            told = {json.dumps([alone, *names]): dict(loss.outputs) for (alone, names), loss in self._answers.items()}
            Store("sensitivity").put(self._key, told)

    def _answer(self, alone: bool, names: Iterable[str]) -> OutputLoss | None:
        return self._answers.get((alone, tuple(sorted(names))))

    def layer_loss(self, layer: Layer) -> LayerLoss:
        """The known losses of one layer."""
        return LayerLoss(
            layer=layer,
            alone=self._answer(True, layer.tensors),
            without=self._answer(False, layer.tensors),
            weights=self._answer(True, layer.weights),
            activations=self._answer(True, layer.activations),
        )

    def tensor_losses(self) -> Iterator[TensorLoss]:
        """The known losses of every tensor, in the order in which the graph meets them."""
        homes = grouped((name, layer.name) for layer in self.layers for name in layer.tensors)
        for name in sorted(self._values, key=lambda name: self._exact.first_piece([name])):
            stored, value = self._exact.graph.stored.get(name), self._values[name]
            arrays = self._exact.before_quantizer(name) if stored is None else [stored_values(stored)]
            yield TensorLoss(
                name=name,
                kind="weight" if name in self.weights else "activation",
                dtype=value.dtype,
                layers=tuple(homes.get(name, ())),
                own_db=overall_db([(array, fake_quantize(array, value)) for array in arrays]),
                statistics=statistics_of(arrays),
                alone=self._answer(True, (name,)),
                without=self._answer(False, (name,)),
            )
