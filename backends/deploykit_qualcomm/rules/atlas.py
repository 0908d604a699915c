"""The rule that looks up a model's nodes in the atlas of measured kernels. Code QNN320."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from deploykit.backend.backend import Situation
from deploykit.findings import Severity
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.model.facts import NodeFact
from deploykit.model.operators import is_standard
from deploykit_qualcomm.atlas.rows import (
    Row,
    costs,
    numbers_of,
    operators,
    rows_for,
    verdict_at,
    verdict_in,
    where_it_holds,
)
from deploykit_qualcomm.atlas.traits import traits_of, type_of
from deploykit_qualcomm.rules.views import EncodedGraph, SmallGraph, sdk_of

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["RULES", "suspects_in"]


# A part of the result's range: a smaller deviation is a note, as most outputs tolerate it and the audit can tell.
_GROSS = 0.05

_SAID = {
    "wrong": "a kernel like this computes something else than the model says",
    "refused": "a kernel like this is not taken",
    "narrowed": "a kernel like this has the precision of about 8 bits",
}
_TYPES = {"u8": "8 bits", "u16": "16 bits", "float": "float16"}

# The advice for a part of a condition, if it is not another value of a setting.
_OTHERWISE = {
    "before": "put another operator after it",
    "count axes": "give it factors for all axes, or sizes",
    "behind": "put another operator in front of it",
    "gate": "leave what the gate makes out of the encodings",
    "grids apart": "give its result the encoding of what it reads",
    "in span": "widen the encoding of its input",
    "largest offset": "fold it into the layer in front of it",
    "left over": "choose a size, or pads, with which the last window ends at the border",
    "one is off by": "divide a stored one by its input, or end the encoding of its input at one or beyond",
    "out span": "widen the encoding of its result",
    "padded": "pad by an operator of its own",
    "read elsewhere": "give it sizes in place of factors; where it takes the nearest, asymmetric and by floor",
    "steps beyond its bounds": "end the encoding of its result at its bounds",
}

RULES = Registry[Situation]("situation")


@RULES.rule(
    "QNN320",
    "kernel-in-the-atlas",
    "warning",
    "the rows of data/atlas, each with the case that shows it",
    cure=(
        "simplify",
        "fuse-gelu",
        "norm-rows",
        "pool-by-taps",
        "rank-four",
        "write-out-functions",
        "einsum-to-matmul",
        "global-pool",
        "divide-by-root",
    ),
)
def check_atlas(situation: Situation) -> Finds:
    """A node that is like kernels which were measured to be wrong, narrowed or refused.

    The compiler says nothing of a wrong kernel. Conditions were drawn from measurements of small graphs on the
    emulator; each holds for the cases that it names and for no other that was tried, or says of how many. Where it is
    known what the kernel does instead, that is said, and of releases that did not run it too. 'deploykit check
    --kernels full' measures the node itself.

    Fix: audit the model, or write the operator in another way
    """
    # By operator, type and the row's condition; of several matching rows the first counts.
    release, soc = sdk_of(situation).version, situation.target.device.fact("soc_model")
    found = situation.facts.once(("in the atlas", situation.encodings), lambda: tuple(predicted(situation)))
    for node, row in found:
        # It tells what this release's own series measured, and, as inferred, what a known mechanism does in a series
        # that was not run; ``compat op`` lists what else may hold there.
        ran = verdict_in(row, release)
        inferred = not ran and bool(row.mechanism) and numbers_of(release) >= numbers_of(row.since)
        if not (ran == row.verdict or inferred) or verdict_at(row, soc) == "right":  # its case ran for this very chip
            continue
        gross = row.verdict == "refused" or (row.verdict == "wrong" and row.most >= _GROSS * row.span)
        how = f"inferred for {release}, observed" if inferred else "observed"
        told = f"{how}, QAIRT {row.sdk} emulator, soc_model {row.soc}: {row.cases} cases"
        also = f"; its case is {where_it_holds(row)}"
        # Advice from the row's condition: a range or a setting that can be chosen; else a type that was measured right.
        ways = [_OTHERWISE.get(name, f"another {name}") for name in row.when if name in _OTHERWISE or "_" in name]
        others = [words for kind, words in _TYPES.items() if (row.op, kind) in costs() and not rows_for(row.op, kind)]
        if others:
            ways.append(f"in {' or in '.join(others)} it is right, as far as tried")
        more = f": {row.why}" if row.verdict == "refused" and row.why else ""
        if row.verdict == "wrong" and row.span:
            more = f", up to {100 * min(row.most / row.span, 1):.3g} % of its range off"
        yield Found(
            "node",
            node.label,
            f"{node.op_type} {node.label}: {_SAID[row.verdict]}{more} ({row.condition})"
            + (f": {row.mechanism}" if row.mechanism else ""),
            hint="; ".join(ways) or "write it with other operators, or compute it on the host",
            severity=Severity.WARNING if gross else Severity.INFO,
            sources=(f'{told}{also}; shown by the case "{row.id}"',),
            evidence={"row": row.id, "verdict": row.verdict, "when": dict(row.when), "sdk": row.sdk},
        )


def predicted(graph: EncodedGraph, only: Collection[str] | None = None) -> Iterator[tuple[NodeFact, Row]]:
    """Yields every node that a row holds for, with the row; ``only`` are labels to look at, None for all."""
    known = operators()
    for node in graph.facts.nodes:
        if node.op_type not in known or not is_standard(node) or (only is not None and node.label not in only):
            continue
        rows = rows_for(node.op_type, type_of(graph, node))
        if rows:
            elsewhere = traits_of(graph, node, grids=False)
            rows = tuple(row for row in rows if row.holds(elsewhere, perhaps=True))
        traits = traits_of(graph, node) if rows else {}
        row = next((row for row in rows if row.holds(traits)), None)
        if row is not None:
            yield node, row


def suspects_in(model: ModelProto, *, verdicts: Collection[str], only: Collection[str] | None = None) -> frozenset[str]:
    """Labels of the nodes that are predicted to have one of these verdicts;
    ``only`` are labels to look at, None for all.

    The model's facts are made once while it stays the same: a plan asks about a few nodes of it, an audit about all.
    """
    from deploykit.model.collect import facts_of, model_of_view
    from deploykit.model.graph import view_of

    view = view_of(model)
    found = predicted(SmallGraph(model=model_of_view(view), facts=facts_of(view)), only)
    return frozenset(node.label for node, row in found if row.verdict in verdicts)
