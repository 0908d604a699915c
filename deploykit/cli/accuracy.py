"""``deploykit accuracy``: what quantization costs, by deploykit's own simulation or by given outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploykit import api
from deploykit.accuracy.judge.verdict import ASKED
from deploykit.accuracy.latency import in_time
from deploykit.cli.frame import Group
from deploykit.cli.options import F, argument, flag, option, options, path
from deploykit.cli.terminal import decibels, emit, findings_text, progress, table
from deploykit.errors import UsageError
from deploykit.system.files import write_files

if TYPE_CHECKING:
    from deploykit.accuracy.judge.compare import Evaluation
    from deploykit.accuracy.search.goals import Reached
    from deploykit.accuracy.search.layer_losses import Sensitivity
    from deploykit.accuracy.search.locate import Located
    from deploykit.accuracy.search.output_losses import OutputLoss
    from deploykit.accuracy.simulate.simulation import Simulation
    from deploykit.answers.precision_advice import Advised
    from deploykit.flow.candidates import SimulatedLadder

__all__ = ["command"]


_TABLES = (".toml", ".json")


@click.group("accuracy", cls=Group)
def command() -> None:
    """What quantization costs: simulate it, compare outputs, measure layers, find differences, choose a precision."""


_data = path("--data", "FILE|DIR", "Inputs: .npz, .npy or a folder of them.")
_seed = option("--seed", None, "Seed of made-up inputs.", type=int, default=0, show_default=True)
_encodings = path("--encodings", "FILE", "AIMET encodings, or a QDQ model.")
_floats = path("--float-tensors", "FILE", "Names of tensors meant to be float16 (2.0.0 cannot say).")
_precision = option("--precision", "NAME", "Without encodings: make them from the data, for instance w8a8.")


def _samples(words: str) -> Callable[[F], F]:
    return option("--samples", "N", f"At most that many{words}.", type=click.IntRange(min=1))


@command.command("simulate", short_help="What the quantized model gives, as AIMET simulates it.")
@argument("model")
@path("--encodings", "FILE", "AIMET encodings 0.6.1, 1.0.0 or 2.0.0.", required=True)
@options(_floats, _data, _samples(", spread over the data"), _seed)
@option("--min-sqnr", "DB", "Fail when any output is below.", type=float)
@option("--max-box-error", "PX", "Fail when boxes are farther off on average.", type=float)
@option("--min-cosine", "RATIO", "Fail when an embedding is below.", type=float)
@option("--min-agreement", "SHARE", "Fail when fewer labels agree.", type=float)
def simulate(model: Path, encodings: Path, min_sqnr: float | None, **asked: Any) -> int:
    """Run MODEL with the quantizers that the encodings describe, bit for bit as AIMET simulates them.

    Int32 biases are not simulated; AIMET does not simulate them either. Without --data, inputs are made from their
    encodings and from what the graph says of them, else at random: then the numbers are no measure of accuracy. Exit
    status 1 when a limit that you gave is missed.
    """
    with progress() as tell:
        tell("simulating")
        result = api.simulate(model, encodings, min_sqnr=min_sqnr, **asked)
    made = {} if result.samples is None else {"data": str(result.samples.label), "inputs": result.samples.to_json()}
    emit({**result.to_json(), **made}, lambda: _simulation_text(result))
    low = min_sqnr is not None and any(item.sqnr_db < min_sqnr for item in result.fidelity)
    missed = [number for number in (result.verdict.failures if result.verdict else ()) if number.limit.reason == ASKED]
    return 1 if low or missed else 0


def _simulation_text(result: Simulation) -> str:
    rows = []
    for item in result.fidelity:
        ratio = f"{item.sqnr_db:.2f}" if math.isfinite(item.sqnr_db) else ("exact" if item.sqnr_db > 0 else "none")
        step = "-" if item.step is None else f"{item.step:.6g}"
        rows.append((item.name, ratio, f"{item.cosine:.6f}", f"{item.max_error:.6g}", step))
    on = f"{len(result.outputs)} samples" if result.samples is None else result.samples.described_for_humans
    lines = [table(rows, header=("output", "SQNR dB", "cosine", "largest error", "step"))]
    lines.append(f"{on}, {len(result.applied)} tensors quantized")
    lines += result.verdict.lines() if result.verdict is not None else []
    reasons = list(result.skipped.values())
    lines += [f"{reasons.count(reason)} entries not simulated: {reason}" for reason in sorted(set(reasons))]
    return "\n".join(lines)


@command.command("compare", short_help="How far apart two sets of outputs, or two models, are.")
@argument("positional", metavar="[BASELINE CANDIDATE]", nargs=-1)
@path("--baseline", None, "Outputs of the float model, or the model.", "--baseline_results_folder")
@path("--candidate", None, "Outputs to judge, or the model.", "--quantized_results_folder")
@path("--data", None, "Inputs for two models: a folder of .npz or .npy files, or one such file.")
@path("--model", None, "The float model: dead channels are traced to the Concat that mixes ranges.")
@option("--target", None, "The device, for the command that is proposed.", default="TARGET")
@flag("--slices", "Every slice of every axis.")
@option("--min-cosine", None, "Fail when the worst sample is under it.", type=float)
@option("--min-psnr", None, "Fail when the worst sample is under it, in dB.", type=float)
@option("--min-sqnr", None, "Fail when the worst sample is under it, in dB.", type=float)
@option("--max-error", None, "Fail when any element is farther off.", type=float)
@option("--max-box-error", "PX", "Instead of the table's limit for detections.", type=float)
@option("--min-agreement", "SHARE", "Instead of the table's limit for labels.", type=float)
def compare(
    positional: tuple[Path, ...], baseline: Path | None, candidate: Path | None, slices: bool, **asked: Any
) -> int:
    """Cosine, L2, PSNR, SSIM, SQNR and the largest error of every output, over two folders, two files or two models.

    Files are matched by name. --baseline and --candidate may stand in any order. With a model every output is judged by
    its kind as well. Exit status 1 when an output is dead or wrong, samples are missing, or a threshold is missed.
    """
    if len(positional) == 2 and baseline is None and candidate is None:
        baseline, candidate = positional
    elif positional or baseline is None or candidate is None:
        raise UsageError("give BASELINE CANDIDATE, or --baseline and --candidate")
    found = api.evaluate(baseline, candidate, **asked)
    emit(found.to_json(slices=slices), lambda: _evaluation_text(found, slices))
    return found.exit_status


def _evaluation_text(found: Evaluation, slices: bool) -> str:
    outputs, rows = found.comparison.outputs, []
    for output in outputs.values():
        s = output.summary()
        rows.append(
            (
                output.name or "output",
                "x".join(map(str, output.shape)) or "scalar",
                f"{s['mean_cosine']:.6f} / {s['min_cosine']:.6f}",
                f"{s['mean_l2']:.5g} / {s['max_l2']:.5g}",
                f"{s['mean_psnr_db']:.3f} / {s['min_psnr_db']:.3f}",
                f"{s['mean_ssim']:.6f} / {s['min_ssim']:.6f}",
                f"{s['mean_sqnr_db']:.2f} / {s['min_sqnr_db']:.2f}",
                f"{s['max_max_error']:.5g}",
            )
        )
    header = ("output", "shape", "cosine mean/min", "L2 mean/max", "PSNR mean/min", "SSIM mean/min", "SQNR mean/min")
    parts = [f"{found.comparison.samples} samples, {len(outputs)} outputs"]
    parts.append(table(rows, header=(*header, "max error")) if rows else "nothing could be compared")
    parts += ["\n".join(found.verdict.lines())] if found.verdict is not None else []
    if slices:
        every = [
            (output.name or "output", axis.axis, index, f"{sqnr:.2f}", f"{worst:.5g}", "dead" if dead else "")
            for output in outputs.values()
            for axis in output.axes
            for index, (sqnr, worst, dead) in enumerate(zip(axis.sqnr_db, axis.worst, axis.dead, strict=True))
        ]
        parts.append(table(every, header=("output", "axis", "slice", "SQNR dB", "max error", "")))
    parts += [findings_text(found.findings)] if found.findings else []
    return "\n\n".join(parts)


@command.command("layers", short_help="What each layer costs.")
@argument("model")
@options(_encodings, _precision, _floats, _data, _samples("; 8 by default"), _seed)
@option("--seconds", "S", "Stop measuring then; ask again to go on.", type=click.FloatRange(min=0))
@flag("--fresh", "Measure everything again, not only what an earlier run left open.")
@option("--top", None, "Rows of each table.", type=click.IntRange(min=1), default=20, show_default=True)
@path("--report", "FILE.html", "Write a page with charts as well.")
@flag("--force", "Replace the page.")
def layers(model: Path, top: int, report: Path | None, force: bool, fresh: bool, **asked: Any) -> int:
    """Measure what MODEL loses when only one layer or tensor is quantized, and when only that one stays float.

    On deploykit's own simulation, which equals AIMET's; only what lies behind a change is run again. The loss is the
    signal to noise of the output that suffers most. Encodings come from a file, from the model, or, with --precision,
    from the range of each tensor on the data. An analysis that was ended goes on where it was.
    """
    with progress() as tell:
        found = api.sensitivity(model, resume=not fresh, progress=tell, **asked)
    if report is not None:
        from deploykit.report.ladders import render_sensitivity

        write_files({report: render_sensitivity(found, model.name)}, force=force)
    emit(found, lambda: _layers_text(found, top))
    return 0


def _layers_text(found: Sensitivity, top: int) -> str:
    def loss(one: OutputLoss | None) -> str:
        return "-" if one is None else decibels(one.db)

    def gain(one: OutputLoss | None) -> str:
        difference = math.nan if one is None else one.db - found.whole.db
        return f"{difference:+.2f} dB" if math.isfinite(difference) else "-"

    layer_rows = [
        (
            *map(loss, (row.alone, row.weights, row.activations)),
            gain(row.without),
            f"{row.layer.name} ({row.layer.op_type})",
        )
        for row in found.worst_layers[:top]
    ]
    tensor_rows = []
    for row in found.worst_tensors[:top]:
        shape = row.statistics
        reach, share = (
            ("-", "-") if shape is None else (f"{shape.low:.4g} .. {shape.high:.4g}", f"{shape.outliers:.2%}")
        )
        losses = (loss(row.alone), gain(row.without), decibels(row.own_db))
        tensor_rows.append((*losses, reach, share, f"{row.kind} {row.dtype}", row.name))
    lines = [
        f"{found.precision}: {loss(found.whole)} with everything quantized, {loss(found.weights)} with only weights, "
        f"{loss(found.activations)} with only activations",
        f"on {found.samples.described_for_humans}, {found.used} measured on",
        "",
        table(layer_rows, header=("alone", "weights", "activations", "gain if float", "layer")),
        "",
        table(tensor_rows, header=("alone", "gain if float", "own grid", "range", "outliers", "kind", "tensor")),
    ]
    if str(found.samples.label) == "arbitrary":
        lines.append("the inputs are made up: this order is no evidence; give --data")
    if found.unmeasured:
        lines.append(f"the budget left {found.unmeasured} measurements open; the same command goes on with them")
    return "\n".join(lines)


@command.command("locate", short_help="The first operator at which two runs part.")
@argument("model")
@argument("candidate", required=False)
@path("--encodings", "FILE", "Compare with MODEL's own simulation instead.")
@options(_data, _samples("; random: 2 by default"), _seed)
@option("--threshold", "DB", "Below it a tensor is off.", "threshold_db", type=float, default=20.0, show_default=True)
@option(
    "--time-limit",
    "SECONDS",
    "Name the nearest operator known by then.",
    type=click.FloatRange(min=1),
    default=1800.0,
    show_default=True,
)
@option("--on", "WHERE", "MODEL is a package: as the device computes it (WHERE as for 'run').")
def locate(model: Path, candidate: Path | None, on: str | None, **asked: Any) -> int:
    """Run MODEL and CANDIDATE (or MODEL's simulation) and name the first operator whose output is off.

    First means that everything the operator reads still agrees. Tensors are matched by name; behind a TopK rows are
    put in the same order first. Exit status 1 when an output of the model is off.
    """
    with progress() as tell:
        tell("comparing")
        if on is None:
            found = api.locate(model, candidate, **asked)
        elif candidate is not None or asked["encodings"] is not None or asked["data"] is not None:
            raise UsageError("--on compares a package's own samples there with the CPU", next="give the package alone")
        else:
            few = {"samples": asked["samples"], "threshold_db": asked["threshold_db"]}
            found = api.locate_on(model, on=on, progress=tell, **few)
    emit(found, lambda: _located_text(found))
    return 0 if found.first is None else 1


def _located_text(found: Located) -> str:
    seen = f"{found.compared} tensors compared in {found.rounds} rounds, {len(found.hidden)} not comparable"
    seen += ", the budget ended before the search did" if found.exhausted else ""
    if found.first is None:
        views, head = found.outputs, f"no output is below {found.threshold_db:g} dB"
    else:
        views = (*found.first.inputs, found.first.output)
        head = f"first divergence: {found.first.op_type} {found.first.node}, output {found.first.output.name}"
        head += "" if found.first.culprit is None else f", from {found.first.culprit}"
    rows = []
    for view in views:
        ratio = f"{view.sqnr_db:.2f}" if math.isfinite(view.sqnr_db) else ("equal" if view.sqnr_db > 0 else "none")
        sides = (
            f"{lo:.5g} .. {hi:.5g}" if math.isfinite(lo) else "-" for lo, hi in (view.left_range, view.right_range)
        )
        reordered = f" (rows reordered, {view.lost:.0%} without partner)" if view.reordered else ""
        rows.append((ratio, *sides, f"{view.name}{reordered}"))
    return "\n".join([head, table(rows, header=("SQNR dB", "left range", "right range", "tensor")), seen])


@command.command("ladder", short_help="Which precision next; --raise: the fewest wider layers.")
@argument("model", metavar="MODEL|FILE", required=False)
@option("--goal", None, "right (the default), kept>=95%, sqnr>=30; with a metric drop<=1%, metric>=0.75.")
@options(_data, _samples("; 16 by default, 8 with --raise"))
@option("--target", "DEVICE", "Raise only to types that this device mixes with integers.")
@option("--sdk", "VERSION", "With --target: series (2.33) or build.")
@option("--metric", "MODULE:FUNCTION", "Your own measure (docs/quantize.md).")
@path("--references", "FILE|DIR", "For the measure, instead of the float outputs.")
@flag("--lower-is-better", "The measure is an error rate or a perplexity.")
@flag("--estimate", "With --target: compile each candidate here, for the time it takes.")
@path("--report", "FILE.html", "Write the result as one page.")
@flag("--force", "Replace files.")
@option("--accuracy", "NAME=VALUE", "Measured elsewhere: w8a16=75.9.", "accuracies", multiple=True)
@flag("--raise", "The fewest layers in a wider type that reach --goal (LiteMP).", "raising")
@options(_encodings, _precision, _floats)
@option("--to", None, "With --raise: the wider type.", type=click.Choice(["float16", "int16"]))
@path("-o", "FILE", "With --raise: write the new encodings (1.0.0).", "--out")
def ladder(
    model: Path | None,
    accuracies: tuple[str, ...],
    raising: bool,
    out: Path | None,
    **asked: Any,
) -> int:
    """Which precision next? Measure fp16, w16a16, w8a16, w4a16 and w8a8 of the float MODEL, and say what that means.

    Ranges come from one half of the data, numbers from the other. Where the conclusion is that some layers need more
    bits, the fewest that reach the goal are found. Exit status 1 when nothing reaches the goal, or the data was not
    prepared as in training.

    --raise does only that: it takes --encodings or --precision and raises layers to a wider type, the most sensitive
    first, until --goal is reached. --accuracy, or a FILE (TOML or JSON with a table "accuracy", and "goal" and
    "lower_is_better" beside it), gives numbers that were measured elsewhere; then nothing is run.

    \b
    deploykit accuracy ladder model.onnx --data frames
    deploykit accuracy ladder model.onnx --raise --precision w8a8 --goal 'sqnr>=30' --data frames -o mixed.encodings
    deploykit accuracy ladder --accuracy fp32=76.1 --accuracy w8a8=40 --accuracy w8a16=75.9
    """
    if accuracies or (model is not None and model.suffix.lower() in _TABLES):
        for name, value in ({"raise": raising, "out": out} | asked).items():
            if value and name not in ("goal", "lower_is_better"):
                told = f"--{name.replace('_', '-')} with numbers that were measured elsewhere: nothing is run"
                raise UsageError(told, next="leave it out")
        return _from_numbers(model, accuracies, goal=asked["goal"], lower_is_better=asked["lower_is_better"])
    if model is None:
        raise UsageError("which model?", next="name the float model, or what was measured: --accuracy w8a8=40")
    of_raise = {name: asked.pop(name) for name in ("encodings", "precision", "float_tensors", "to")}
    if raising:
        for name in ("estimate", "report"):
            if asked.pop(name):
                raise UsageError(f"--{name} with --raise: it is about candidates", next="leave out one of them")
        return _raise_layers(model, out, **of_raise, **asked)
    for name, value in (*of_raise.items(), ("out", out)):
        if value is not None:
            raise UsageError(f"--{name.replace('_', '-')} goes with --raise", next="add --raise, or leave it out")
    report, force = asked.pop("report"), asked.pop("force")
    with progress() as tell:
        found = api.ladder(model, progress=tell, **asked)
    made = found.samples.described_for_humans
    held_out = f", ranges of {found.seen} and numbers of the other {found.measured}"
    split = made + (held_out if found.held_out else ", ranges and numbers of the same")
    if report is not None:
        from deploykit.report.ladders import render_ladder

        page = render_ladder(found.ladder.to_json(), model.name, split, findings=found.findings)
        write_files({report: page}, force=force)
    emit(found, lambda: _ladder_text(found, split))
    return found.exit_status


def _ladder_text(found: SimulatedLadder, split: str) -> str:
    ladder, rows = found.ladder, []
    is_timed = any(rung.time_us is not None for rung in ladder.all_rungs)
    for rung in ladder.all_rungs:
        met, reached, count = ladder.meets(rung), rung.reached, rung.reached.counted
        kept = "-" if count is None else f"{count.share:.1%} of {sum(count.wanted)}, at least {count.surely:.1%}"
        name = rung.precision if rung.runs_here else f"{rung.precision} (to compare with; not chosen)"
        why = rung.missing or ("" if met is not None else ladder.goal.why_open(reached))
        words = "not measured" if met is None else "yes" if met else "no"
        time = () if not is_timed else ("-" if rung.time_us is None else in_time(rung.time_us),)
        rows.append(
            (decibels(reached.sqnr_db), _metric(reached), kept, words, *time, f"{name}: {why}" if why else name)
        )
    header = ("SQNR", "metric", "kept", str(ladder.goal), *(("estimate",) if is_timed else ()), "candidate")
    parts = [f"on {split}", table(rows, header=header)]
    parts += [findings_text(found.findings)] if found.findings else []
    parts += map(_conclusion, ladder.advice.conclusions if ladder.advice is not None else ())
    parts += [f"taken: {step.why}\n  {step.told}" for step in ladder.steps]
    parts.append(f"chosen: {'nothing' if ladder.chosen is None else ladder.chosen.precision}, {ladder.why}")
    if (fastest := ladder.fastest) is not None and fastest.time_us is not None:
        parts.append(f"fastest that reaches the goal: {fastest.precision}, about {in_time(fastest.time_us)}")
    if str(found.samples.label) == "arbitrary":
        parts.append("the inputs are made up: none of this is evidence; give --data")
    return "\n\n".join(parts)


def _metric(reached: Reached) -> str:
    return "-" if math.isnan(reached.metric) else f"{reached.metric:.6g}"


def _conclusion(item: Advised) -> str:
    lines = [click.style(item.says, bold=True), *(f"  because {line}" for line in item.because)]
    lines += [f"  next: {item.next}"] if item.next else []
    lines += [f"  {item.command}"] if item.command else []
    return "\n".join(lines)


def _raise_layers(model: Path, out: Path | None, *, force: bool, **asked: Any) -> int:
    if asked["goal"] is None or asked["data"] is None:
        raise UsageError("--raise needs --goal and --data", next="for instance --goal 'sqnr>=30' --data frames")
    with progress() as tell:
        found = api.mix(model, progress=tell, **asked)
    raised = found.raised
    if out is not None:
        write_files({out: found.text}, force=force)

    def text() -> str:
        rows = []
        for trial in raised.trials:
            quality = (
                decibels(trial.reached.sqnr_db),
                _metric(trial.reached),
                trial.borders,
                "yes" if trial.met else "no",
            )
            rows.append((trial.count, len(trial.tensors), *quality, "chosen" if trial is raised.best else ""))
        lines = [table(rows, header=("layers", "tensors", "SQNR", "metric", "borders", raised.goal, "")), ""]
        lines.append(f"raised to {raised.best.wide}: {', '.join(raised.best.layers) or 'nothing'}")
        if not raised.met:
            lines.append(f"no number of layers in {raised.best.wide} reaches {raised.goal}: this is the best")
        return "\n".join([*lines, *([] if out is None else [f"written to {out}"])])

    emit(found, text)
    return 0 if raised.met else 1


def _from_numbers(file: Path | None, accuracies: tuple[str, ...], **asked: Any) -> int:
    values = {}
    for text in accuracies:
        name, _, value = text.partition("=")
        try:
            values[name.strip().lower()] = float(value)
        except ValueError:
            next_ = "for instance --accuracy w8a16=75.9"
            raise UsageError(f"--accuracy {text}: NAME=VALUE is expected", next=next_) from None
    found = api.advise(file, accuracies=values, **asked)

    def told() -> str:
        rows = [
            (name, f"{value:.6g}", "reference" if name == found.reference else "yes" if found.met.get(name) else "no")
            for name, value in found.values.items()
        ]
        parts = [table(rows, header=("precision", "measured", found.goal)), *map(_conclusion, found.conclusions)]
        parts += [f"the cheapest that reaches the goal: {found.best}"] if found.best else []
        return "\n\n".join(parts)

    emit(found, told)
    return 0 if found.best else 1
