"""Opens and runs ONNX Runtime sessions on the CPU, within memory and time; the only place where a graph is executed.

A graph of a few nodes can ask for any amount of both. The bounds grow with the size of the model and its inputs, so
that a real model never meets them, and a bomb of a kilobyte ends after seconds with an ordinary error.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from deploykit.findings.records import Arrays
from deploykit.system.limits import limited_memory, shared_timeouts, time_left

if TYPE_CHECKING:
    from onnxruntime import SessionOptions

__all__ = ["CpuSession", "quiet_options", "run_within"]

T = TypeVar("T")

_LEAST_MEMORY = 640 << 20
# Bytes that a session may take per byte of the model and its inputs: the results of a convolution are much larger than
# its weights, and the runtime takes twice what it needs as it grows.
_MEMORY_PER_BYTE = 256
_LEAST_SECONDS = 3.0
# Seconds of computing time per byte of the model: 5 s for 1 MB.
_SECONDS_PER_BYTE = 5e-6
# Opening a model may take this many times the bound of a run: the runtime writes out its functions then.
_OPENING = 10
_LOOK_SECONDS = 0.25
# Seconds beyond the bound in which the current operator may still finish.
_LAST_SECONDS = 1.0
# Bytes. A smaller model computes its constants in each run, which can be ended, and not when it is opened, which
# nothing can end.
_SMALL = 1 << 20


def quiet_options(*, optimize: bool = False) -> SessionOptions:
    """The settings of a session that prints nothing; without ``optimize`` it runs the graph exactly as written."""
    import onnxruntime as ort  # commands that run no graph do without it

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


class CpuSession:
    """One opened model. ``source`` is its bytes or its path; with a path, ``size`` is the bytes of all its files.

    Opening and running raise whatever the runtime raises; exceeding the bounds is an error too. Once one of them took
    too long, no other begins within the same guard (``share_timeouts``).
    """

    def __init__(self, source: bytes | str, options: SessionOptions, *, size: int | None = None) -> None:
        from onnxruntime import InferenceSession

        self.size = len(source) if size is None else size
        without = {"disabled_optimizers": ["ConstantFolding"]} if self.size < _SMALL else {}
        self._session = run_within(
            lambda: InferenceSession(source, options, providers=["CPUExecutionProvider"], **without),
            self.size,
            seconds=_OPENING * _SECONDS_PER_BYTE * self.size,
            end=lambda: options.set_load_cancellation_flag(True),
        )
        # Name, type and shape of each, as the runtime has them.
        self.inputs, self.outputs = self._session.get_inputs(), self._session.get_outputs()

    def run(self, names: Sequence[str] | None, feed: Arrays) -> list[Any]:
        """The values of the named outputs, or of all outputs for None."""
        from onnxruntime import RunOptions

        size, settings = self.size + sum(int(value.nbytes) for value in feed.values()), RunOptions()
        return run_within(
            lambda: list(self._session.run(None if names is None else list(names), dict(feed), settings)),
            size,
            seconds=_SECONDS_PER_BYTE * size,
            end=lambda: setattr(settings, "terminate", True),
        )


def run_within(work: Callable[[], T], size: int, *, seconds: float, end: Callable[[], None] = lambda: None) -> T:
    """The result of ``work``, in memory that grows with ``size`` and ``seconds`` of processor time beyond the least.

    Processor time does not count what other processes take. ``end`` asks the runtime to stop, which it does between two
    operators; an operator that goes on is left behind in its thread, which ends with the process. Raises TimeoutError
    then, and whatever ``work`` raises.
    """
    if shared_timeouts():
        raise TimeoutError("an earlier run of the model took too long")
    answers = SimpleQueue[tuple[list[T], Exception | None]]()

    def answer() -> None:
        try:
            answers.put(([work()], None))
        except Exception as error:
            answers.put(([], error))

    started, left = time.process_time(), time_left()
    until, late = math.inf if left is None else time.monotonic() + left, False
    with limited_memory(_LEAST_MEMORY + _MEMORY_PER_BYTE * size):
        # A thread does the work, so that the caller can go on without it.
        try:
            jobs = _IDLE.pop()
        except IndexError:
            jobs = SimpleQueue()
            threading.Thread(target=_serve, args=(jobs,), daemon=True).start()
        jobs.put(answer)
        try:
            while True:
                with suppress(Empty):
                    made, error = answers.get(timeout=_LOOK_SECONDS)
                    break
                over, used = time.monotonic() - until, time.process_time() - started - _LEAST_SECONDS - seconds
                if used > 0:
                    late = True
                    shared_timeouts().append(True)
                if max(over, used) > 0:
                    end()
                if max(over, used) > _LAST_SECONDS:
                    raise TimeoutError("one of the model's operators takes too long")
        except BaseException:
            end()
            raise
    if error is not None:
        raise TimeoutError("it takes longer than any real model of its size") if late else error
    return made[0]


# The job queues of idle threads: starting a thread for each run takes longer than a small run.
_IDLE: list[SimpleQueue[Callable[[], None]]] = []
os.register_at_fork(after_in_child=_IDLE.clear)


def _serve(jobs: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        jobs.get()()
        _IDLE.append(jobs)
