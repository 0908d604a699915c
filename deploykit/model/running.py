"""Opens and runs ONNX Runtime sessions on the CPU, within memory and time; the only place where a graph is executed.

A graph of a few nodes can ask for any amount of both. What a session may take grows with the model and what it is fed,
so that a real model never meets the bounds, and a bomb of a kilobyte ends after seconds with an ordinary error.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import onnxruntime as ort

from deploykit.system.limits import limited_memory, lose_patience, patience_lost, time_left

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["CpuSession"]

_Answers: TypeAlias = SimpleQueue[tuple[Sequence[Any], Exception | None]]

_LEAST_MEMORY = 640 << 20
# Bytes that may be taken for each byte of the model and of what it is fed: a convolution's results are much larger than
# its weights, and the runtime takes twice what it needs as it grows.
_MEMORY_PER_BYTE = 256
_LEAST_SECONDS = 3.0
# Seconds of computing time per byte of the model: 5 s for 1 MB.
_SECONDS_PER_BYTE = 5e-6
_LOOK_SECONDS = 0.25
# Seconds of computing time in which the operator under way may still come to its end.
_LAST_SECONDS = 1.0
# Bytes of a model below which its constants are computed in each run, where time is bounded, and not when it is opened,
# which nothing ends.
_SMALL = 1 << 20


class CpuSession:
    """One opened model: ``source`` is its bytes or its path, ``size`` the bytes of all its files where it is a path.

    Both opening and running raise whatever the runtime raises; beyond the bounds that is an error too. After a run that
    took too long no other of the same guard (``one_patience``) begins.
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
        if patience_lost():
            raise RuntimeError("an earlier run of the model took too long")
        fed = sum(int(value.nbytes) for value in feed.values())
        settings, answers = ort.RunOptions(), _Answers()

        def work() -> None:
            try:
                answers.put((self._session.run(None if names is None else list(names), dict(feed), settings), None))
            except Exception as error:
                answers.put(([], error))

        with limited_memory(_LEAST_MEMORY + _MEMORY_PER_BYTE * (self.size + fed)):
            _hand(work)
            try:
                made, error = _wait(answers, settings, _LEAST_SECONDS + _SECONDS_PER_BYTE * (self.size + fed))
            finally:
                settings.terminate = True
        if error is not None:
            raise error
        return list(made)


def _wait(answers: _Answers, settings: ort.RunOptions, seconds: float) -> tuple[Sequence[Any], Exception | None]:
    """What a run gives; it is ended after so many seconds of computing, or when the caller's time is over.

    A machine that is busy with others takes nothing of the former. The runtime ends a run between two operators; an
    operator that goes on is left behind in its thread, which ends with the process. Raises TimeoutError then.
    """
    started, left = time.process_time(), time_left()
    end = math.inf if left is None else time.monotonic() + left
    while True:
        with suppress(Empty):
            return answers.get(timeout=_LOOK_SECONDS)
        over, used = time.monotonic() - end, time.process_time() - started - seconds
        if used > 0:
            lose_patience()
        settings.terminate = over >= 0 or used > 0
        if max(over, used) > _LAST_SECONDS:
            raise TimeoutError("one of the model's operators takes too long")


# Of threads that have run something and wait for the next: to start one for each takes longer than a small run.
_IDLE: list[SimpleQueue[Callable[[], None]]] = []
os.register_at_fork(after_in_child=_IDLE.clear)


def _hand(work: Callable[[], None]) -> None:
    """Let a thread do it: whoever waits for that can go on without it."""
    try:
        jobs = _IDLE.pop()
    except IndexError:
        jobs = SimpleQueue()
        threading.Thread(target=_serve, args=(jobs,), daemon=True).start()
    jobs.put(work)


def _serve(jobs: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        jobs.get()()
        _IDLE.append(jobs)
