"""Compares two sets of outputs: folders, files or models run on data; every output, and every slice of every axis.

Each sample is read when it is asked for and not kept. ``evaluate`` asks the rules and the judge what it means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct

from deploykit.accuracy.judge.judge import judge_outputs
from deploykit.accuracy.judge.measures import PairQuality, Slices, measure, runs_of
from deploykit.accuracy.judge.rules import RULES, Judged
from deploykit.accuracy.judge.verdict import Context, Thresholds, Verdict
from deploykit.accuracy.samples.arrays import ARRAY_SUFFIXES, read_arrays
from deploykit.accuracy.samples.inputs import input_specs
from deploykit.accuracy.simulate.sessions import Session
from deploykit.errors import InputError, UsageError
from deploykit.findings import Findings, exit_status
from deploykit.findings.records import Arrays, Doubles, Json, Names, Numbers, Pairs, Record, Shape, plain, published
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from deploykit.model.weights import lean_weights
from deploykit.system.files import regular_size

__all__ = ["ComparedOutputs", "Evaluation", "OutputComparison", "OutputSet"]
__all__ += ["compare", "evaluate", "read_outputs"]


class OutputSet(Record, kw_only=False):
    """Samples by name, each read on demand; the only output of a .npy file is called ``""``."""

    label: str
    samples: Mapping[str, Callable[[], Arrays]]


def read_outputs(path: Path) -> OutputSet:
    """A folder (one sample per file, named by its stem) or one file as a set of samples."""
    if path.is_dir():
        usable = dict[str, Path]()
        for file in sorted(path.iterdir()):
            if file.suffix.lower() not in ARRAY_SUFFIXES or file.name.startswith(".") or not file.is_file():
                continue
            if usable.setdefault(file.stem, file) is not file:
                names = f"{usable[file.stem].name} and {file.name}"
                raise InputError(f"{path}: {names} have the same stem", next="keep one of them")
        if not usable:
            raise InputError(f"{path}: holds no .npy and no .npz file", next="give the folder with the saved outputs")
        return OutputSet(str(path), {stem: partial(read_arrays, file) for stem, file in usable.items()})
    regular_size(path)
    if path.suffix.lower() not in ARRAY_SUFFIXES:
        raise InputError(f"{path}: neither a folder nor a .npy, .npz or .onnx file")
    return OutputSet(str(path), {"": partial(read_arrays, path)})


def _run_on(path: Path, inputs: OutputSet) -> OutputSet:
    """The outputs of a model with ONNX Runtime on the CPU, sample by sample. A lone array feeds the only input.

    Floats get the width that the input has; other types are the user's care.
    """
    loaded = load_model(path)
    specs = {spec.name: spec for spec in input_specs(collect_facts(loaded))}
    session = Session(lean_weights(loaded), optimize=True)

    def run(read: Callable[[], Arrays]) -> Arrays:
        feed = _named(tuple(specs), read())
        missing = sorted(specs.keys() - feed.keys())
        if missing:
            raise InputError(
                f"{path}: the data has no array for the input {missing[0]!r}",
                why=f"it has {', '.join(sorted(map(repr, feed)))}",
                next="save one .npz per sample with an array for each input",
            )
        floats = {name for name, spec in specs.items() if spec.is_float and feed[name].dtype.kind == "f"}
        return session.run({n: v.astype(specs[n].numpy_type) if n in floats else v for n, v in feed.items()})

    return OutputSet(str(path), {name: partial(run, read) for name, read in inputs.samples.items()})


def _read_pair(baseline: Path, candidate: Path, data: Path | None) -> tuple[OutputSet, OutputSet]:
    """Both sides of a comparison: two folders or files, or two models with ``data``."""
    models = [path.suffix == ".onnx" for path in (baseline, candidate)]
    if all(models):
        if data is None:
            raise UsageError("two models need data to run on", next="give --data FOLDER or FILE.npz")
        inputs = read_outputs(data)
        return _run_on(baseline, inputs), _run_on(candidate, inputs)
    if any(models) or data is not None:
        raise UsageError(
            "a model is compared with a model, a folder with a folder",
            next="save the model's outputs first, or give two models and --data",
        )
    return read_outputs(baseline), read_outputs(candidate)


class OutputComparison(Struct, kw_only=True):
    """One output over all samples: the quality of each sample, and the slices of each axis longer than 1.

    ``axes`` is empty when the shape differs between samples. ``finite`` is False when only the candidate has values
    that are not finite. ``levels`` are the numbers of distinct values of both sides in the first sample.
    """

    name: str
    shape: Shape
    qualities: dict[str, PairQuality] = {}
    axes: list[Slices] = []
    finite: bool = True
    levels: tuple[int, int] = (0, 0)

    def summary(self) -> dict[str, float]:
        """Mean and worst of each number over the samples; a nan in one sample is kept, as the vendor's tool does."""
        result = dict[str, float]()
        for name in PairQuality.__struct_fields__:
            values = [getattr(quality, name) for quality in self.qualities.values()]
            side, worst = ("max", max) if name in ("l2", "max_error") else ("min", min)
            undefined = any(math.isnan(value) for value in values)
            result[f"mean_{name}"] = math.nan if undefined else _mean(values)
            result[f"{side}_{name}"] = math.nan if undefined else worst(values)
        return result

    def to_json(self, *, slices: bool = False) -> Json:
        """The numbers as JSON values: None for undefined or unbounded ones."""
        axes = [*map(_every_slice if slices else _worst_slice, self.axes)]
        told = {"name": self.name, "shape": self.shape, **self.summary(), "axes": axes, "samples": self.qualities}
        return dict(plain(told))


def _every_slice(axis: Slices) -> Json:
    rows = enumerate(zip(axis.sqnr_db.tolist(), axis.worst.tolist(), axis.dead.tolist(), strict=True))
    told = [{"index": i, "sqnr_db": db, "max_error": worst, "dead": dead} for i, (db, worst, dead) in rows]
    return {"axis": axis.axis, "slices": told}


def _worst_slice(axis: Slices) -> Json:
    values = axis.sqnr_db
    index = int(np.argmin(np.where(np.isnan(values), np.inf, values)))
    worst = {"worst_index": index, "worst_sqnr_db": float(values[index])}
    return {"axis": axis.axis, "count": len(values), **worst, "dead": list(runs_of(axis.dead))}


def _mean(values: Sequence[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except ValueError:  # some are infinite to one side, some to the other
        return math.nan


class ComparedOutputs(Record):
    """Everything that was measured. ``missing`` samples are in the baseline only, ``extra`` in the candidate only.

    ``mismatches`` are samples and outputs that could not be compared, and why.
    """

    baseline: str
    candidate: str
    outputs: Mapping[str, OutputComparison]
    missing: Names
    extra: Names
    mismatches: Pairs

    @property
    def samples(self) -> int:
        """How many samples were compared."""
        return len({name for output in self.outputs.values() for name in output.qualities})

    def to_json(self, *, slices: bool = False) -> Json:
        """The published shape, without the findings."""
        outputs = [output.to_json(slices=slices) for output in self.outputs.values()]
        return {**plain(published(self, without=("mismatches", "outputs"), also=("samples",))), "outputs": outputs}


def compare(baseline: OutputSet, candidate: OutputSet) -> ComparedOutputs:
    """The comparison of every sample that both sides have, in the order of the names."""
    outputs = dict[str, OutputComparison]()
    mismatches = list[tuple[str, str]]()
    for name in sorted(baseline.samples.keys() & candidate.samples.keys()):
        mismatches += _add_sample(outputs, name, baseline.samples[name](), candidate.samples[name]())
    return ComparedOutputs(
        baseline=baseline.label,
        candidate=candidate.label,
        outputs=outputs,
        missing=tuple(sorted(baseline.samples.keys() - candidate.samples.keys())),
        extra=tuple(sorted(candidate.samples.keys() - baseline.samples.keys())),
        mismatches=tuple(mismatches),
    )


def _add_sample(
    outputs: dict[str, OutputComparison], sample: str, baseline: Arrays, candidate: Arrays
) -> Iterable[tuple[str, str]]:
    if len(baseline) == len(candidate) == 1 and "" in (*baseline, *candidate):  # a .npy file names no output
        name = max(*baseline, *candidate)
        baseline, candidate = {name: next(iter(baseline.values()))}, {name: next(iter(candidate.values()))}
    for name in sorted(baseline.keys() ^ candidate.keys()):
        side = "baseline" if name in baseline else "candidate"
        yield f"{sample}: {name}", f"only the {side} has this output"
    for name in (name for name in baseline if name in candidate):
        value, other = baseline[name], candidate[name]
        if value.shape != other.shape:
            yield f"{sample}: {name}", f"shapes differ: {value.shape} and {other.shape}"
        elif not value.size:
            yield f"{sample}: {name}", "the output is empty"
        else:
            a, b = _doubles(name, value), _doubles(name, other)
            known = name in outputs
            output = outputs.setdefault(name, OutputComparison(name=name, shape=a.shape))
            output.finite &= bool(np.isfinite(b).all() or not np.isfinite(a).all())
            with np.errstate(invalid="ignore", over="ignore"):
                output.qualities[sample] = measure(a, b)
                if not known:
                    output.levels = (len(np.unique(a)), len(np.unique(b)))
                    output.axes = [Slices(i, n) for i, n in enumerate(a.shape) if n > 1 and a.ndim > 1]
                elif a.shape != output.shape:
                    output.axes = []
                for axis in output.axes:
                    axis.add(a, b)


def _doubles(name: str, values: Numbers) -> Doubles:
    try:
        return values.astype(np.float64, casting="same_kind")
    except TypeError:
        why = f"it holds values of the type {values.dtype}"
        raise InputError(f"output {name!r}: cannot be compared", why=why, next="save plain numbers") from None


class Evaluation(Record):
    """A comparison, what it means, and the judge's verdict (None without the float model or common samples)."""

    comparison: ComparedOutputs
    findings: Findings
    verdict: Verdict | None

    @property
    def exit_status(self) -> int:
        """1 when an output is dead, a sample is missing or a threshold is missed."""
        return exit_status(self.findings)

    def to_json(self, *, slices: bool = False) -> Json:
        """The published shape; ``slices`` adds every slice of every axis."""
        return dict(self.comparison.to_json(slices=slices) | plain(published(self, without=("comparison",))))


def evaluate(
    baseline: Path,
    candidate: Path,
    *,
    data: Path | None = None,
    model: Path | None = None,
    target: str = "TARGET",
    thresholds: Thresholds | None = None,
) -> Evaluation:
    """How close ``candidate`` is to ``baseline``: two folders or files of outputs, or two models run on ``data``.

    ``model`` is the float model (default: ``baseline`` where that is a model); ``target`` only completes the command
    that is proposed for a dead output. Raises InputError and UsageError for what cannot be read or compared.
    """
    sides = _read_pair(baseline, candidate, data)
    comparison = compare(*sides)
    known = baseline if model is None and baseline.suffix == ".onnx" else model
    facts = None if known is None else collect_facts(load_model(known))
    verdict = None
    if facts is not None and comparison.samples and not comparison.mismatches:
        # Saved outputs count as given: they were made on data that somebody chose.
        shared = sorted(sides[0].samples.keys() & sides[1].samples.keys())
        one, two = ([_named(facts.outputs, side.samples[name]()) for name in shared] for side in sides)
        inputs = {} if data is None else read_outputs(data).samples
        feeds = [_named(facts.inputs, inputs[name]()) for name in shared if inputs]
        verdict = judge_outputs(facts, Context("given", thresholds=thresholds), one, two, feeds)
    judged = Judged(
        comparison=comparison,
        facts=facts,
        model=str(known or "MODEL"),
        target=target,
        thresholds=thresholds or Thresholds(),
        verdict=verdict,
    )
    return Evaluation(comparison=comparison, findings=RULES.run(judged), verdict=verdict)


def _named(names: Sequence[str], arrays: Arrays) -> Arrays:
    """The arrays by the model's names: a lone array is its only input or output, whatever the file calls it."""
    return dict(zip(names, arrays.values(), strict=True)) if len(names) == len(arrays) == 1 else arrays
