"""Calls a function with each of some plain values on the workers of a Dask cluster; it measures nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from deploykit.errors import DeploykitError, ToolError
from deploykit.fleet.cluster import _RETRIES, _alike, _client, _distributed
from deploykit.fleet.pool import Tell

if TYPE_CHECKING:
    from distributed import Future

__all__ = ["Spread", "spread_over"]

Spread: TypeAlias = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
"""Calls a function with each of some plain values, on several machines, and gives what it returns, in any order."""


@contextlib.contextmanager
def spread_over(address: str, tell: Tell) -> Iterator[Spread]:
    """Calls on the workers that have this machine's versions; what a dead one had is begun again on another.

    Raises UsageError without ``distributed``, ToolError where no scheduler answers or no worker is left for a part.
    """
    with _client(address) as client:

        def spread(work: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
            workers = list(_alike(client, tell))
            sent = [client.submit(work, part, workers=workers, pure=False, retries=_RETRIES) for part in parts]
            for future in _distributed().as_completed(sent, loop=client.loop, raise_errors=False):
                yield _returned(future)

        yield spread


def _returned(future: Future[Any]) -> Any:
    """What a call gave; what it refused is raised as it was there, anything else as ToolError."""
    try:
        return future.result()
    except DeploykitError:
        raise
    except Exception as error:
        raise ToolError("a worker did not do its part", why=f"{type(error).__name__}: {str(error)[:300]}") from None
