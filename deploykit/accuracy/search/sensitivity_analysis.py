"""Measures what quantizing each layer and each tensor of a model costs, on the simulation, sharing all the work.

One float run and one quantized run are kept; each measurement runs only what lies behind the tensors that change. It
judges no precision and chooses none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from deploykit.accuracy.judge.measures import overall_db
from deploykit.accuracy.samples.gathering import MOST, Samples, gather
from deploykit.accuracy.search.kept_losses import KeptLosses, Question, key_of_analysis
from deploykit.accuracy.search.layers import Layer, layers_of
from deploykit.accuracy.search.output_losses import OutputLosses
from deploykit.accuracy.search.sensitivity import LayerLoss, Loss, Sensitivity, TensorLoss
from deploykit.accuracy.simulate.min_max import min_max_encodings, precision_of
from deploykit.accuracy.simulate.partial_runs import PartialRuns
from deploykit.accuracy.simulate.quantizers import fake_quantize, is_simulated
from deploykit.accuracy.simulate.sessions import Feed
from deploykit.accuracy.simulate.tensor_statistics import TensorStatistics, statistics_of
from deploykit.encodings.qdq import extract_qdq
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import EncodingSet, Float, Value
from deploykit.errors import UsageError
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import wrap_proto
from deploykit.model.parameters import parameter_uses
from deploykit.model.weights import lean_weights, stored_values

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["Budget", "QuestionOfFiles", "analyze", "analyze_files", "read_question"]

Tell: TypeAlias = Callable[[str], None]


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
    ``resume`` the measurements of an earlier run of the same question are taken over.
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
        self._kept = KeptLosses(key_of_analysis(model, values, exact.feeds), resume=resume)
        self.unmeasured = 0

    @cached_property
    def _quantized(self) -> PartialRuns:
        return PartialRuns(self._model, self._exact.feeds, wanted=self._losses.shown, values=self._values)

    def totals(self) -> tuple[Loss, Loss, Loss]:
        """Everything quantized, only weights, only activations."""
        whole = self._losses.loss(self._quantized.reference)
        return whole, self._total(self._weights), self._total(self._values.keys() - self._weights)

    def _total(self, names: Iterable[str]) -> Loss:
        question = Question(alone=True, names=tuple(names))
        found = self._kept.get(question)
        if found is None:
            runs = PartialRuns(
                self._model,
                self._exact.feeds,
                wanted=self._losses.shown,
                values={name: self._values[name] for name in question.names},
            )
            found = self._losses.loss(runs.reference)
            self._kept.put(question, found)
        return found

    def measure(self, deadline: float | None, tell: Tell) -> None:
        """Ask everything that has no answer yet; layers come first, since they say most."""
        questions = self._open_questions()
        try:
            for done, question in enumerate(questions):
                if deadline is not None and time.monotonic() > deadline:
                    self.unmeasured = len(questions) - done
                    break
                self._kept.put(question, self._ask(question))
                tell(f"{done + 1} of {len(questions)} measurements")
        finally:
            self._kept.save()

    def _open_questions(self) -> list[Question]:
        """Each question without an answer once, by rounds, and in a round in the order of the graph."""
        found: dict[str, Question] = {}
        for questions in self._rounds():
            fresh = {q.key: q for q in questions if q.key not in found and self._kept.get(q) is None}
            found |= sorted(fresh.items(), key=lambda item: self._exact.first_piece(item[1].names))
        return list(found.values())

    def _rounds(self) -> Iterator[list[Question]]:
        layers = [layer.tensors for layer in self.layers]
        parts = [part for layer in self.layers for part in (layer.weights, layer.activations) if part]
        tensors = [(name,) for name in self._values]
        for alone, groups in ((True, layers), (True, tensors), (False, layers), (False, tensors), (True, parts)):
            yield [Question(alone=alone, names=names) for names in groups]

    def _ask(self, question: Question) -> Loss:
        if question.alone:
            return self._losses.loss(self._exact.run({name: self._values[name] for name in question.names}))
        return self._losses.loss(self._quantized.run(dict.fromkeys(question.names)))

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
        return self._kept.get(Question(alone=alone, names=names)) if names else None

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
