"""The one rule that reads the atlas: what was measured of kernels like those of this model. Code QNN320."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from deploykit.backend.backend import Same, Situation
from deploykit.findings import Severity
from deploykit.findings.rules import Found, Registry
from deploykit.model.facts import NodeFact
from deploykit.model.operators import is_standard
from deploykit_qualcomm.atlas.rows import (
    Row,
    costs,
    matching,
    nearest_sdk,
    numbers_of,
    operators,
    rows_for,
    verdict_at,
    verdict_in,
    where_it_holds,
)
from deploykit_qualcomm.atlas.traits import RANGES, SmallGraph, traits_of, traits_without_grids, type_of
from deploykit_qualcomm.rules.views import Grids

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["RULES", "suspects_in"]


# Of a result's range: a kernel that is off by less is a note, as most outputs bear it and the audit can tell.
_GROSS = 0.05

_SAID = {
    "wrong": "a kernel like this computes something else than the model says",
    "refused": "a kernel like this is not taken",
    "narrowed": "a kernel like this has the precision of about 8 bits",
}
_TYPES = {"u8": "8 bits", "u16": "16 bits", "float": "float16"}

_SIDES = {"in": "its input", "out": "its result", "second": "its second input"}
# Attributes of one word, beside those that are written with an underscore.
_SETTINGS = frozenset({"axis", "exclusive", "group", "mode", "reduction", "reverse", "to"})
_OTHERWISE = {
    "factors": "resize by another factor",
    "gate": "leave what the gate makes out of the encodings",
    "grids apart": "give its result the encoding of what it reads",
    "left over": "choose a size, or pads, with which the last window ends at the border",
    "padded": "pad by an operator of its own",
    "steps beyond its bounds": "end the encoding of its result at its bounds",
}

RULES: Registry[Situation] = Registry("situation")


@RULES.rule(
    "QNN320",
    "kernel-in-the-atlas",
    "warning",
    sources=("the rows of data/atlas, each with the case that shows it",),
    cure=(
        "simplify",
        "fuse-gelu",
        "norm-rows",
        "pool-by-taps",
        "cumulate-forward",
        "product-by-halves",
        "batchnorm-rank",
        "write-out-functions",
        "einsum-to-matmul",
        "global-pool",
    ),
)
def check_atlas(situation: Situation) -> Iterator[Found]:
    """A node that is like kernels which were measured to be wrong, narrowed or refused.

    The compiler says nothing of a wrong kernel. Conditions were drawn from measurements of small graphs on the
    emulator; each holds for the cases that it names and for no other that was tried, or says of how many. Where it is
    known what the kernel does instead, that is said, and of releases that did not run it too. 'deploykit check
    --kernels full' measures the node itself.

    Fix: audit the model, or write the operator in another way
    """
    # By operator, type and the row's condition; of several rows about a node the first.
    target = situation.target
    release = target.sdk.version if target.sdk is not None else target.requested
    soc = target.device.fact("soc_model")
    found = situation.facts.once(
        ("in the atlas", Same(situation.encodings), release), lambda: tuple(predicted(situation, release))
    )
    for node, row in found:
        if not _is_told(row, release):  # what may hold there too is for 'compat op' to say
            continue
        if verdict_at(row, soc) == "right":  # its case was run for this very chip
            continue
        gross = row.verdict == "refused" or (row.verdict == "wrong" and row.most >= _GROSS * row.span)
        how = "observed" if verdict_in(row, release) else f"inferred for {release}, observed"
        told = f"{how}, QAIRT {row.sdk} emulator, soc_model {row.soc}: {row.cases} cases"
        elsewhere = where_it_holds(row)
        also = f"; its case is {elsewhere}" if elsewhere else ""
        # Out of the row's condition by what can be chosen: a range, a setting; else a type that was measured right.
        ways = [way for name, value in row.when.items() if (way := _other(name, value))]
        others = [
            _TYPES[kind]
            for kind in ("u16", "u8", "float")
            if kind not in row.types and _is_right(situation, node, row, kind)
        ]
        if others:
            ways.append(f"in {' or in '.join(others)} it is right, as far as tried")
        yield Found(
            "node",
            node.label,
            f"{node.op_type} {node.label}: {_SAID[row.verdict]}{_numbers(row)} ({row.condition})"
            + (f": {row.mechanism}" if row.mechanism else ""),
            hint="; ".join(ways) or "write it with other operators, or compute it on the host",
            severity=Severity.WARNING if gross else Severity.INFO,
            sources=(f'{told}{also}; shown by the case "{row.id}"',),
            evidence={"row": row.id, "verdict": row.verdict, "when": dict(row.when), "sdk": row.sdk},
        )


def predicted(graph: Grids, release: str, *, only: Collection[str] | None = None) -> Iterator[tuple[NodeFact, Row]]:
    """Every node that a row is about, by the measurements of the nearest release; ``only`` are labels, None is all."""
    measured, known = nearest_sdk(release), operators()
    for node in graph.facts.nodes:
        if node.op_type not in known or not is_standard(node) or (only is not None and node.label not in only):
            continue
        rows = rows_for(node.op_type, type_of(graph, node), measured)
        if rows:
            elsewhere = traits_without_grids(graph.facts, node)
            rows = tuple(row for row in rows if row.may_hold(elsewhere))
        row = matching(rows, traits_of(graph, node)) if rows else None
        if row is not None:
            yield node, row


def _numbers(row: Row) -> str:
    if row.verdict == "wrong" and row.span:
        return f", up to {100 * min(row.most / row.span, 1):.3g} % of its range off"
    return f": {row.why}" if row.verdict == "refused" and row.why else ""


def _other(name: str, value: str | float) -> str:
    side, _, what = name.partition(" ")
    if side in _SIDES and what == "span" and isinstance(value, str):
        turned = f"{'above' if value.startswith('<=') else 'below'} {value[3:]}"
        return f"give {_SIDES[side]} an encoding whose span is {turned}"
    if name in _OTHERWISE:
        return _OTHERWISE[name]
    if name in ("behind", "before"):
        return f"put another operator {'in front of' if name == 'behind' else 'after'} it than {value}"
    setting = what if side in ("most", "least") and "_" in what else name
    is_setting = setting.islower() and ("_" in setting or setting in _SETTINGS)
    if not is_setting or str(value)[:2] in ("<=", ">="):
        return ""
    return f"another {setting} than {value if isinstance(value, str) else f'{value:g}'}"


def _is_right(graph: Grids, node: NodeFact, row: Row, kind: str) -> bool:
    """Whether the operator was measured in a type, and no row there can be about this node, whatever its ranges are."""
    if (node.op_type, kind) not in costs():
        return False
    known = {name: value for name, value in traits_of(graph, node).items() if name not in RANGES}
    return not any(other.may_hold(known) for other in rows_for(node.op_type, kind, row.sdk))


def _is_told(row: Row, release: str) -> bool:
    """True where the row was measured with the release's own series, or its case was run by that and is the same.

    A row whose mechanism is known is told where nothing ran, too, as inferred.
    """
    found = verdict_in(row, release)
    is_older = bool(row.since) and numbers_of(release) < numbers_of(row.since)
    return found == row.verdict or (not found and bool(row.mechanism) and not is_older)


def suspects_in(
    model: ModelProto, release: str, *, verdicts: Collection[str], only: Collection[str] | None = None
) -> frozenset[str]:
    """Labels of the nodes that such a verdict is predicted for; ``only`` are those that are looked at, None is all.

    The model is read once while it stays the same: a plan asks about a few nodes of it, an audit about all.
    """
    from deploykit.model.collect import facts_of, read_of

    graph = SmallGraph(model=read_of(model), facts=facts_of(model))
    found = predicted(graph, release, only=only)
    return frozenset(node.label for node, row in found if row.verdict in verdicts)
