"""Says of a model that something stumbled over whether it is one at all: ONNX's own checker, and whether it runs.

It is asked after the fact only: readers differ in what they let pass, and most models are never looked at like this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploykit.errors import DeploykitError, InputError
from deploykit.model.files.loading import Model, load_model

__all__ = ["blaming", "what_is_wrong"]

_MOST_ELEMENTS = 1 << 24


@contextmanager
def blaming(*models: Path) -> Iterator[None]:
    """Within it, an exception that nobody foresaw is an InputError where one of the models is not valid or cannot run.

    With a model that is sound it goes on as it is: then it is a defect.
    """
    try:
        yield
    except (DeploykitError, MemoryError):
        raise
    except Exception as error:
        for path in models:
            wrong = what_is_wrong(path)
            if wrong:
                raise InputError(
                    f"{path}: not a model that can be used",
                    why=f"{wrong}; reading on ended with {type(error).__name__}: {error}",
                    next="export the model again; onnx.checker.check_model says more",
                ) from error
        raise


def what_is_wrong(path: Path) -> str:
    """Which rule of ONNX a model file breaks, or why ONNX Runtime does not run it; "" for a model without fault.

    A file that deploykit does not read either is not judged: "".
    """
    import onnx

    try:
        model = load_model(path)
    except DeploykitError:
        return ""  # it would have been said when it was read: whatever stumbled had not come to the model yet
    try:
        onnx.checker.check_model(str(path))
        _run(model)
    except Exception as error:  # whatever the checker's or the runtime's binding raises is the answer
        return str(error).strip().partition("\n")[0][:300] or type(error).__name__
    return ""


def _run(model: Model) -> None:
    import onnxruntime as ort

    from deploykit.model.running import CpuSession

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = CpuSession(str(model.path), options, size=sum(path.stat().st_size for path in _files(model)))
    session.run(None, {item.name: _value(item) for item in session.inputs()})


def _files(model: Model) -> list[Path]:
    return [model.path, *(external.path for external in model.external)]


def _value(item: Any) -> Any:
    """Ones of the declared type and shape; a dimension that is not told is one."""
    import numpy as np

    shape = [dim if isinstance(dim, int) and dim > 0 else 1 for dim in item.shape]
    kinds = {"float": "float32", "double": "float64", "bool": "bool"}
    name = item.type.removeprefix("tensor(").removesuffix(")")
    if math.prod(shape) > _MOST_ELEMENTS:
        raise ValueError(f"its input {item.name!r} has {math.prod(shape):,} elements")
    return np.ones(shape, dtype=kinds.get(name, name))
