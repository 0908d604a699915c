"""Quantized inference as the encodings define it, equal to AIMET's simulation, against the float model.

It knows encodings and graphs only; verifiers say what a device makes of them. Inputs that are derived from an input's
own encoding fill its whole range at once, which real data does not, so that every right model looks wrong. They are
made smaller until the loss no longer falls, and a miss on them is a no only where nothing is left.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from deploykit.accuracy.judge.judge import Judge
from deploykit.accuracy.judge.kinds import Reading
from deploykit.accuracy.judge.measures import cosine, max_error, sqnr_db
from deploykit.accuracy.judge.verdict import Thresholds, Verdict
from deploykit.accuracy.samples.gathering import MOST, Samples, gather
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.quantizers import quantizers_of
from deploykit.accuracy.simulate.sessions import Known, Session
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import Affine, EncodingSet
from deploykit.findings.records import Doubles, Feeds, Json, Names, Numbers, Published, Record, published, replace
from deploykit.model.collect import collect_facts, facts_of
from deploykit.model.facts import GraphFacts
from deploykit.model.load import load_model
from deploykit.model.operators import quantizes_at_run_time
from deploykit.model.weights import lean_weights
from deploykit.rewrites.contract import load_transform

__all__ = [
    "Fidelity",
    "Original",
    "QuestionOfFiles",
    "Simulation",
    "Simulator",
    "compare_outputs",
    "fit_judge",
    "in_float",
    "overall_sqnr_db",
    "read_question",
    "rounding_shows",
    "settled",
    "simulate_files",
]


class Fidelity(Published):
    """How close one output is to its reference, over all samples.

    ``step`` is the distance of two neighbouring real values on the grid of the output, None without an encoding.
    """

    name: str
    sqnr_db: float
    cosine: float
    max_error: float
    step: float | None = None

    def as_published(self) -> Json:
        """The published fields; ``exact`` is True where there is no difference at all."""
        return {**published(self), "exact": self.max_error == 0}


class Simulation(Published, eq=False):
    """The outputs per sample, quantized and float, and how they differ.

    ``applied`` tensors were quantized; ``skipped`` says why the other entries were not. ``verdict`` is the judge's,
    with rows behind a choice matched; None where nobody gave the graph's facts. ``samples`` says what the inputs were,
    where ``gather`` made them.
    """

    outputs: tuple[dict[str, Numbers], ...]
    reference: tuple[dict[str, Numbers], ...]
    fidelity: tuple[Fidelity, ...]
    applied: Names
    skipped: Mapping[str, str]
    verdict: Verdict | None
    samples: Samples | None = None

    @property
    def sqnr_db(self) -> float:
        """The energy of all float outputs together over that of all differences, in dB."""
        return overall_sqnr_db(self.reference, self.outputs)

    @property
    def reordered(self) -> Verdict | None:
        """The verdict where matching rows made the numbers better, else None."""
        return self.verdict if self.verdict is not None and self.verdict.overall_db > self.sqnr_db else None

    def as_published(self) -> Json:
        """What ``deploykit accuracy simulate --json`` prints."""
        return {
            "sqnr_db": self.sqnr_db,
            "verdict": self.verdict,
            "reordered": self.reordered,
            "outputs": self.fidelity,
            "samples": len(self.outputs),
            "quantized_tensors": len(self.applied),
            "skipped": dict(sorted(self.skipped.items())),
        }


class Simulator(Session):
    """One model with its quantizers. ``capture`` names inner tensors to return as well; the rest is a session's."""

    def __init__(
        self,
        model: ModelProto,
        encodings: EncodingSet,
        *,
        capture: Iterable[str] = (),
        known: Known | None = None,
    ) -> None:
        values, self.skipped = quantizers_of(model, encodings)
        self.applied = tuple(values)
        super().__init__(model, capture=capture, values=values, known=known)


def simulate(
    model: ModelProto,
    encodings: EncodingSet,
    inputs: Feeds,
    *,
    facts: GraphFacts | None = None,
    label: str = "arbitrary",
    thresholds: Thresholds | None = None,
) -> Simulation:
    """Run every sample through the quantized and the float graph and compare the outputs.

    With ``facts`` they are judged as well, on samples of that ``label``. Raises InputError where an entry does not fit
    its tensor or a sample does not fit the inputs.
    """
    judge = None if facts is None else Judge(model, facts, inputs, label=label, thresholds=thresholds)
    simulator = Simulator(model, encodings)
    shown = simulator.runs(inputs)
    reference = judge.reference if judge else Session(model).runs(inputs)
    names = [item.name for item in model.graph.output]
    outputs, expected = (tuple({n: row[n] for n in names} for row in rows) for rows in (shown, reference))
    return Simulation(
        outputs=outputs,
        reference=expected,
        fidelity=compare_outputs(expected, outputs, encodings),
        applied=simulator.applied,
        skipped=simulator.skipped,
        verdict=judge.compare(shown) if judge else None,
    )


def simulate_files(
    model: Path,
    encodings: Path,
    *,
    data: Path | None,
    samples: int | None = None,
    thresholds: Thresholds | None = None,
    **asked: Any,
) -> Simulation:
    """``simulate`` for files; without data on derived inputs, or arbitrary ones.

    ``asked`` is what ``read_question`` takes besides. Raises InputError for files that make no sense.
    """
    # All samples that were given; of made-up ones as many as a judgement uses.
    most = samples if samples is not None else MOST if data is None else sys.maxsize
    given = read_question(model, encodings=encodings, data=data, samples=most, **asked)
    assert given.encodings is not None
    made, facts = given.samples, given.facts
    done = simulate(given.model, given.encodings, made.varied, facts=facts, label=made.label, thresholds=thresholds)
    return replace(done, samples=made)


class QuestionOfFiles(Record, eq=False):
    """The float model with its weights, samples for it, and the encodings that were given, if any were."""

    model: ModelProto
    facts: GraphFacts
    samples: Samples
    encodings: EncodingSet | None


def in_float(
    model: ModelProto, facts: GraphFacts, *, takes_pairs: bool = True
) -> tuple[ModelProto, GraphFacts, EncodingSet | None]:
    """The float model behind one that quantizes, and the encodings of its pairs; any other model as it is.

    Doubles become float32: no device has them, and ONNX Runtime has kernels for few operators. Layers that quantize
    their inputs while they run compute in float then: their rounding is noise of the model, which no other execution
    has to repeat.
    """
    if takes_pairs and facts.is_qdq:
        from deploykit.encodings.qdq import extract_qdq

        taken = extract_qdq(model, saturate=True)
        return taken.model, facts_of(taken.model), taken.encodings
    while_running = ("dequantize-layers",) * any(map(quantizes_at_run_time, model.graph.node))
    for name in (*while_running, "double-to-float"):
        transform = load_transform(name)
        if found := transform.match(model):
            model = transform.apply(model, None, found).model
            facts = facts_of(model)
    return model, facts, None


def rounding_shows(model: ModelProto, samples: Samples) -> str:
    """Why the copy without rounding is no reference for this model; "" where it is one, or nothing is rounded.

    Whoever handed the model in compares with what it gives, and a copy that decides otherwise is another model.
    """
    if any(map(quantizes_at_run_time, model.graph.node)):
        floats, facts, _ = in_float(model, facts_of(model))
        own = Judge(floats, facts, samples).compare(Session(model).runs(samples.varied))
        if own.right is False:
            return (
                "not judged: the model quantizes while it runs, and its copy in float, which is judged, gives: "
                f"{own.words}; hand in the float model it was made from"
            )
    return ""


def read_question(
    model: Path,
    *,
    encodings: Path | None = None,
    float_tensors: Path | None = None,
    data: Path | None = None,
    samples: int | None = None,
    seed: int = 0,
    takes_pairs: bool = True,
) -> QuestionOfFiles:
    """The model, samples and encodings in files.

    A QDQ model without a file of encodings gives its own, unless its pairs are to stay in it.
    """
    read = load_model(model)
    given, facts = lean_weights(read), collect_facts(read)
    proto, facts, placed = in_float(given, facts, takes_pairs=takes_pairs and encodings is None)
    if encodings is not None:
        placed = read_placed(encodings, facts, float_tensors=float_tensors)
    made = gather(proto, facts, calibration=data, encodings=placed, most=samples or MOST, seed=seed)
    facts.once(Reading, lambda: replace(Reading.of(facts), doubt=rounding_shows(given, made)))
    return QuestionOfFiles(model=proto, facts=facts, samples=made, encodings=placed)


def compare_outputs(reference: Feeds, outputs: Feeds, encodings: EncodingSet | None = None) -> tuple[Fidelity, ...]:
    """One Fidelity per output of the reference that holds numbers, over all samples together."""
    found = []
    for name in _numeric(reference):
        wanted, got = _stacked(reference, [name]), _stacked(outputs, [name])
        entry = encodings.get(name) if encodings else None
        step = float(entry.value.scale.max()) if entry and isinstance(entry.value, Affine) else None
        numbers = {"sqnr_db": sqnr_db(wanted, got), "cosine": cosine(wanted, got), "max_error": max_error(wanted, got)}
        found.append(Fidelity(name=name, **numbers, step=step))
    return tuple(found)


def _numeric(samples: Feeds) -> list[str]:
    return [name for name, value in samples[0].items() if value.dtype.kind not in "OUS"] if samples else []


def _stacked(samples: Feeds, names: Sequence[str]) -> Doubles:
    return np.concatenate([np.asarray(sample[n], np.float64).ravel() for n in names for sample in samples])


def overall_sqnr_db(reference: Feeds, outputs: Feeds) -> float:
    """Signal to noise over all outputs and samples together, in dB; infinite without any difference."""
    names = _numeric(reference)
    return sqnr_db(_stacked(reference, names), _stacked(outputs, names)) if names else math.inf


_FACTORS = (0.5, 0.25)
"""How much smaller derived inputs are made where they are too large for the encodings."""
_DESTROYED_DB = 12.0
"""Below it, on the best of the derived inputs, the encodings are wrong and not the inputs: right models of the test
data have at least 14 dB there (4-bit weights), models with one destroyed tensor at most 10."""
_SAME_DB = 1.0
_PERHAPS = "not judged: it misses what is asked, perhaps only because the inputs are made up"


class Original(Record, eq=False):
    """The model as it was handed in: its judge, and what its encodings lose; None where it came without encodings.

    ``wider`` simulates which wider type keeps more, in words; "" where that is not known.
    """

    judge: Judge
    quantization: Verdict | None
    wider: Callable[[], str] = str


def fit_judge(
    model: ModelProto,
    facts: GraphFacts,
    encodings: EncodingSet,
    samples: Samples,
    thresholds: Thresholds | None = None,
    known: Known | None = None,
    end: ModelProto | None = None,
) -> tuple[Judge, Verdict]:
    """The judge of every execution of this model, on samples that the encodings can hold, and its verdict on them.

    Samples other than derived ones are taken as they are. ``end`` is what the host runs behind the model.
    """
    derived = {name for name, source in samples.of_inputs.items() if source.label is Label.DERIVED}
    session, simulator = Session(model), Simulator(model, encodings, known=known)
    tried = list[tuple[Judge, Verdict]]()
    factors = (1.0, *_FACTORS) if samples.label is Label.DERIVED else (1.0,)
    # Opening a model piece by piece costs more than a few samples more: then all sizes share one pass, of two samples.
    streams = session.streams or simulator.streams
    drawn = samples.varied[-2:] if streams and len(factors) > 1 else samples.varied
    sets = [  # float inputs that were derived are drawn towards zero, nothing else is
        [
            {n: v * v.dtype.type(factor) if n in derived and v.dtype.kind == "f" else v for n, v in feed.items()}
            for feed in drawn
        ]
        for factor in factors
    ]
    for together in [sets] if streams else [[one] for one in sets]:
        everything = [feed for feeds in together for feed in feeds]
        wanted, got = iter(session.runs(everything)), iter(simulator.runs(everything))
        for feeds in together:
            reference, outputs = list(islice(wanted, len(feeds))), list(islice(got, len(feeds)))
            judge = Judge(model, facts, feeds, label=samples.label, thresholds=thresholds, reference=reference, end=end)
            verdict = settled(judge.compare(outputs), samples.label)
            tried.append((judge, verdict))
            if verdict.right:
                return tried[-1]
    # Where size makes no difference, something else is wrong, and its cure is seen best on the smallest inputs.
    best = max(_order(verdict.overall_db) for _, verdict in tried)
    return next(item for item in reversed(tried) if _order(item[1].overall_db) >= best - _SAME_DB)


def settled(verdict: Verdict, label: Label) -> Verdict:
    """The verdict; a no that derived inputs cannot carry becomes open."""
    if label is not Label.DERIVED or verdict.right is not False or _order(verdict.overall_db) < _DESTROYED_DB:
        return verdict
    return replace(verdict, right=None, reason=_PERHAPS)


def _order(value: float) -> float:
    return value if value == value else -np.inf
