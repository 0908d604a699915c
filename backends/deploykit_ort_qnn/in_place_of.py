"""What became of kernels that were wrong as they were given: said of what stands in their place, where that was run.

Tensors keep their names through a preparation, nodes need not: what computes a tensor now stands in the place of what
computed it before. It runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from deploykit.backend.audits import Audit
from deploykit.findings import Finding, Severity, SubjectKind, listed
from deploykit.model.graph import view_of
from deploykit.model.nodes import label
from deploykit_ort_qnn.excerpts import PAIR
from deploykit_qualcomm.atlas.verdicts import Verdict

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["InPlaceOf", "mended"]


def mended(
    before: Iterable[Finding], first: Audit, given: ModelProto, found: Audit, made: ModelProto
) -> Iterator[Finding]:
    """Of findings about kernels of the given model: as handled where what is compiled instead was run and is right.

    Where that is wrong too it is told by itself. Where it could not be run, or nothing is seen in their place, they
    stay, as warnings.
    """
    places, verdicts = InPlaceOf(given, made), _verdicts(found)
    for finding in before:
        if finding.subject.kind is not SubjectKind.NODE or finding.severity is Severity.INFO:
            continue
        alike = {name for one in first.kernels if one.node == finding.subject.name for name in one.nodes}
        instead = [places.of(name) for name in sorted(alike or {finding.subject.name})]
        now = {verdicts.get(name, Verdict.UNJUDGED) for names in instead for name in names or ("",)}
        if now == {Verdict.RIGHT}:
            told = listed(sorted({name for names in instead for name in names}), most=3)
            yield finding.with_handled(f"the preparation writes it in another form, which was run and is right: {told}")
        elif now <= {Verdict.RIGHT, Verdict.UNJUDGED}:
            yield replace(finding, severity=max(finding.severity, Severity.WARNING, key=lambda one: one.rank))


def _verdicts(found: Audit) -> Mapping[str, Verdict]:
    """By label what is known of a node's kernels: the worst fault, else right where one is; others are not there."""
    rank = (Verdict.WRONG, Verdict.REFUSED, Verdict.NARROWED, Verdict.RIGHT)
    known: dict[str, Verdict] = {}
    for kernel in found.kernels:
        verdict = Verdict(kernel.verdict)
        for name in (kernel.node, *kernel.nodes) if verdict in rank else ():
            known[name] = min(known.get(name, verdict), verdict, key=rank.index)
    return known


class InPlaceOf:
    """Two forms of one model, to find what computes in the second what a node computed in the first."""

    def __init__(self, given: ModelProto, made: ModelProto) -> None:
        self._given, self._made = view_of(given), view_of(made)
        self._nodes = {label(node): node for node in self._given.nodes}
        self._tensors = {name for node in self._given.nodes for name in node.output}
        self._static = self._made.static()

    def of(self, name: str) -> frozenset[str]:
        """The labels of the operators that stand in a node's place; none where that cannot be told.

        Where its own result is gone, as inside of what was fused, they are those up to the next result that is there.
        """
        node = self._nodes.get(name)
        ends = [] if node is None else self._ends(node)
        return frozenset(operator for names in ends for operator in self._computing(names))

    def _ends(self, node: NodeProto) -> list[frozenset[str]]:
        """Of each result the names that it has before and behind its pairs, or those of what is computed from it."""
        found, left, seen = list[frozenset[str]](), [*node.output], set[str]()
        while left:
            output = left.pop()
            if not output or output in seen:
                continue
            seen.add(output)
            names, readers = self._names(output)
            if any(name in self._made.makers for name in names):
                found.append(names)
            else:
                left += [name for reader in readers for name in reader.output]
        return found

    def _names(self, output: str) -> tuple[frozenset[str], list[NodeProto]]:
        """What a result is called along its pairs, and the operators that read it."""
        readers: list[NodeProto] = []
        names, left = {output}, [output]
        while left:
            for reader in self._given.readers(left.pop()):
                if reader.op_type in PAIR:
                    names |= {*reader.output}
                    left += reader.output
                else:
                    readers.append(reader)
        return frozenset(names), readers

    def _computing(self, names: frozenset[str]) -> frozenset[str]:
        """The operators that inputs decide, from there back to whatever tensor the given model had, too."""
        found, left, seen = set[str](), [*names], set(names)
        ends = self._tensors - names
        while left:
            node = self._made.makers.get(left.pop())
            if node is None or self._static.issuperset(node.output):
                continue
            if node.op_type not in PAIR:
                found.add(label(node))
            further = {*node.input} - seen - ends
            seen |= further
            left += further
        return frozenset(found)
