"""Rules about forms of operators that the provider does not take, where another form says the same. From ORT030 on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import is_standard
from deploykit_ort_qnn.prepare import Draft

__all__ = ["RULES"]

_LAB = "onnxruntime-qnn 2.7.0 (QAIRT 2.51) with ONNX Runtime 1.31.1, run on Linux x86-64 without hardware"
_MOST_INDEX_DIMENSIONS = 4

RULES: Registry[Draft] = Registry("ort-qnn plan")


@RULES.rule(
    "ORT031",
    "window-beyond-map",
    "warning",
    what="An AveragePool whose window is larger than its map.",
    why="The provider says that it takes the node and then fails to (an internal error); windows of the map's size and "
    "GlobalAveragePool are taken.",
    fix="Write it as GlobalAveragePool.",
    sources=[f"{_LAB}: windows of 8 and 320 on maps of 6, of 6 on 6"],
)
def check_window(draft: Draft) -> Iterator[Found]:
    """By shapes."""
    for node in _nodes(draft, "AveragePool"):
        sizes = _known(draft.situation.facts, node.inputs[0])[2:]
        window = node.attributes.get("kernel_shape") or ()
        if len(window) == len(sizes) and any(side > size for side, size in zip(window, sizes, strict=True)):
            yield _at(node, f"{node.label}: a window of {list(window)} on a map of {list(sizes)}")


@RULES.rule(
    "ORT032",
    "gathernd-form",
    "warning",
    what="A GatherND of truth values, or with an index of more than four dimensions.",
    why="The provider leaves both to the CPU; a Gather, a Reshape, and other types are taken.",
    fix="Gather rows by their numbers instead.",
    sources=[f"{_LAB}: float and bool, indices of 2 to 6 dimensions"],
)
def check_gather(draft: Draft) -> Iterator[Found]:
    """By the type of the data and the rank of the index."""
    tensors = draft.situation.facts.tensors
    for node in _nodes(draft, "GatherND"):
        data, index = (tensors.get(name) for name in node.inputs[:2])
        if data is not None and data.dtype == "bool":
            yield _at(node, f"{node.label}: {node.inputs[0]} holds truth values")
        elif index is not None and index.rank is not None and index.rank > _MOST_INDEX_DIMENSIONS:
            yield _at(node, f"{node.label}: an index of {index.rank} dimensions")


def _nodes(draft: Draft, op_type: str) -> list[NodeFact]:
    """Those of a model that comes without Q/DQ: with them, the preparation writes other forms while they are out."""
    if draft.source == "qdq":
        return []
    return [node for node in draft.situation.facts.nodes if node.op_type == op_type and is_standard(node)]


def _known(facts: GraphFacts, name: str) -> Sequence[int]:
    fact = facts.tensors.get(name)
    return tuple(dim for dim in (fact.shape if fact is not None else None) or () if isinstance(dim, int))


def _at(node: NodeFact, message: str) -> Found:
    return Found(kind=SubjectKind.NODE, name=node.label, message=message)
