"""Finds ranges for tensors without an entry from what is given; a tensor of which nothing tells a range stays open.

In this order: stored values and operators that bound or move values; what follows exactly from given neighbours,
forwards and backwards; values seen on data that the user gave or declared; interval arithmetic over neighbours, which
holds but may be wider than need be; bounds of linear operators by their weights, which are wider still. It never looks
at made-up inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from onnx import ModelProto, NodeProto

from deploykit.encodings.backward import (
    TELLING,
    Clue,
    Evidence,
    Inference,
    InferredRange,
    OpenTensor,
    Origin,
    clue_from,
    grid_behind,
)
from deploykit.encodings.new_grids import entry_for_range, kind_of_entry
from deploykit.encodings.values import Affine, EncodingSet
from deploykit.findings.records import Interval, replace
from deploykit.model.facts import GraphFacts
from deploykit.model.graph import view_of
from deploykit.model.operators import RANGES, Trait, ops
from deploykit.model.range_functions import ANYTHING, FUNCTIONS, SELECTIONS, SUMS, hull
from deploykit.model.ranges import Arithmetic, stored_range

__all__ = ["infer_entries"]

_BOUNDED: Mapping[str, Interval] = {
    **RANGES,
    "Hardmax": (0.0, 1.0),
    "LpNormalization": (-1.0, 1.0),
    "Softsign": (-1.0, 1.0),
}
"""Operators whose results fill a range that is known beforehand."""

_MOVES = ops(Trait.CARRIES_GRID)
_CONTROL = ops(Trait.CONTROL_FLOW)
_MOST_ROUNDS = 16
_NEAR_ZERO = 1 / 256
_WIDE_BITS = 16
_LARGEST = 3.4028234663852886e38


def infer_entries(
    model: ModelProto,
    facts: GraphFacts,
    encodings: EncodingSet,
    wanted: Iterable[str],
    *,
    proven: Mapping[str, Interval] | None = None,
    evidence: Evidence | None = None,
) -> Inference:
    """Integer entries for ``wanted``, each with the origin of its range; tensors that stay open are named.

    Existing entries of ``wanted`` are replaced, and only their kind (bits, sign) is used; all other entries are given.
    ``proven`` are ranges that the caller has proven already. Encodings must be placed, and ``facts`` must be those of
    ``model``.
    """
    names = dict.fromkeys(wanted)
    search = _RangeSearch(model, facts, encodings, names, evidence or Evidence())
    for name, ends in (proven or {}).items():
        if name in names and all(map(math.isfinite, ends)):
            search.conclude(name, ends, Origin.OPERATOR, "proven by the rewrite that made it")
    search.spread(_EXACT)
    search.observe()
    search.spread(_TIGHT)
    search.spread(_WIDE)
    return search.finish()


# How wide a conclusion may be beside what calibration would see: not wider than the ranges it follows from, a few times
# (it holds whatever two operands do together), and many times (whatever hundreds of products do together).
_EXACT, _TIGHT, _WIDE = range(3)


class _RangeSearch:
    """All ranges that are known so far in one graph."""

    def __init__(
        self,
        model: ModelProto,
        facts: GraphFacts,
        encodings: EncodingSet,
        wanted: Mapping[str, None],
        evidence: Evidence,
    ) -> None:
        self.facts, self.encodings, self.wanted, self.evidence = facts, encodings, wanted, evidence
        self.graph = view_of(model)
        self.arithmetic = Arithmetic(self.graph)
        self.known: dict[str, InferredRange] = {}
        self.intervals: dict[str, Interval] = {}
        self.given = replace(encodings, entries={e.name: e for e in encodings if e.name not in wanted})
        for entry in self.given:
            if isinstance(entry.value, Affine) and entry.name in facts.tensors:
                self.conclude(entry.name, entry.value.ends, Origin.FILE, "its entry")
        for name, ends in evidence.declared.items():
            self.conclude(name, ends, Origin.DECLARED, f"--input {name}")
        # The graph inputs that each tensor is computed from; bodies of control flow may read anything.
        self.roots: dict[str, frozenset[str]] = {name: frozenset({name}) for name in facts.inputs}
        for node in facts.nodes:
            sources = facts.inputs if node.op_type in _CONTROL else node.inputs
            made = frozenset[str]().union(*(self.roots.get(name, frozenset()) for name in sources))
            self.roots.update((name, made) for name in node.outputs if name)

    def conclude(
        self,
        name: str,
        ends: Interval,
        origin: Origin,
        why: str,
        *,
        copies: str = "",
        wide: bool = False,
        partial: bool = False,
    ) -> bool:
        """Keep a range unless one is known, it is not finite, or too wide for its grid; True where it was kept."""
        if name in self.known or not all(map(math.isfinite, ends)):
            return False
        if wide and name in self.wanted and kind_of_entry(name, self.encodings).bits < _WIDE_BITS:
            return False
        made = InferredRange(
            tensor=name, low=ends[0], high=ends[1], origin=origin, why=why, copies=copies, wide=wide, partial=partial
        )
        self.known[name], self.intervals[name] = made, ends
        return True

    def spread(self, width: int) -> None:
        """Conclude ranges up to this width, forwards and backwards, until nothing new follows."""
        for name in self.graph.stored:
            # Stored tensors that are wanted, or that some operator takes beside what it computes.
            readers = self.graph.readers(name)
            worth = name in self.wanted or any(n.op_type in FUNCTIONS or n.op_type in SELECTIONS for n in readers)
            if worth and name not in self.known and name in self.facts.tensors:
                self.conclude(name, stored_range(self.graph, name), Origin.CONSTANT, "its stored values")
        for _ in range(_MOST_ROUNDS):
            forward = [self._forward(node, width) for node in self.graph.nodes]
            names = (name for node in reversed(self.graph.nodes) for name in node.input if name)
            backward = [self._backward(name, width) for name in names]
            if not any(forward) and not any(backward):
                return

    def _forward(self, node: NodeProto, width: int) -> bool:
        if not node.input or all(name in self.known for name in node.output if name):
            return False
        if node.op_type in _BOUNDED:
            words = f"what {node.op_type} makes"
            return self.conclude(node.output[0], _BOUNDED[node.op_type], Origin.OPERATOR, words)
        moved = node.op_type in _MOVES and node.input[0] in self.known
        if not moved and self._width(node) > width:
            return False
        made = zip(node.output, self.arithmetic.outputs(node, self.intervals), strict=False)
        others = [used for used in dict.fromkeys(node.input) if used in self.known]
        wide = node.op_type in SUMS or any(self.known[used].wide for used in others)
        kept = False
        for name, ends in made:
            origin, words, copies, is_wide = Origin.OPERATOR, f"what {node.op_type} makes", "", False
            if moved and (name == node.output[0] or node.op_type == "Split"):
                copies, is_wide = node.input[0], self.known[node.input[0]].wide
                words = f"{node.op_type} moves the values of {copies}"
            elif node.op_type == "Clip":
                words = "the limits of its Clip"
            elif others:
                if self._width(node) > _EXACT and max(map(abs, ends)) > TELLING:
                    continue
                origin, is_wide = Origin.NEIGHBOURS, wide
                words = f"{'at most ' if wide else ''}{words} of {', '.join(others)}"
            kept |= bool(name) and self.conclude(name, ends, origin, words, copies=copies, wide=is_wide)
        return kept

    def _width(self, node: NodeProto) -> float:
        """How wide a node's bounds are beside what calibration would see; infinite where they are of no use."""
        if node.op_type in SELECTIONS:
            return _EXACT
        if node.op_type in SUMS:
            return _WIDE if any(used in self.graph.stored for used in node.input[:2]) else math.inf
        ends = [self.intervals.get(name, ANYTHING) for name in node.input if name]
        if node.op_type == "Div" and len(ends) == 2:
            low, high = ends[1]
            least, most = sorted((abs(low), abs(high)))
            if low * high <= 0 or math.isinf(most) or least < _NEAR_ZERO * most:
                return math.inf
        return _EXACT if sum(low < high for low, high in ends) <= 1 else _TIGHT

    def _backward(self, name: str, width: int) -> bool:
        fact = self.facts.tensors.get(name)
        if name in self.known or fact is None or name in self.graph.stored:
            return False
        readers = self.graph.readers(name)
        # What each reader tells, whether its clue encloses all values, and whether it follows from something wide.
        heard = list[tuple[Clue, bool, bool]]()
        for node in readers:
            clue = clue_from(self.graph, node, name, self.known, self.given) if name in node.input else None
            if clue is not None and (clue.exact or width > _EXACT):
                beside = [self.known[used] for used in (*node.input, *node.output) if used in self.known]
                encloses = clue.encloses and not any(conclusion.partial for conclusion in beside)
                heard.append((clue, encloses, any(conclusion.wide for conclusion in beside)))
        sure = [told for told in heard if told[1]]
        if not sure and (fact.is_output or not len(heard) == len(readers) > 0):
            return False
        clues, _, wide = zip(*(sure or heard), strict=True)
        words = "; ".join(dict.fromkeys(clue.words for clue in clues))
        copies = clues[0].copies if len({clue.copies for clue in clues}) == 1 else ""
        ends = hull(*(clue.interval for clue in clues))
        return self.conclude(name, ends, Origin.NEIGHBOURS, words, copies=copies, wide=any(wide), partial=not sure)

    def observe(self) -> None:
        """Take the ranges of missing tensors from the user's data, where they depend on no other input."""
        observe = self.evidence.observe
        names = [n for n in self.wanted if n not in self.known and self.roots.get(n, {"?"}) <= self.evidence.inputs]
        if observe is None or not names:
            return
        for name, ends in observe(names).items():
            words = f"seen on {self.evidence.words}"
            if kind_of_entry(name, self.encodings).bits >= _WIDE_BITS:
                # Twice as far from zero: other inputs go beyond the samples, and a grid loses what it cuts off.
                low, high = ends
                ends, words = (
                    (max(2 * min(low, low / 2), -_LARGEST), min(2 * max(high, high / 2), _LARGEST)),
                    f"{words}, and as much again",
                )
            self.conclude(name, ends, Origin.SAMPLES, words)

    def finish(self) -> Inference:
        """The result: entries for the wanted tensors with a known range; the others are named as open."""
        found = {name: self.known[name] for name in self.wanted if name in self.known}
        entries = dict(self.encodings.entries)
        for name, conclusion in found.items():
            # Values that are only moved keep their grid, so that nothing is rounded twice; others get one for the
            # range.
            grid, kind = grid_behind(name, self.known, self.given), kind_of_entry(name, self.encodings)
            entry = entry_for_range(name, self.encodings, conclusion.low, conclusion.high)
            same = grid is not None and (grid.bits, grid.signed) == (kind.bits, kind.signed)
            entries[name] = replace(entry, value=grid) if same and grid is not None else entry
        made = replace(self.encodings, entries=entries, float_tensors=self.encodings.float_tensors - found.keys())
        missing = []
        for name in (name for name in self.wanted if name not in found and name in self.facts.tensors):
            roots = [root for root in self.facts.inputs if root in self.roots.get(name, ())]
            unknown = [root for root in roots if root not in self.known and root not in self.evidence.inputs]
            maker = self.facts.producer_of(name)
            says = "it is an input of the graph" if maker is None else f"{maker.op_type} has no fixed bounds"
            why = f"no entry, {says}, and no neighbour tells"
            missing.append(OpenTensor(tensor=name, inputs=tuple(unknown or roots), why=why))
        return Inference(encodings=made, concluded=found, open=tuple(missing))
