"""deploykit: packages ONNX models for NPUs, right for one device and one exact SDK version, or a precise no."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deploykit.api import (
        build,
        check,
        compat,
        diagnose,
        doctor,
        evaluate,
        locate,
        lpbq,
        package,
        plan,
        simulate,
        targets,
        verify,
    )

__all__ = [
    "build",
    "check",
    "compat",
    "diagnose",
    "doctor",
    "evaluate",
    "locate",
    "lpbq",
    "package",
    "plan",
    "simulate",
    "targets",
    "verify",
]


class _Package(ModuleType):
    """Loads the functions of the API on first use, so that queries start fast.

    Some of them share their name with a submodule (``deploykit.package`` is the function, ``deploykit/package.py`` the
    module). Importing a submodule binds its name on the package; for these names that binding is not taken.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'deploykit' has no attribute {name!r}")
        from deploykit import api

        function = getattr(api, name)
        super().__setattr__(name, function)
        return function


sys.modules[__name__].__class__ = _Package
