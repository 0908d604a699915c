"""The part of the Python API that runs kernels by themselves; it turns arguments into a request and adds nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from os import PathLike
from typing import TYPE_CHECKING, Literal, TypeAlias

from deploykit.backend.options import ConfigKeys, OptionGiven
from deploykit.backend.requests import make_request

if TYPE_CHECKING:
    from deploykit.backend.audits import Audit

__all__ = ["audit"]

AnyPath: TypeAlias = str | PathLike[str]
Level: TypeAlias = Literal["quick", "auto", "full"]


def audit(
    model: AnyPath,
    *,
    target: str,
    audit: Level = "full",
    backend: str | None = None,
    sdk: str | None = None,
    encodings: AnyPath | None = None,
    float_tensors: AnyPath | None = None,
    precision: str | None = None,
    calibration: AnyPath | None = None,
    quantizer: str | None = None,
    goal: str | None = None,
    metric: str | None = None,
    metric_command: str | None = None,
    references: AnyPath | None = None,
    inputs: str | Iterable[str] = (),
    mixed: Literal["auto", "fallback", "segments", "refuse"] = "auto",
    rewrite: str | Iterable[str] = (),
    no_rewrite: str | Iterable[str] = (),
    compile: bool | None = None,  # noqa: A002 (the published name)
    second_opinion: bool = True,
    samples: bool = True,
    options: ConfigKeys = (),
    progress: Callable[[str], None] | None = None,
    **backend_options: OptionGiven,
) -> Audit:
    """Each distinct kernel of the model as ``package`` would compile it, run over its whole grid and judged.

    ``audit`` is ``quick`` for those under suspicion alone, ``auto`` for as many as are soon done. Deviations are in
    steps of the output's grid. Raises UsageError for a backend that runs none by itself, DeploykitError for what makes
    no sense.
    """
    from deploykit.flow.auditing import audit as run

    request = make_request(
        model,
        target,
        own=backend_options,
        backend=backend,
        sdk=sdk,
        encodings=encodings,
        float_tensors=float_tensors,
        precision=precision,
        calibration=calibration,
        quantizer=quantizer,
        goal=goal,
        metric=metric,
        metric_command=metric_command,
        references=references,
        inputs=inputs,
        mixed=mixed,
        rewrite=rewrite,
        no_rewrite=no_rewrite,
        compile=compile,
        second_opinion=second_opinion,
        samples=samples,
        options=options,
    )
    return run(request, level=audit, progress=progress)
