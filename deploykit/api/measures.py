"""The part of the Python API that measures: what quantization costs, where, and what follows from it.

It turns arguments into a call of the stage that does it; heavy modules are loaded on the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from deploykit.system.limits import limited_time
from deploykit.system.memory import memory_budget, with_memory

if TYPE_CHECKING:
    from deploykit.accuracy.judge.evaluation import Evaluation
    from deploykit.accuracy.search.locating import Located
    from deploykit.accuracy.search.sensitivity import Sensitivity
    from deploykit.accuracy.simulate.simulation import Simulation
    from deploykit.answers.precision_advice import Advice
    from deploykit.encodings.lpbq_files import LpbqReport
    from deploykit.encodings.split_files import PartReport
    from deploykit.flow.mixing_layers import Mixed
    from deploykit.flow.simulated_ladder import SimulatedLadder

__all__ = ["advise", "evaluate", "ladder", "locate", "lpbq", "mix", "sensitivity", "simulate", "split"]

AnyPath: TypeAlias = str | PathLike[str]
Progress: TypeAlias = Callable[[str], None]


def evaluate(
    baseline: AnyPath,
    candidate: AnyPath,
    *,
    data: AnyPath | None = None,
    model: AnyPath | None = None,
    target: str = "TARGET",
    min_cosine: float | None = None,
    min_psnr: float | None = None,
    min_sqnr: float | None = None,
    max_error: float | None = None,
    max_box_error: float | None = None,
    min_agreement: float | None = None,
) -> Evaluation:
    """How close two sets of outputs are, or two models on ``data``.

    ``model`` is the float model, which dead channels are traced back to and which says what the outputs are; ``target``
    completes the command that is then proposed. The thresholds are in dB but for the cosine, the errors (those of boxes
    in pixels) and the agreement. Raises InputError for files that cannot be read or compared.
    """
    from deploykit.accuracy.judge.evaluation import evaluate as judge
    from deploykit.accuracy.judge.rules import Thresholds

    asked = Thresholds(
        min_cosine=min_cosine,
        min_psnr=min_psnr,
        min_sqnr=min_sqnr,
        max_error=max_error,
        max_box_error=max_box_error,
        min_agreement=min_agreement,
    )
    return judge(Path(baseline), Path(candidate), data=_path(data), model=_path(model), target=target, thresholds=asked)


def simulate(
    model: AnyPath,
    encodings: AnyPath,
    *,
    data: AnyPath | None = None,
    samples: int | None = None,
    seed: int = 0,
    float_tensors: AnyPath | None = None,
    min_sqnr: float | None = None,
    max_box_error: float | None = None,
    min_cosine: float | None = None,
    min_agreement: float | None = None,
    memory: str | None = None,
) -> Simulation:
    """Quantized inference as the encodings define it, against float, on ``data`` or on inputs that are made.

    The thresholds replace the limits of the verdict: dB, pixels, ratios. A model whose weights would take more than
    ``memory`` (``"3G"``) is run part by part, with the same numbers. Raises InputError for files that cannot be read.
    """
    from deploykit.accuracy.judge.thresholds import Thresholds
    from deploykit.accuracy.simulate.simulation import simulate_files
    from deploykit.model.files.validity import blaming

    with with_memory(memory), blaming(Path(model)):
        return simulate_files(
            Path(model),
            Path(encodings),
            data=_path(data),
            samples=samples,
            seed=seed,
            float_tensors=_path(float_tensors),
            thresholds=Thresholds(
                min_sqnr=min_sqnr, max_box_error=max_box_error, min_cosine=min_cosine, min_agreement=min_agreement
            ),
        )


def locate(
    model: AnyPath,
    candidate: AnyPath | None = None,
    *,
    encodings: AnyPath | None = None,
    data: AnyPath | None = None,
    samples: int | None = None,
    seed: int = 0,
    threshold_db: float = 20.0,
    time_limit: float | None = None,
    memory: str | None = None,
) -> Located:
    """The first operator at which a model and another, or its own simulation (``encodings``), diverge.

    After ``time_limit`` seconds the nearest operator known by then is named, and ``exhausted`` says so. They diverge
    below ``threshold_db`` of signal to noise. Raises InputError for files that cannot be read.
    """
    from deploykit.accuracy.search.probes import locate_files
    from deploykit.model.files.validity import blaming

    with limited_time(time_limit), with_memory(memory), blaming(Path(model)):
        return locate_files(
            Path(model),
            _path(candidate),
            encodings=_path(encodings),
            data=_path(data),
            samples=samples,
            seed=seed,
            threshold_db=threshold_db,
        )


def sensitivity(
    model: AnyPath,
    *,
    encodings: AnyPath | None = None,
    precision: str | None = None,
    float_tensors: AnyPath | None = None,
    data: AnyPath | None = None,
    samples: int | None = None,
    seed: int = 0,
    seconds: float | None = None,
    memory: str | None = None,
    resume: bool = True,
    progress: Progress | None = None,
) -> Sensitivity:
    """What the model loses when only one layer or tensor is quantized, and when only that one stays float.

    Without encodings they are made from the range of each tensor on the data, at a ``precision``. Measuring ends after
    so many ``seconds``; what is kept of the samples takes at most a quarter of ``memory``. With ``resume`` the
    measurements of an earlier call are taken over. Losses are signal to noise in dB. Raises InputError for files that
    cannot be read.
    """
    from deploykit.accuracy.search.sensitivity_analysis import Budget, analyze_files
    from deploykit.model.files.validity import blaming

    with with_memory(memory), blaming(Path(model)):
        return analyze_files(
            Path(model),
            encodings=_path(encodings),
            precision=precision,
            float_tensors=_path(float_tensors),
            data=_path(data),
            samples=samples,
            seed=seed,
            budget=Budget(seconds=seconds, bytes=memory_budget() // 4),
            resume=resume,
            tell=progress or (lambda _: None),
        )


def advise(
    file: AnyPath | None = None,
    *,
    accuracies: Mapping[str, float] | None = None,
    goal: str | None = None,
    lower_is_better: bool = False,
) -> Advice:
    """What accuracies at several precisions say about a model, and the next step.

    ``accuracies`` are values by precision (fp32, fp16, w16a16, w8a16, w8a8, w4a16 …), of any measure; ``file`` holds
    such a table as TOML or JSON. The ``goal`` is a drop of at most 1 % unless said otherwise; ``lower_is_better`` for
    an error instead of an accuracy. ``ladder`` measures them. Raises InputError, UsageError for a goal that is none.
    """
    from deploykit.answers.accuracy_table import advise_on

    return advise_on(_path(file), dict(accuracies or {}), goal=goal, lower_is_better=lower_is_better)


def ladder(
    model: AnyPath,
    *,
    goal: str | None = None,
    data: AnyPath | None = None,
    samples: int | None = None,
    target: str | None = None,
    sdk: str | None = None,
    metric: str | None = None,
    metric_command: str | None = None,
    references: AnyPath | None = None,
    lower_is_better: bool = False,
    progress: Progress | None = None,
) -> SimulatedLadder:
    """Measure fp16, w16a16, w8a16, w4a16 and w8a8 of a float model on the simulation, conclude, take the next step.

    Ranges come from one half of the samples, numbers from the other. With a ``target`` only types that it mixes with
    integers are raised to. ``metric`` and ``metric_command`` are the user's own measure (docs/metrics.md). Without a
    ``goal`` of a measure 1 % may be lost, else outputs must be right (docs/quantize.md). ``data`` are samples of the
    field: an ``.npz``, ``.npy`` or a folder. Raises InputError for files that cannot be read or do not fit.
    """
    from deploykit.accuracy.judge.metrics import user_metric
    from deploykit.flow.simulated_ladder import simulated_ladder
    from deploykit.model.files.validity import blaming

    with blaming(Path(model)):
        return simulated_ladder(
            Path(model),
            goal=goal,
            lower_is_better=lower_is_better,
            data=_path(data),
            samples=samples,
            target=target,
            sdk=sdk,
            metric=user_metric(metric, metric_command, references=_path(references)),
            tell=progress or (lambda _: None),
        )


def mix(
    model: AnyPath,
    *,
    goal: str,
    encodings: AnyPath | None = None,
    precision: str | None = None,
    float_tensors: AnyPath | None = None,
    data: AnyPath | None = None,
    samples: int | None = None,
    to: str | None = None,
    target: str | None = None,
    sdk: str | None = None,
    metric: str | None = None,
    metric_command: str | None = None,
    references: AnyPath | None = None,
    lower_is_better: bool = False,
    front: bool = False,
    progress: Progress | None = None,
) -> Mixed:
    """The fewest of the most sensitive layers in ``to`` (float16 or int16) that reach the goal, as new encodings.

    With a ``target`` only types that it mixes with integers are taken. ``metric`` and ``metric_command`` are the user's
    own measure (docs/metrics.md); with ``front`` quality against cost is measured as well. Raises InputError for files
    that cannot be read, UsageError for a goal that is none.
    """
    from deploykit.accuracy.judge.metrics import user_metric
    from deploykit.accuracy.search.goals import parse_goal
    from deploykit.flow.mixing_layers import mix_files
    from deploykit.model.files.validity import blaming

    with blaming(Path(model)):
        return mix_files(
            Path(model),
            goal=parse_goal(goal, lower_is_better=lower_is_better),
            to=to,
            target=target,
            sdk=sdk,
            metric=user_metric(metric, metric_command, references=_path(references)),
            front=front,
            tell=progress or (lambda _: None),
            encodings=_path(encodings),
            precision=precision,
            float_tensors=_path(float_tensors),
            data=_path(data),
            samples=samples,
        )


def lpbq(model: AnyPath, out: AnyPath, *, refine: bool = False, force: bool = False) -> LpbqReport:
    """Turn block-quantized int4 weights into LPBQ; the report holds the loss per weight.

    Raises InputError for a model that cannot be read, PackageError where ``out`` stands and ``force`` is not given.
    """
    from deploykit.encodings.lpbq_files import convert_file
    from deploykit.model.files.validity import blaming

    with blaming(Path(model)):
        return convert_file(Path(model), Path(out), refined=refine, force=force)


def split(
    models: Iterable[AnyPath], out: AnyPath, *, parts: int, encodings: AnyPath | None = None
) -> tuple[PartReport, ...]:
    """Cut models over the same weights into ``parts`` each, all alike, and write them into a new folder.

    Raises InputError for models that cannot be read or are not over the same weights.
    """
    from deploykit.encodings.split_files import split_files
    from deploykit.model.files.validity import blaming

    paths = [Path(model) for model in models]
    with blaming(*paths):
        return split_files(paths, Path(out), parts=parts, encodings=_path(encodings))


def _path(given: AnyPath | None) -> Path | None:
    return None if given is None else Path(given)
