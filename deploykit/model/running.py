"""Opens and runs ONNX Runtime sessions on the CPU, within memory and time; the only place where a graph is executed.

A graph of a few nodes can ask for any amount of both. What a session may take grows with the model and what it is fed,
so that a real model never meets the bounds, and a bomb of a kilobyte ends after seconds with an ordinary error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import onnxruntime as ort

from deploykit.system.limits import limited_memory, time_left

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["CpuSession"]

_LEAST_MEMORY = 640 << 20
# Bytes that may be taken for each byte of the model and of what it is fed: a convolution's results are much larger than
# its weights, and the runtime takes twice what it needs as it grows.
_MEMORY_PER_BYTE = 256
_LEAST_SECONDS = 3.0
# Seconds of computing time per byte of the model: 5 s for 1 MB.
_SECONDS_PER_BYTE = 5e-6
_LOOK_SECONDS = 0.25
# Bytes of a model below which its constants are computed in each run, where time is bounded, and not when it is opened,
# which nothing ends.
_SMALL = 1 << 20


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

    Of the former a machine that is busy with others takes nothing. One thread looks at all runs that are under way: to
    start one for each takes longer than a small run.
    """

    _changed = threading.Condition()
    _running: ClassVar[set[_Watch]] = set()
    _looker: ClassVar[threading.Thread | None] = None

    def __init__(self, settings: ort.RunOptions, seconds: float) -> None:
        self._settings, self._seconds = settings, seconds

    def __enter__(self) -> None:
        self._started, left = time.process_time(), time_left()
        self._end = None if left is None else time.monotonic() + left
        with _Watch._changed:
            _Watch._running.add(self)
            if _Watch._looker is None or not _Watch._looker.is_alive():  # a child of fork has none
                _Watch._looker = threading.Thread(target=_Watch._look, daemon=True)
                _Watch._looker.start()
            _Watch._changed.notify()

    def __exit__(self, *_: object) -> None:
        with _Watch._changed:
            _Watch._running.discard(self)

    @classmethod
    def _look(cls) -> None:
        while True:
            with cls._changed:
                cls._changed.wait_for(lambda: cls._running)
                for run in cls._running:
                    late = run._end is not None and time.monotonic() >= run._end
                    if late or time.process_time() - run._started > run._seconds:
                        run._settings.terminate = True
            time.sleep(_LOOK_SECONDS)
