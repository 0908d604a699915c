"""What npucc refuses; it looks at the graph alone."""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.backend.backend import Situation
from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry

__all__ = ["RULES"]

_MOST_NODES = 64

RULES: Registry[Situation] = Registry("my-npu")


@RULES.rule("NPU001", "too-many-nodes", "error", sources=["data sheet of the chip"])
def check_nodes(situation: Situation) -> Iterator[Found]:
    """A model with more nodes than the chip's program memory holds.

    The compiler stops.

    Fix: split the model
    """
    count = len(situation.facts.nodes)
    if count > _MOST_NODES:
        message = f"{count} nodes, {_MOST_NODES} are possible"
        yield Found(kind=SubjectKind.MODEL, name=situation.request.model.name, message=message)
