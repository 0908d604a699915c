"""Measures the quantized model; if it is not good enough, tries parts of the model in float, and wider formats.

It packages nothing: its result is another request for the same model, with which the core starts again.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import onnx

from deploykit.accuracy.judge.compare import ComparedOutputs, compare, read_outputs
from deploykit.accuracy.judge.judge import judge_outputs
from deploykit.accuracy.judge.verdict import Context, KeptCount, Verdict
from deploykit.accuracy.samples.gathering import gather
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.search.goals import GOAL, Goal, Reached
from deploykit.accuracy.search.raising import wider_layers
from deploykit.backend.backend import Instead, Request
from deploykit.backend.status import Correctness, correctness_of
from deploykit.encodings.place import place
from deploykit.encodings.qdq import extract_qdq
from deploykit.errors import DeploykitError, ToolError
from deploykit.findings.records import Arrays, Record, Tell, replace
from deploykit.model.facts import GraphFacts
from deploykit.model.weights import load_weights
from deploykit.system.environments import Environment
from deploykit.system.folders import scratch
from deploykit_vitis_ai import configs
from deploykit_vitis_ai.draft import FloatPart, QuarkDraft, float_parts, make_draft
from deploykit_vitis_ai.prepare import DRAFT_REGISTRIES, QuarkPrepared
from deploykit_vitis_ai.rules.execution import RULES as OUTCOME_RULES
from deploykit_vitis_ai.rules.execution import QuarkOutcome, QuarkTrial
from deploykit_vitis_ai.runner import QuarkRun, run_quark

__all__ = ["Measured", "find_better", "measure", "tried"]


# The beginning of the names of samples that the quantizer did not see (scripts/quantize.py).
_HELD_OUT = "held_out_"


class Measured(Record):
    """One run and the comparison of its model; the latter two are None for calibration with random data."""

    run: QuarkRun
    comparison: ComparedOutputs | None = None
    quality: QuantizedQuality | None = None

    @property
    def right(self) -> Correctness | None:
        """The judge's verdict on the quantized model, run in ONNX Runtime on calibration samples; None
        without samples.
        """
        if self.quality is None:
            return None
        return correctness_of(self.quality.verdict, where="simulated", label=Label.GIVEN, count=self.quality.samples)


def measure(
    environment: Environment, package: Path, draft: QuarkDraft, progress: Tell, *, trial: bool = False
) -> Measured:
    """Quantizes inside a package folder by its recipe. Raises ToolError if there is no model."""
    if draft.random_data:
        return Measured(run=run_quark(environment, package, recipe=configs.RECIPE, progress=progress))
    with scratch() as outputs:
        run = run_quark(environment, package, recipe=configs.RECIPE, compare=outputs, progress=progress, trial=trial)
        progress("comparing the quantized model with the float model")
        sides = read_outputs(outputs / "baseline"), read_outputs(outputs / "candidate")
        comparison, (reference, candidate) = compare(*sides), (side.samples for side in sides)
        names = sorted(reference.keys() & candidate.keys())
        held_out = [place for place, name in enumerate(names) if name.startswith(_HELD_OUT)]
        quality = judge_quality(
            draft.facts, [reference[name]() for name in names], [candidate[name]() for name in names], held_out
        )
    return Measured(run=run, comparison=comparison, quality=quality)


_SAMPLES = 16
# What else is tried with scales that are powers of two, which the least squares choose: these cut off rare values.
_SETTINGS = (
    ("with ranges that cut nothing off", ("calibrate_method", "PowerOfTwoMethod.NonOverflow")),
    ("without cross-layer equalization", ("include_cle", "false")),
)
# A third less noise is worth a part in float where it is no cure, or a larger one; and how many sizes are measured.
_WORTH_DB = 2.0
_MORE = 8
# The share of detections to keep on the few held-out samples: so few cannot show a smaller loss.
_FEW_KEPT = 0.95


class QuantizedQuality(Record):
    """The measurements on some samples.

    ``unseen`` are those on the samples that the quantizer did not see; None if it saw all.
    """

    verdict: Verdict
    samples: int
    unseen: QuantizedQuality | None = None

    @property
    def kept(self) -> KeptCount | None:
        """The kept detections, counted strictly; None if the float model has none."""
        return Reached.of(self.verdict).counted

    @property
    def described(self) -> str:
        """The verdict in words, with the strict counts."""
        counts = "" if self.kept is None else f", {self.kept}"
        if self.unseen is not None and self.unseen.kept is not None:
            counts += f", {self.unseen.kept.share:.1%} on {self.unseen.samples} samples held out"
        return f"{self.verdict.described}{counts}"

    def is_met(self, goal: Goal) -> bool | None:
        """True if a goal is reached and no held-out sample contradicts; None if this is unknown."""
        met, few = goal.is_met(Reached.of(self.verdict)), self.unseen
        if not met or few is None:
            return met
        if goal.asks_outputs:  # so few samples hardly decide that
            return few.verdict.right is not False and (few.kept is None or few.kept.share >= _FEW_KEPT)
        return goal.is_met(Reached.of(few.verdict)) is not False


def judge_quality(
    facts: GraphFacts, reference: Sequence[Arrays], candidate: Sequence[Arrays], held_out: Sequence[int] = ()
) -> QuantizedQuality:
    """Judges the outputs of each sample; ``held_out`` are the positions of samples that the quantizer did not see."""
    unseen = None
    if held_out:
        unseen = judge_quality(facts, [reference[i] for i in held_out], [candidate[i] for i in held_out])
    verdict = judge_outputs(facts, Context(Label.GIVEN), reference, candidate)
    return QuantizedQuality(verdict=verdict, samples=len(reference), unseen=unseen)


def tried(
    environment: Environment, package: Path, details: QuarkPrepared, request: Request, progress: Tell
) -> Measured | None:
    """Quantizes a copy of the package by the request's recipe, and measures it; None if the quantizer fails."""
    draft = make_draft(replace(details.draft.situation, request=request))
    made = next(path for path in (package / configs.RECIPE, package / configs.VALIDATION) if path.is_file())
    calibration = json.loads(made.read_text("utf-8"))["calibration"]
    if draft.needs_quark:
        recipe = configs.quantize_recipe(draft, calibration, details.inputs)
    else:  # an imitation of the compiler's conversion
        recipe = configs.validation_recipe(draft, details.inputs, calibration)
    with scratch() as folder:
        copy = folder / "package"
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("artifacts", "logs"))
        (copy / configs.RECIPE).write_text(json.dumps(recipe), "utf-8")
        try:
            # A validation model is never asked for again, and must not push out one that is.
            return measure(environment, copy, draft, progress, trial=draft.needs_quark)
        except ToolError as error:
            progress(f"not tried: {error.what}")
            return None


class SearchResult(Record):
    """The trials, and the request that is better than the first one; None if there is none."""

    outcome: QuarkOutcome
    instead: Instead | None = None


def find_better(
    environment: Environment, package: Path, details: QuarkPrepared, measured: Measured, progress: Tell
) -> SearchResult:
    """Tries parts in float, smallest first, then wider formats for ``auto``, until the outputs are good enough.

    If none is good enough, the best one counts, if it is better than the first.
    """
    draft, given = details.draft, measured.quality
    trials = [QuarkTrial(draft.precision, _described(given))]
    best, won = given, None

    # Computed only if everything before was not enough.
    costly = (
        _costly_part(draft, package / measured.run.output, progress)
        for _ in range(1)
        if best and not _is_done(draft, best)
    )
    for words, request, part in () if given is None or _is_done(draft, given) else _candidates(draft, costly):
        assert best
        if _is_done(draft, best):
            break
        if part is None:  # findings that forbid another format are known before anything runs
            wider = make_draft(replace(draft.situation, request=request))
            found = (finding for registry in DRAFT_REGISTRIES for finding in registry.run(wider))
            codes = dict.fromkeys(finding.code for finding in found if finding.blocks)
            if codes:
                trials.append(QuarkTrial(words, f"not possible ({', '.join(codes)})"))
                continue
        progress(f"the outputs are not good enough: trying {f'with {part.words} in float' if part else words}")
        made = tried(environment, package, details, request, progress)
        quality = None if made is None else made.quality
        if part is None:
            trials.append(QuarkTrial(words, "not made" if made is None else _described(quality)))
        elif quality is not None:
            trials.append(_part_trial(draft.facts, part, words, quality))
        if made is None or quality is None:
            continue
        # A part that is no cure has to be worth it, where nothing is counted.
        gained = quality.verdict.overall_db - best.verdict.overall_db
        few = part and part.found is None and quality.verdict.kept is None and gained < _WORTH_DB
        if _is_enough(draft, quality) or (quality.verdict.is_better_than(best.verdict) and not few):
            best, won = quality, (len(trials) - 1, request, made)
    place = won[0] if won else 0
    trials[place] = chosen = replace(trials[place], chosen=True)
    goal, ranged = draft.goal, won is not None and won[1].options != draft.situation.request.options
    outcome = QuarkOutcome(
        toolchain=draft.toolchain,
        state="ready",
        trials=tuple(trials),
        asked="are right" * ranged if goal is None else f"{'are' if goal.name == GOAL else 'reach'} {goal.in_words}",
        reached=_is_enough(draft, best) if best and (ranged or goal) else None,
    )
    instead = None
    if won:
        how = f"{chosen.words}: {chosen.outcome} instead of {trials[0].outcome}"
        instead = Instead(won[1], how, findings=OUTCOME_RULES.run(outcome), right=won[2].right)
    return SearchResult(outcome=outcome, instead=instead)


def _is_enough(draft: QuarkDraft, quality: QuantizedQuality) -> bool | None:
    """Whether outputs reach the goal, or are right if there is no goal; None if this is unknown."""
    return quality.verdict.right if draft.goal is None else quality.is_met(draft.goal)


def _is_done(draft: QuarkDraft, quality: QuantizedQuality) -> bool:
    """True if no more trials are needed: the outputs are good enough, or cannot be judged.

    Outputs without a verdict cannot be judged, unless the goal is a signal-to-noise ratio, or something is lost that
    may be chance.
    """
    verdict = quality.verdict
    if verdict.right is None and (draft.goal is None or draft.goal.asks_outputs):
        return not any(number.is_open for number in verdict.failures)
    return _is_enough(draft, quality) is True


def _described(quality: QuantizedQuality | None) -> str:
    return "not judged" if quality is None else quality.described


def _costly_part(draft: QuarkDraft, quantized: Path, tell: Tell) -> FloatPart | None:
    """The fewest layers that a simulation of Quark's model needs in float; else those with the most effect.

    None if these cannot be found or named, or are more than half of the model: that would be another precision.
    """
    facts, given = draft.facts, draft.situation
    try:
        entries = extract_qdq(onnx.load(quantized)).encodings.only(facts.tensors)
        model = load_weights(given.model)
        feeds = gather(model, facts, calibration=given.request.calibration, most=_SAMPLES).varied
        found = wider_layers(model, facts, place(entries, facts), feeds, "float16", more=_MORE, tell=tell)
    except (DeploykitError, OSError):
        return None
    computed = [node for node in facts.nodes if node.op_type != "Constant"]
    parts = []
    for trial in () if found is None else found.trials:
        raised = set(trial.tensors)
        names = tuple(node.name for node in computed if raised & {*node.inputs, *node.outputs})
        if names and all(names) and len(names) <= len(computed) / 2:
            parts.append((trial, FloatPart(names=names, words="the layers that lose most")))
    most = max((trial.reached.sqnr_db for trial, _ in parts), default=0.0)
    enough = [part for trial, part in parts if trial.met] or [
        part for trial, part in parts if trial.reached.sqnr_db >= most - _WORTH_DB
    ]
    return next(iter(enough), None)


def _candidates(
    draft: QuarkDraft, costly: Iterator[FloatPart | None]
) -> Iterator[tuple[str, Request, FloatPart | None]]:
    """Yields parts to leave in float, unless the user named some; then the formats of ``auto``."""
    request = draft.situation.request
    named = bool(draft.exclusions) and draft.found is None
    if not named and not request.adapter_options.get("exclude_nothing"):
        for part in chain(float_parts(draft.situation), costly):
            if part is not None and part != draft.found:
                options = {**request.adapter_options, "exclude_node": part.names, "hold_out": draft.hold_out}
                precision = draft.precision if draft.ladder else request.precision
                asked = replace(request, precision=precision, goal=None, adapter_options=options)
                yield f"{draft.precision} with {part.words} in float", asked, part
    for name in draft.ladder[1:]:
        # Parts tried in float no longer count: the whole model is in the wider format.
        whole = {} if draft.exclusions else {"exclude_nothing": True}
        options = {**request.adapter_options, **whole, "hold_out": draft.hold_out}
        yield name, replace(request, precision=name, goal=None, adapter_options=options), None
    powers = draft.route is not None and draft.route.power_of_two and not draft.ladder
    for words, option in _SETTINGS if powers else ():
        if option[0] not in dict(request.options):
            yield f"{draft.precision} {words}", replace(request, options=(*request.options, option)), None


def _part_trial(facts: GraphFacts, part: FloatPart, words: str, quality: QuantizedQuality) -> QuarkTrial:
    """The trial of a part, with its share of the nodes and of the computed values, as far as shapes are known."""
    shapes = ((node, facts.static_shape(name)) for node in facts.nodes for name in node.outputs if name)
    sizes = [(node.name in part.names, math.prod(shape)) for node, shape in shapes if shape is not None]
    return QuarkTrial(
        words,
        quality.described,
        part=part.words,
        nodes=part.names,
        of_nodes=len(part.names) / len(facts.nodes),
        of_values=sum(size for inside, size in sizes if inside) / max(sum(size for _, size in sizes), 1),
    )
