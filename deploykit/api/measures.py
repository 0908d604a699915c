"""The part of the Python API that says where precision goes: sensitivity, and conclusions from accuracies.

It turns arguments into a call of the stage that does it; heavy modules are loaded on the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from deploykit.deciding.mixing_layers import Mixed
    from deploykit.deciding.simulated_ladder import SimulatedLadder
    from deploykit.numerics.sensitivity import Sensitivity
    from deploykit.quantization.lpbq_files import LpbqReport
    from deploykit.queries.precision_advice import Advice

__all__ = ["advise", "ladder", "lpbq", "mix", "sensitivity"]

AnyPath: TypeAlias = str | PathLike[str]
Progress: TypeAlias = Callable[[str], None]


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
    memory_mib: int = 2048,
    resume: bool = True,
    progress: Progress | None = None,
) -> Sensitivity:
    """What the model loses when only one layer or tensor is quantized, and when only that one stays float.

    Without encodings they are made from the range of each tensor on the data, at a ``precision``. Measuring ends after
    so many ``seconds``; what is kept of the samples takes at most ``memory_mib``. With ``resume`` the measurements of
    an earlier call are taken over.
    """
    from deploykit.numerics.sensitivity_analysis import Budget, analyze_files

    return analyze_files(
        Path(model),
        encodings=_path(encodings),
        precision=precision,
        float_tensors=_path(float_tensors),
        data=_path(data),
        samples=samples,
        seed=seed,
        budget=Budget(seconds=seconds, bytes=memory_mib << 20),
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
    such a table as TOML or JSON. The ``goal`` is a drop of at most 1 % unless said otherwise. ``ladder`` measures them.
    """
    from deploykit.queries.accuracy_table import advise_on

    return advise_on(_path(file), dict(accuracies or {}), goal=goal, lower_is_better=lower_is_better)


def ladder(
    model: AnyPath,
    *,
    goal: str = "sqnr>=30",
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
    integers are raised to. ``metric`` and ``metric_command`` are the user's own measure (docs/metrics.md).
    """
    from deploykit.deciding.simulated_ladder import simulated_ladder
    from deploykit.numerics.goals import parse_goal
    from deploykit.numerics.metrics import user_metric

    return simulated_ladder(
        Path(model),
        goal=parse_goal(goal, lower_is_better=lower_is_better),
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
    own measure (docs/metrics.md); with ``front`` quality against cost is measured as well.
    """
    from deploykit.deciding.mixing_layers import mix_files
    from deploykit.numerics.goals import parse_goal
    from deploykit.numerics.metrics import user_metric

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
    """Turn block-quantized int4 weights into LPBQ; the report holds the loss per weight."""
    from deploykit.quantization.lpbq_files import convert_file

    return convert_file(Path(model), Path(out), refined=refine, force=force)


def _path(given: AnyPath | None) -> Path | None:
    return None if given is None else Path(given)
