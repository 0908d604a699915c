"""Opens and runs ONNX Runtime sessions on the CPU, within memory and time; the only place where a graph is executed.

A graph of a few nodes can ask for any amount of both. What a session may take grows with the model and what it is fed,
so that a real model never meets the bounds, and a bomb of a kilobyte ends after seconds with an ordinary error.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from deploykit.errors import DeploykitError, InputError
from deploykit.model.load import Model, load_model
from deploykit.system.limits import limited_memory, time_left

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["CpuSession", "blaming", "what_is_wrong"]

_LEAST_MEMORY = 640 << 20
_MEMORY_PER_BYTE = 256
"""Bytes that may be taken for each byte of the model and of what it is fed: a convolution's results are much larger
than its weights, and the runtime takes twice what it needs as it grows."""
_LEAST_SECONDS = 3.0
_SECONDS_PER_BYTE = 5e-6
"""Seconds of computing time per byte of the model: 5 s for 1 MB."""
_LOOK_SECONDS = 0.25
_SMALL = 1 << 20
"""Bytes of a model below which its constants are computed in each run, where time is bounded, and not when it is
opened, which nothing ends."""


class CpuSession:
    """One opened model: ``source`` is its bytes or its path, ``size`` the bytes of all its files where it is a path.

    Both opening and running raise whatever the runtime raises; beyond the bounds that is an error too.
    """

    def __init__(self, source: bytes | str, options: ort.SessionOptions, *, size: int | None = None) -> None:
        self.size = len(source) if size is None else size
        without = {"disabled_optimizers": ["ConstantFolding"]} if self.size < _SMALL else {}
        with limited_memory(_LEAST_MEMORY + _MEMORY_PER_BYTE * self.size):
            self._session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], **without)

    def inputs(self) -> list[Any]:
        """Name, type and shape of each input, as the runtime has them."""
        return list(self._session.get_inputs())

    def outputs(self) -> list[Any]:
        """Name, type and shape of each output, as the runtime has them."""
        return list(self._session.get_outputs())

    def run(self, names: Sequence[str] | None, feed: Mapping[str, npt.NDArray[Any]]) -> list[Any]:
        """The values of these outputs, all where None are named."""
        fed = sum(int(value.nbytes) for value in feed.values())
        settings = ort.RunOptions()
        with (
            limited_memory(_LEAST_MEMORY + _MEMORY_PER_BYTE * (self.size + fed)),
            _Watch(settings, _LEAST_SECONDS + _SECONDS_PER_BYTE * (self.size + fed)),
        ):
            return list(self._session.run(None if names is None else list(names), dict(feed), settings))


class _Watch:
    """Ends a run that has taken too much computing time, or whose caller's time is over (``limited_time``).

    Of the former a machine that is busy with others takes nothing.
    """

    def __init__(self, settings: ort.RunOptions, seconds: float) -> None:
        self._settings, self._seconds = settings, seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        self._started, left = time.process_time(), time_left()
        self._end = None if left is None else time.monotonic() + left
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            late = self._end is not None and time.monotonic() >= self._end
            if late or time.process_time() - self._started > self._seconds:
                self._settings.terminate = True


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
    session = CpuSession(
        str(model.path),
        options,
        size=sum(path.stat().st_size for path in [model.path, *(external.path for external in model.external)]),
    )
    session.run(None, {item.name: _value(item) for item in session.inputs()})


def _value(item: Any) -> Any:
    """Ones of the declared type and shape; a dimension that is not told is one."""
    import numpy as np

    shape = [dim if isinstance(dim, int) and dim > 0 else 1 for dim in item.shape]
    kinds = {"float": "float32", "double": "float64", "bool": "bool"}
    name = item.type.removeprefix("tensor(").removesuffix(")")
    if math.prod(shape) > _MOST_ELEMENTS:
        raise ValueError(f"its input {item.name!r} has {math.prod(shape):,} elements")
    return np.ones(shape, dtype=kinds.get(name, name))
