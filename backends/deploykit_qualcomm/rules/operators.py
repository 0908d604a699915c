"""Lint rules about operators and their attributes. Codes QNN206, QNN208 to QNN214 and QNN282 to QNN285."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deploykit.backend.backend import Situation
from deploykit.findings.rules import Found, Registry
from deploykit.model.facts import NodeFact
from deploykit.model.patterns import dynamically_quantized, over_short_axes, repeated_before_norm
from deploykit.tables.capabilities import Status
from deploykit_qualcomm.rules.constraints import Refused, claim_of, constraint, constraints
from deploykit_qualcomm.rules.views import arch, at_node, nodes, quantized

__all__ = ["RULES"]

_LARGEST_INDEX_LIST = 4096
_TRIED_WITH = (2, 51)
_CONVERTER = "qnn-onnx-converter"

RULES: Registry[Situation] = Registry("situation")


def _rank(situation: Situation, node: NodeFact) -> int | None:
    fact = situation.facts.tensors.get(node.inputs[0]) if node.inputs else None
    return None if fact is None else fact.rank


@RULES.rule(
    "QNN206",
    "norm-axis",
    "error",
    what="A layer or RMS normalization over another axis than the last.",
    why="The HTP operator normalizes the last axis only.",
    fix="reshape the normalized axes into one that is the last, or write it out as reductions",
    sources=constraint("layernorm-last-axis").source,
    claim=claim_of(constraint("layernorm-last-axis")),
    cure="norm-rows",
)
def check_norm_axis(situation: Situation) -> Iterator[Found]:
    """The axis attribute against the rank."""
    for node in nodes(situation, "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"):
        rank, axis = _rank(situation, node), int(node.attributes.get("axis", -1))
        if rank is not None and axis not in (-1, rank - 1):
            yield at_node(node, f"it normalizes axis {axis} of rank {rank}, only the last is taken")


@RULES.rule(
    "QNN282",
    "repeated-before-norm",
    "warning",
    what="An Add or Mul right in front of a normalization repeats one operand for several samples.",
    why="QAIRT 2.51 makes one operator of the two that reads the smaller operand wrongly: the first sample is right, "
    "the others are not (1 to 9 dB in all, in float16 and in integers). With operands of one shape it is right. "
    "Lengths that are multiples of 8 from 16 on were hit; other releases were not tried.",
    fix="store the operand for each sample",
    sources=("onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64: 30 shapes, Add and Mul, float16 and W8A16",),
    cure="expand-before-norm",
)
def check_repeated(situation: Situation) -> Iterator[Found]:
    """By shapes, whether the operand is stored or computed."""
    for found in repeated_before_norm(situation.facts):
        shape = "x".join(str(dim) for dim in found.shape)
        yield at_node(found.node, f"{found.operand} is repeated to {shape} in front of a normalization")


@RULES.rule(
    "QNN284",
    "untranslated-operator",
    "warning",
    what="An operator that nothing is known to translate for the HTP.",
    why="Whether a converter takes it was not seen; the provider of 2.51 was tried with most, and takes none of those. "
    "What is not taken makes the converter stop, or runs on the CPU where that is allowed.",
    fix="write it with other operators before exporting, or compute it on the host",
    sources=("the rows 'untranslated' of constraints.toml",),
    cure=("simplify", "write-out-functions", "einsum-to-matmul"),
)
def check_untranslated(situation: Situation) -> Iterator[Found]:
    """One finding for each kind, with its first node; the operators stand in the data file."""
    for row in constraints().untranslated:
        if row.backend not in ("", situation.target.backend):
            continue
        taken = dynamically_quantized(situation.facts) if row.together_on == situation.target.backend else frozenset()
        for op_type in row.ops:
            found = [node for node in nodes(situation, op_type) if (node.domain or "") == row.domain]
            found = [node for node in found if node.label not in taken]
            if found:
                more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
                yield at_node(found[0], f"{row.why}{more}", sources=row.source)


@RULES.rule(
    "QNN283",
    "norm-statistics",
    "warning",
    what="A LayerNormalization that gives its mean or its deviation beside its result.",
    why="The HTP operator has one output. The provider of 2.51 leaves such a node to the CPU; what the converters do "
    "is not known.",
    fix="compute the statistics on their own",
    sources=("onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64: 19 cases of onnx's backend tests",),
    cure="norm-statistics",
)
def check_statistics(situation: Situation) -> Iterator[Found]:
    """Outputs that have a reader, or that the model gives."""
    facts = situation.facts
    for node in nodes(situation, "LayerNormalization"):
        if any(name in facts.outputs or facts.consumers_of(name) for name in node.outputs[1:] if name):
            yield at_node(node, f"it gives {len(node.outputs) - 1} statistics")


@RULES.rule(
    "QNN285",
    "short-axis-reduced",
    "warning",
    what="A 16-bit mean or sum of a turned tensor is over an axis of length 1 beside longer ones.",
    why="QAIRT 2.51 computes it wrongly (-6 to -17 dB), as the pooling of a window transformer is exported. "
    "Over the longer axes alone it is right; so are 8 bits, float16, and what was not turned. Other releases were not "
    "tried.",
    fix="leave the axes of length 1 out of the reduction",
    sources=("onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64: 16 forms, two lengths, three types",),
    cure="longer-axes",
)
def check_short_axes(situation: Situation) -> Iterator[Found]:
    """By shapes; the type is that of what is reduced, else that of the result: files leave out what only moves."""
    for found in over_short_axes(situation.facts):
        held = quantized(situation, found.source) or quantized(situation, found.node.outputs[0])
        if held is not None and held.bits == 16:
            yield at_node(found.node, f"{found.source} ({'x'.join(map(str, found.shape))}) has an axis of length 1")


@RULES.rule(
    "QNN208",
    "operator-refused",
    "error",
    what="An operator, or an attribute of one, that the HTP does not have.",
    why="The converters and the provider refuse it; the provider leaves it to the CPU where that is allowed.",
    fix="replace the operator by supported ones before converting",
    sources=constraint("unsupported-ops-htp").source,
    claim=claim_of(constraint("unsupported-ops-htp")),
    cure=("simplify", "integer-remainder", "last-index", "pool-by-taps", "cumulate-forward", "product-by-halves"),
)
def check_refused(situation: Situation) -> Iterator[Found]:
    """The operators and attribute values stand in the data file."""
    rows: dict[str, list[Refused]] = {}
    for row in constraints().refused:
        rows.setdefault(row.op, []).append(row)
    for node in nodes(situation, *rows):
        for row in rows[node.op_type]:
            if _refuses(row, node, _rank(situation, node)):
                yield at_node(node, row.why, sources=row.source, claim=claim_of(row))
    for node in nodes(situation, "Pad"):
        rank = _rank(situation, node)
        if node.attributes.get("mode") == "reflect" and rank is not None and rank > 4:
            yield at_node(node, f"reflecting padding at rank {rank}, at most 4 is taken")


def _refuses(row: Refused, node: NodeFact, rank: int | None) -> bool:
    if row.rank is not None:
        return rank == row.rank
    if not row.attribute:
        return True
    value = node.attributes.get(row.attribute)
    values = value if isinstance(value, list | tuple) else [] if value is None else [value]
    return any(str(item) != row.unless for item in values)


@RULES.rule(
    "QNN209",
    "reduce-l2-quantized",
    "warning",
    what="A quantized ReduceL2.",
    why="The provider's builders of 2026-03 refuse it; onnxruntime-qnn 2.7.0 (QAIRT 2.51) takes it. What converters "
    "do is not known.",
    fix="leave it and its input out of the encodings, or write it as Mul, ReduceSum and Sqrt",
    sources=constraint("unsupported-ops-htp").source,
)
def check_reduce_l2(situation: Situation) -> Iterator[Found]:
    """An integer type on its input or output, for releases before the one that was seen to take it."""
    for node in () if _is_recent(situation) else nodes(situation, "ReduceL2"):
        found = [quantized(situation, name) for name in (node.inputs[0], node.outputs[0])]
        if any(one is not None and one.bits for one in found):
            yield at_node(node, "it is quantized")


def _is_recent(situation: Situation) -> bool:
    """True for the release with which operators were tried here."""
    sdk = situation.target.sdk
    return sdk is not None and sdk.parsed.release >= _TRIED_WITH


@RULES.rule(
    "QNN210",
    "negative-gather-index",
    "warning",
    what="Gather, GatherND or GatherElements with negative indices.",
    why="The HTP counts from the front only. The provider of 2.51 converts stored indices, with right numbers; what "
    "other releases and the converters do is not known.",
    fix="add the dimension's size to the index",
    sources=constraint("unsupported-ops-htp").source,
    cure="index-from-front",
)
def check_negative_indices(situation: Situation) -> Iterator[Found]:
    """Stored index lists only; computed ones cannot be seen."""
    if _is_recent(situation) and situation.target.backend == "ort-qnn":
        return
    for node in nodes(situation, "Gather", "GatherND", "GatherElements"):
        fact = situation.facts.tensors.get(node.inputs[1])
        if fact is None or not fact.is_weight or not _is_small(fact.shape):
            continue
        lowest = _lowest(situation, node.inputs[1])
        if lowest is not None and lowest < 0:
            yield at_node(node, f"its index {lowest:g} is negative")


def _is_small(shape: tuple[int | str | None, ...] | None) -> bool:
    size = 1
    for dim in shape or ():
        size *= dim if isinstance(dim, int) else 1
    return size <= _LARGEST_INDEX_LIST


def _lowest(situation: Situation, name: str) -> float | None:
    from deploykit.model.collect import constant_range

    bounds = constant_range(situation.model, name)
    return None if bounds is None else bounds[0]


@RULES.rule(
    "QNN211",
    "roi-align",
    "error",
    what="RoiAlign in a form that is not taken.",
    why="Only average mode, half-pixel output coordinates and a sampling ratio above 0 exist.",
    fix="export with coordinate_transformation_mode output_half_pixel, mode avg and a fixed sampling_ratio",
    sources=constraint("roialign").source,
    claim=claim_of(constraint("roialign")),
)
def check_roi_align(situation: Situation) -> Iterator[Found]:
    """The three attributes."""
    for node in nodes(situation, "RoiAlign"):
        given = node.attributes
        wrong = [
            f"{name} {value}"
            for name, value, good in (
                ("mode", given.get("mode", "avg"), "avg"),
                ("coordinate_transformation_mode", _coordinates(situation, given), "output_half_pixel"),
            )
            if value != good
        ]
        if int(given.get("sampling_ratio", 0)) == 0:
            wrong.append("sampling_ratio 0")
        if wrong:
            yield at_node(node, ", ".join(wrong))


def _coordinates(situation: Situation, attributes: Mapping[str, Any]) -> Any:
    """The default changed from output_half_pixel to half_pixel with opset 16."""
    default = "half_pixel" if situation.facts.opset >= 16 else "output_half_pixel"
    return attributes.get("coordinate_transformation_mode", default)


@RULES.rule(
    "QNN212",
    "grid-sample",
    "warning",
    what="GridSample, or a mode of it that is not taken.",
    why="A user of releases 2.20 to 2.29 could not finalize it (q::flat_from_vtcm); the converter of 2.33 takes it, "
    "its compiler perhaps; 2.36.1 and later compile it. Linear and nearest exist, cubic does not.",
    fix="check it on the target first; export another mode than cubic, or rewrite it as Gather where it fails",
    sources=(*constraint("gridsample").source, "qualcomm/aimet#4102 (RT-DETRv2 on 2.33)"),
)
def check_grid_sample(situation: Situation) -> Iterator[Found]:
    """The mode of each node, and once for all of them what the release's table says."""
    sdk = situation.target.sdk
    row = None if sdk is None else sdk.feature("gridsample", arch=arch(situation))
    status = Status.UNKNOWN if row is None else row.status
    others = []
    for node in nodes(situation, "GridSample"):
        if node.attributes.get("mode", "linear") in ("cubic", "bicubic"):
            yield at_node(node, "the cubic mode is not taken")
        else:
            others.append(node)
    if others and status is not Status.SUPPORTED:
        version = "" if sdk is None else f" on {sdk.version}"
        count = f"{len(others)} nodes, " if len(others) > 1 else ""
        converter = None if sdk is None else sdk.feature("gridsample", tool=_CONVERTER, arch=arch(situation))
        converts = converter is not None and converter.tool and converter.status is Status.SUPPORTED
        sources = tuple(source for known in (row, converter) if known is not None for source in known.source)
        known = "; the converter takes it, whether the compiler does is not known" if converts else ""
        yield at_node(
            others[0], f"{count}{status}{version}{known}", sources=tuple(dict.fromkeys(sources)), status=str(status)
        )


@RULES.rule(
    "QNN213",
    "non-max-suppression",
    "warning",
    what="NonMaxSuppression inside the graph.",
    why="Its output has no fixed size, and only some targets' operator supplements list it.",
    fix="end the graph before it and suppress on the host",
    sources=constraint("nms").source,
)
def check_nms(situation: Situation) -> Iterator[Found]:
    """By type."""
    for node in nodes(situation, "NonMaxSuppression"):
        yield at_node(node, "keep it outside the graph unless the target's supplement lists it")


@RULES.rule(
    "QNN214",
    "scatter-reduction",
    "warning",
    what="ScatterND or ScatterElements that reduces.",
    why="ScatterND runs on the HTP, its reductions only in part, and QNN's CPU backend has none.",
    fix="use reduction none, or do the reduction before scattering",
    sources=constraint("scatter").source,
)
def check_scatter(situation: Situation) -> Iterator[Found]:
    """The reduction attribute."""
    for node in nodes(situation, "ScatterND", "ScatterElements"):
        reduction = node.attributes.get("reduction", "none")
        if reduction != "none":
            yield at_node(node, f"reduction {reduction} is taken in part only")
