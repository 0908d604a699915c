"""Packages ONNX models for NPUs, correct for one device and one exact SDK version, or explains why it cannot."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deploykit.api import (
        advise,
        audit,
        build,
        check,
        compat,
        diagnose,
        doctor,
        evaluate,
        explain,
        init,
        ladder,
        locate,
        locate_on,
        lpbq,
        matrix,
        mix,
        package,
        plan,
        quantize,
        run,
        sensitivity,
        simulate,
        split,
        targets,
        verify,
    )

__all__ = [
    "advise",
    "audit",
    "build",
    "check",
    "compat",
    "diagnose",
    "doctor",
    "evaluate",
    "explain",
    "init",
    "ladder",
    "locate",
    "locate_on",
    "lpbq",
    "matrix",
    "mix",
    "package",
    "plan",
    "quantize",
    "run",
    "sensitivity",
    "simulate",
    "split",
    "targets",
    "verify",
]


if not TYPE_CHECKING:  # a type checker that saw it would accept any attribute of this package

    def __getattr__(name: str) -> Any:
        """Load the functions of the API on first use, so that queries start fast."""
        if name not in __all__:
            raise AttributeError(f"module 'deploykit' has no attribute {name!r}")
        from deploykit import api

        return globals().setdefault(name, getattr(api, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
