"""Rules about the chosen way (DK201 to DK251) and about encodings made here (DK220 on), and all registries of
the core.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from deploykit.findings import Severity, listed
from deploykit.findings.records import plain
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.model.facts import shape_text

if TYPE_CHECKING:
    from deploykit.backend.opinions import Opinion
    from deploykit.flow.choose import ChosenWay
    from deploykit.flow.quantizing.making import Made

__all__ = ["QUANTIZED_RULES", "RULES", "core_registries"]

RULES: Registry[ChosenWay] = Registry("choice")


def _of_model(chosen: ChosenWay, message: str, **more: Any) -> Found:
    return Found("model", chosen.situation.request.model.name, message, **more)


@RULES.rule("DK201", "graph-rewritten", "info", "ONNX Runtime, run while packaging")
def check_rewritten(chosen: ChosenWay) -> Finds:
    """The packaged model is a rewritten form of the one that was given.

    Huge ranges are often artefacts of how the maths is written; rewritten, integers hold them. Each rewrite was proven
    equal in float32 by running both on the samples.

    Fix: compare on your own data (--calibration), or leave a rewrite out with --no-rewrite NAME
    """
    if not chosen.situation.rewritten or not chosen.rewrites:
        return
    won, before = chosen.explored.winner, chosen.explored.reference
    gain = "proven equal in float32; what it brings was not judged"
    if won is not None and won.verdict is not None and before is not None and chosen.samples is not None:
        gain = f"{won.verdict.overall_db:.1f} dB in simulation, {before.overall_db:.1f} dB as it was given"
        gain += f", on {chosen.samples.described_for_humans}"
    request = chosen.situation.request
    asked = [name for name in chosen.rewrites if name in request.rewrite]
    chosen_here = [name for name in chosen.rewrites if name not in asked]
    ways = [] if request.calibration is not None else ["compare on your own data (--calibration)"]
    ways += ["do without with " + " ".join(f"--no-rewrite {name}" for name in chosen_here)] if chosen_here else []
    ways += ["leave " + " ".join(f"--rewrite {name}" for name in asked) + " out"] if asked else []
    yield _of_model(
        chosen,
        f"rewritten by {', '.join(chosen.rewrites)}: {gain}",
        hint=", or ".join(ways),
        evidence={"rewrites": list(chosen.rewrites), "sqnr_db": None if won is None else won.way.to_json()["sqnr_db"]},
    )


@RULES.rule("DK202", "host-tail", "warning", "ONNX Runtime, run while packaging")
def check_tail(chosen: ChosenWay) -> Finds:
    """The end of the model was cut off and runs on the host.

    Outputs of unlike ranges share one grid when they are joined; on the host they keep their own precision. A Loop that
    the values end runs there too, and what decides a size, such as NonMaxSuppression.

    Fix: run model/tail.onnx after the device (the run scripts do); without a Loop or NonMaxSuppression it stays whole
    with --no-rewrite cut-tail --no-rewrite split-output --no-rewrite scale-last
    """
    if chosen.situation.tail is not None:
        yield _of_model(chosen, "model/tail.onnx must run after the device")


@RULES.rule("DK203", "not-simulated", "warning", "this run")
def check_simulated(chosen: ChosenWay) -> Finds:
    """A precision mix that could not be simulated.

    Without numbers no way is better than another; the plan takes the one that changes least.

    Fix: make the model run in ONNX Runtime, and give --calibration data that fits its inputs
    """
    # An error if the user insists on segments, as only a simulated model is cut. Without encodings there is no mix:
    # DK208 reports requests that were not fulfilled.
    if not chosen.skipped or chosen.situation.encodings is None:
        return
    insisted = chosen.situation.request.mixed == "segments"
    yield _of_model(
        chosen,
        f"not simulated{' and therefore not cut into segments' if insisted else ''}: {chosen.skipped}",
        severity=Severity.ERROR if insisted else None,
    )


@RULES.rule("DK204", "mixed-refused", "error", "the request")
def check_refused(chosen: ChosenWay) -> Finds:
    """Float16 tensors among integer ones, with --mixed refuse or a kind of mix that is not offered.

    No way that was asked for is available for this target.

    Fix: allow another way: --mixed auto
    """
    choice = chosen.explored.choice
    if choice.verdicts and choice.winner is None:
        verdicts = "; ".join(f"{name}: {why}" for name, why in choice.verdicts.items())
        yield _of_model(chosen, f"no way to deploy is left: {verdicts}")


@RULES.rule("DK205", "lost-by-quantization", "warning", "simulated while packaging")
def check_quality(chosen: ChosenWay) -> Finds:
    """The way that was chosen loses more than is asked for, in simulation against the float model.

    The device cannot restore what quantization lost. docs/numbers.md gives the reason of each limit.

    Fix: deploykit accuracy locate names the first operator; use wider activations or calibrate anew
    """
    # Every judged number that misses its limit, in one finding per output.
    won, reference = chosen.explored.winner, chosen.explored.reference
    if won is None or won.verdict is None or won.verdict.right or chosen.samples is None:
        return
    before = "" if reference is None else f"; the file's own simulation: {reference.overall_db:.1f} dB"
    for output, told, missed in won.verdict.lost_outputs():
        yield Found(
            "tensor",
            output,
            f"{output}: {told}, on {chosen.samples.described_for_humans}{before}",
            hint="" if reference is None else reference.wider,
            evidence={"numbers": plain(missed)},
        )


@RULES.rule("DK206", "segments", "warning", "ONNX Runtime, run while packaging")
def check_segments(chosen: ChosenWay) -> Finds:
    """The model is cut into segments that run one after the other.

    Each segment is wholly integer or wholly float, so that no tool has to mix precisions inside one graph. Every tensor
    that crosses a border is written by one segment and read by the next.

    Fix: run the segments in order, as the run scripts do, or let the tools mix with --mixed fallback
    """
    # The number of segments, the tensors between them, and the operators that are float only because of the cuts.
    segments = chosen.situation.segments
    if not segments:
        return
    whole = {*chosen.situation.facts.inputs}
    crossing = sorted({name for segment in segments for name in segment.inputs} - whole)
    changed = [label for segment in segments for label in segment.changed]
    yield _of_model(
        chosen,
        f"{len(segments)} segments, chained by the run scripts; {len(crossing)} tensors cross between them, "
        f"{len(changed)} operators run in float16 though they have integer encodings",
        evidence={"segments": [segment.name for segment in segments], "crossing": crossing, "changed": changed},
    )


@RULES.rule(
    "DK207",
    "open-tensor",
    "error",
    "RT-DETRv2 topology, int64 orig_target_sizes: 1,238 pixels mean error with a range of 0..1, 6 without",
)
def check_open(chosen: ChosenWay) -> Finds:
    """A tensor that needs an integer encoding and about whose range nothing is known.

    Its entry is missing, and neither its operator nor its neighbours nor data of yours tell what it reaches. A range
    that is made up destroys a model in silence: sizes in pixels taken for 0..1 put every box in a corner.

    Fix: give data with --calibration, or say what the input is with --input NAME=VALUE
    """
    # Each tensor with the input that it depends on; no error if another way leaves it float.
    won = chosen.explored.winner
    if won is not None and won.way.kind == "integer":
        return
    inferences = [item.inference for item in chosen.explored.built if item.inference is not None]
    for one in next((inference.open for inference in inferences if inference.open), ()):
        hang = f"; it depends on the input {listed(one.inputs)}" if one.inputs else ""
        yield Found(
            kind="tensor",
            name=one.tensor,
            severity=None if won is None else Severity.INFO,
            handled=None if won is None else f"left float: {won.way.id}",
            message=f"{one.tensor}: its range is not known: {one.why}{hang}",
            hint=f"give {' or '.join(one.ways_out)}",
            evidence=one.to_json(),
        )


@RULES.rule(
    "DK208",
    "rewrite-not-applied",
    "error",
    "the rewrite's own matcher, and ONNX Runtime, run while packaging",
)
def check_asked(chosen: ChosenWay) -> Finds:
    """A rewrite that was asked for by name changes nothing in the package.

    What is asked for by name is done, or refused with the reason: what is dropped in silence is taken for done.

    Fix: leave it out, or change what the reason names
    """
    # Every requested rewrite that the chosen way does not have.
    for name in chosen.situation.request.rewrite:
        why = _why_not_applied(chosen, name)
        if why:
            yield _of_model(chosen, f"--rewrite {name}: {why}")


def _why_not_applied(chosen: ChosenWay, name: str) -> str:
    explored = chosen.explored
    if name in {step.name for step in chosen.simplified}.union(chosen.rewrites):
        return ""
    if not explored.choice.ways and chosen.rewriting is None:
        return chosen.skipped or "this model has no encodings that a rewrite could be chosen for"
    made = [chosen.rewriting, *(item.rewriting for item in explored.built)]
    steps = [step for rewriting in made if rewriting is not None for step in rewriting.steps]
    for step in steps:
        if step.name == name and not step.kept:
            places = [f"{', '.join(one.nodes)}: {one.reason}".removeprefix(": ") for one in step.refusals[:3]]
            is_said = step.reason in {one.reason for one in step.refusals}
            return "; ".join(places if is_said else (step.reason, *places))
    won = explored.winner
    return f"the way that was chosen, {won.way.id}, does without it" if won else "--no-rewrite takes it away"


@RULES.rule("DK209", "inferred-ranges", "info", ("the graph and its encodings", "the samples named in the message"))
def check_inferred(chosen: ChosenWay) -> Finds:
    """Integer entries that the encodings did not have, and where their ranges come from.

    A range that was concluded is only as good as what it was concluded from, so each says that: stored values, the
    operator, its neighbours, or your data. None comes from inputs that were made up.

    Fix: export the encodings with these tensors, or compare the ranges with what your data reaches
    """
    # The number of entries by origin, and every conclusion in the evidence.
    won = chosen.explored.winner
    inferences = (chosen.filled, None if won is None else won.inference)
    concluded = {name: one for made in inferences if made is not None for name, one in made.concluded.items()}
    if not concluded:
        return
    from deploykit.encodings.backward import Origin

    counts = Counter(conclusion.origin for conclusion in concluded.values())
    origins = ", ".join(f"{counts[origin]} {origin}" for origin in Origin if counts[origin]).replace("_", " ")
    told = [f"{c.tensor}: {c.why}" for c in concluded.values() if c.why.startswith("inferred")]
    yield _of_model(
        chosen,
        f"{len(concluded)} tensors got an entry: {origins}" + "".join(f"; {line}" for line in told[:3]),
        # Data cannot correct such ranges.
        hint="these ranges are exact: stored values and operators bound them"
        if {Origin.CONSTANT, Origin.OPERATOR}.issuperset(counts)
        else "",
        evidence={"ranges": plain([*concluded.values()])},
    )


@RULES.rule("DK210", "graph-simplified", "info", "ONNX Runtime, run while packaging")
def check_simplified(chosen: ChosenWay) -> Finds:
    """The packaged model is a simplified form of the one that was given.

    Exports compute at run time what is settled when they are made: shapes, masks and grids of static size. Devices lack
    the operators that do so. The simplified graph was proven equal by running both.

    Fix: keep the graph as it was given with --no-rewrite NAME
    """
    for step in chosen.simplified:
        yield _of_model(
            chosen,
            f"{step.name}: {'; '.join((*step.notes, step.reason))}",
            hint=f"keep the graph as it was given with --no-rewrite {step.name}",
            evidence=step.to_json(),
        )


@RULES.rule("DK211", "compiler-asked", "info", "the compiler named in the message, run while deciding")
def check_opinions(chosen: ChosenWay) -> Finds:
    """Findings that are not sure would refuse the model; whether a compiler was asked about them, and its answers.

    What was read or told about another release is a guess here, and the compiler outranks it. What was asked is said,
    since on a machine without it the same model may get another answer.

    Fix: leave the guesses in force with --no-second-opinion
    """
    # The numbers of refuted, confirmed and open findings, or why no compiler was asked.
    opinions = chosen.situation.opinions
    if opinions is None:
        return
    compiler, asked = opinions.compiler, opinions.opinions
    if compiler.missing:
        told = f"no compiler was asked about {_about(asked)}: {compiler.missing}"
        yield _of_model(chosen, told, hint=compiler.instead)
        return
    speakers = dict.fromkeys((compiler.name, *(one.by.name for one in asked if one.by is not None)))
    told = "; ".join(_outcomes(asked, name) for name in speakers if _outcomes(asked, name)) if len(speakers) > 1 else ""
    told = told or "; ".join(_by_state(asked))
    yield _of_model(
        chosen,
        f"{compiler.name} was asked about {len(asked)} finding{'s' if len(asked) > 1 else ''}: {told}",
        evidence={"compiler": compiler.name, "opinions": plain(asked)},
    )


@RULES.rule(
    "DK212",
    "input-size-chosen",
    "info",
    "ONNX IR specification (onnx/onnx docs/IR.md), section on symbolic dimensions",
)
def check_size_chosen(chosen: ChosenWay) -> Finds:
    """An input with open dimensions got fixed sizes, or an input that only chooses a branch got a fixed value.

    A package is compiled ahead of time, and every size must be a number then.

    Fix: state another size with --input NAME=SIZES
    """
    # Each input with its size and the reason; a typed size is not news to the user.
    for item in chosen.situation.sizes:
        if item.is_typed:
            continue
        sizes = ",".join(map(str, item.shape))
        # A single number after = would be a value.
        yield Found(
            "tensor",
            item.name,
            f"input {item.name} is {sizes.replace(',', ' x ')}: {item.why}",
            hint=f"for another size add --input {item.name}{':='[',' in sizes]}{sizes} with your numbers",
            evidence={"shape": list(item.shape), "why": item.why, "usual": item.usual},
        )
    for name, value in chosen.situation.choices.items():
        yield Found(
            "tensor",
            name,
            f"input {name} only chooses a branch and is fixed at {value}; the packaged model does not have it",
            hint=f"for another branch add --input {name}=VALUE",
            evidence={"value": value},
        )


@RULES.rule("DK213", "channels-last", "info", "the request, or the metadata of the model")
def check_layout(chosen: ChosenWay) -> Finds:
    """An input or output of the package has its channels last, as --io asked.

    The package is fed and gives N, H, W, C there; inside, the graph is the same. Samples in the layout of the model as
    it was given are turned when they are read.

    Fix: leave out --io for the layout of the model
    """
    facts = chosen.situation.facts
    for name in sorted(facts.channel_last):
        yield Found("tensor", name, f"{name} is {shape_text(facts.tensors[name])}, channels last")


@RULES.rule("DK251", "end-in-int16", "info", "simulated while packaging")
def check_wider_end(chosen: ChosenWay) -> Finds:
    """The post-processing inside the model gets 16-bit grids, over the ranges that its entries have.

    Coordinates, their decoding, and boxes joined with scores need more than 256 steps. Wider tensors take twice the
    memory and more time, and each border to 8 bits costs a conversion; the network itself stays as it was.

    Fix: keep the grids as they were given with --no-rewrite end-in-int16
    """
    # The part, its share of the model, and the measurements with and without it.
    won, before = chosen.explored.winner, chosen.explored.reference
    if won is None or won.end is None or won.verdict is None or before is None or chosen.samples is None:
        return
    harms = ", ".join(won.end.harms)
    share = len(won.end.nodes) / len(won.facts.nodes)
    yield Found(
        "node",
        won.end.ends[-1],
        f"{won.end} get 16-bit grids, {len(won.widened)} tensors, {share:.0%} of the nodes ({harms}): "
        f"{won.verdict.described}; as given {before.described}, on {chosen.samples.described_for_humans}",
        evidence={**won.end.to_json(), "tensors": list(won.widened)},
    )


def _outcomes(opinions: Iterable[Opinion], name: str) -> str:
    """The opinions of one of several compilers in words, "" if it has none."""
    own = [one for one in opinions if one.by is not None and one.by.name == name]
    return ", ".join(f"{told} by {name}" for told in _by_state(own))


def _by_state(opinions: Sequence[Opinion]) -> list[str]:
    from deploykit.backend.opinions import OpinionState

    groups = ((state, [one for one in opinions if one.state is state]) for state in OpinionState)
    return [f"{state} {_about(group)}" for state, group in groups if group]


def _about(opinions: Iterable[Opinion]) -> str:
    return listed([f"{opinion.code} {opinion.subject}" for opinion in opinions], most=3)


AGREES_DB = 60.0
"""Two simulations of the same encodings that differ by more than a millionth
of the signal's energy mean different things.
"""


QUANTIZED_RULES: Registry[Made] = Registry("quantized")


@QUANTIZED_RULES.rule("DK220", "quantized-by-default", "warning", "the toolchains of the backend")
def check_default(quantized: Made) -> Finds:
    """The encodings were made by the embedded quantizer, because the one for this target is not installed.

    The embedded quantizer knows nothing of the device: which operators share a grid, which weights must be symmetric,
    what the device computes in one kernel. A quantizer for the target does.

    Fix: install it with 'deploykit toolchain install', or say --with ort to take the embedded one
    """
    # A better quantizer is known but not installed.
    better = quantized.picked.better
    if better is None:
        return
    spec = better.spec
    yield Found(
        "environment",
        spec.id,
        f"{quantized.picked.quantizer.id} made the encodings, since {spec.id} is not installed",
        hint=f"run 'deploykit toolchain install {spec.id}' ({spec.disk_mb} MiB, about {spec.minutes} minutes)",
        evidence={"quantizer": quantized.picked.quantizer.id, "missing": spec.id},
    )


@QUANTIZED_RULES.rule("DK221", "quantized-here", "info", "the quantizer, run while packaging")
def check_quantized(quantized: Made) -> Finds:
    """The encodings of this package were made here from the float model and the calibration data.

    Nobody but this run vouches for them; what they cost stands beside them.

    Fix: make them with your own quantizer where these are not good enough, and hand them in with --encodings
    """
    # The quantizer, and the remaining signal-to-noise ratio.
    numbers = quantized.numbers
    on = "samples" if numbers.seen else "samples that it did not see" + numbers.since
    value = numbers.to_json()["sqnr_db"]
    shown = (
        f"{numbers.sqnr_db:.1f} dB" if value is not None else "no difference" if numbers.sqnr_db > 0 else "nothing left"
    )
    fed = [i.name for i in quantized.model.proto.graph.input if i.type.tensor_type.elem_type == 11]  # doubles
    shown += f" on {numbers.samples} {on}{'; feed ' * bool(fed)}{', '.join(fed)}{' as float32' * bool(fed)}"
    yield Found(
        "model",
        quantized.model.path.name,
        f"quantized to {quantized.precision} by {quantized.picked.quantizer.id}: {shown}",
        evidence={"quantizer": quantized.picked.quantizer.id, "sqnr_db": value, "samples": numbers.samples},
    )


@QUANTIZED_RULES.rule("DK222", "simulations-disagree", "warning", "both simulations, run on the same samples")
def check_agreement(quantized: Made) -> Finds:
    """The quantizer's own simulation and deploykit's differ on the same encodings.

    What was calibrated is then not what is judged here: an encoding was lost, or one of the two simulates something
    else.

    Fix: go by deploykit's number, which is of the files that were written; report it to the quantizer's makers
    """
    agreement = quantized.numbers.agreement_db
    if agreement is None or agreement >= AGREES_DB:
        return
    yield Found(
        "model",
        quantized.model.path.name,
        f"the simulation of {quantized.picked.quantizer.id} and deploykit's agree to {agreement:.1f} dB only",
        evidence={"agreement_db": agreement, "largest_difference": quantized.numbers.largest_difference},
    )


@QUANTIZED_RULES.rule("DK223", "judged-on-seen-samples", "info", "the calibration data")
def check_seen(quantized: Made) -> Finds:
    """There were too few calibration samples to hold any out.

    Numbers on the samples that the ranges were taken from look better than those on others.

    Fix: give at least five samples; makers of quantizers advise some hundreds
    """
    if quantized.numbers.seen:
        yield Found(
            "data",
            quantized.model.path.name,
            "too few samples to hold any out: it was judged on those that it was calibrated on",
        )


@QUANTIZED_RULES.rule("DK224", "layers-in-int16", "warning", "the simulation, on the calibration data")
def check_widened(quantized: Made) -> Finds:
    """Eight bits of activations lose what is asked, and 16 in the fewest layers keep it.

    These layers are slower than with 8 bits; all others are as they were asked for.

    Fix: package with --no-rewrite layers-in-int16 for 8 bits everywhere, or with --precision w8a16 for 16
    """
    if quantized.widened:
        yield Found("model", quantized.model.path.name, quantized.widened)


def core_registries() -> tuple[Registry[Any], ...]:
    """Every registry of the core, from the lowest room up; backends give theirs by ``registries()``."""
    from deploykit.accuracy.judge import rules as comparison_rules
    from deploykit.accuracy.samples import data_rules
    from deploykit.encodings import rules as encoding_rules
    from deploykit.model import rules as graph_rules

    samples = (data_rules.GUIDELINE_RULES, data_rules.FIT_RULES)
    return (graph_rules.RULES, encoding_rules.RULES, *samples, comparison_rules.RULES, RULES, QUANTIZED_RULES)
