"""Lint rules about operators and their attributes. Codes QNN206, QNN208 to QNN213 and QNN282 to QNN287."""

from __future__ import annotations

import math
from collections.abc import Iterable

from deploykit.backend.backend import Situation
from deploykit.findings.records import Names, grouped
from deploykit.findings.rules import Finds, Registry
from deploykit.model.facts import GraphFacts, NodeFact
from deploykit.model.operators import QUANTIZERS
from deploykit.model.patterns import repeated_before_norm
from deploykit.tables.capabilities import Status
from deploykit_qualcomm.rules.constraints import claim_of, constraint, constraints, limit
from deploykit_qualcomm.rules.views import (
    about_several,
    arch,
    at_node,
    nodes,
    quantized,
    sdk_of,
)

__all__ = ["RULES"]


_LARGEST_INDEX_LIST = 4096  # elements: reading longer lists takes too long for a lint
_TRIED_WITH = (2, 51)
_CONVERTER = "qnn-onnx-converter"

RULES = Registry[Situation]("situation")


@RULES.rule(
    "QNN206",
    "norm-axis",
    "error",
    **limit("layernorm-last-axis"),
    cure="norm-rows",
)
def check_norm_axis(situation: Situation) -> Finds:
    """A layer or RMS normalization over another axis than the last.

    The HTP operator normalizes the last axis only.

    Fix: reshape the normalized axes into one that is the last, or write it out as reductions
    """
    for node in nodes(situation, "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"):
        rank, axis = situation.facts.tensor(node.inputs[0]).rank, node.axis(-1)
        if rank is not None and axis not in (-1, rank - 1):
            yield at_node(node, f"it normalizes axis {axis} of rank {rank}, only the last is taken")


@RULES.rule(
    "QNN282",
    "repeated-before-norm",
    "warning",
    "onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64: 30 shapes, Add and Mul, float16 and W8A16",
    cure="expand-before-norm",
)
def check_repeated(situation: Situation) -> Finds:
    """An Add or Mul right in front of a normalization repeats one operand for several samples.

    QAIRT 2.51 makes one operator of the two that reads the smaller operand wrongly: the first sample is right, the
    others are not (1 to 9 dB in all, in float16 and in integers). With operands of one shape it is right. Lengths that
    are multiples of 8 from 16 on were hit; other releases were not tried.

    Fix: store the operand for each sample
    """
    # By shapes, for stored and computed operands.
    for node, operand, _, shape in repeated_before_norm(situation.facts):
        repeated = f"{operand} is repeated to {'x'.join(map(str, shape))} in front of a normalization"
        yield at_node(node, f"{repeated}: QAIRT 2.51 computes it wrong")


@RULES.rule(
    "QNN284",
    "untranslated-operator",
    "warning",
    "the rows 'untranslated' of constraints.toml",
    cure=("simplify", "write-out-functions", "einsum-to-matmul", "reverse-by-index"),
)
def check_untranslated(situation: Situation) -> Finds:
    """An operator that nothing is known to translate for the HTP.

    Whether a converter takes it was not seen; the provider of 2.51 was tried with most, and takes none of those but
    some Einsums. What is not taken makes the converter stop, or runs on the CPU where that is allowed.

    Fix: write it with other operators before exporting, or compute it on the host
    """
    # One finding for each operator type, with its first node; the operators are listed in the data file.
    for row in constraints().untranslated:
        if row.backend not in ("", situation.target.backend):
            continue
        of_domain = {node.op_type for node in situation.facts.nodes if node.domain == row.domain}
        for op_type in row.ops or sorted(of_domain.difference(row.all_but)):
            found = [node for node in nodes(situation, op_type) if (node.domain or "") == row.domain]
            if found:
                more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
                yield at_node(found[0], f"{row.why}{more}", sources=row.source)
    # Also operators of a domain that neither ONNX nor ONNX Runtime has, if the model does not define them.
    facts, theirs = situation.facts, ("ai.onnx.", "com.microsoft", "com.ms.")
    strange = {
        node.op_type: node for node in reversed(facts.nodes) if not f"{node.domain or 'ai.onnx'}.".startswith(theirs)
    }
    for name, node in strange.items():
        if name not in facts.functions:
            yield at_node(node, f"no operator of ONNX, and the model holds no function for {node.domain}")


@RULES.rule(
    "QNN283",
    "norm-statistics",
    "warning",
    "onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64: 19 cases of onnx's backend tests",
    cure="norm-statistics",
)
def check_statistics(situation: Situation) -> Finds:
    """A LayerNormalization that gives its mean or its deviation beside its result.

    The HTP operator has one output. The provider of 2.51 leaves such a node to the CPU; what the converters do is not
    known.

    Fix: compute the statistics on their own
    """
    # Outputs that have a reader, or are outputs of the model.
    facts = situation.facts
    for node in nodes(situation, "LayerNormalization"):
        if _read(facts, node.outputs[1:]):
            yield at_node(
                node, f"it gives {len(node.outputs) - 1} statistics beside its result; the HTP operator has one output"
            )


def _read(facts: GraphFacts, names: Iterable[str]) -> list[str]:
    return [name for name in names if name in facts.outputs or facts.consumers_of(name)]


@RULES.rule(
    "QNN287",
    "far-dilation",
    "warning",
    "onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64: 128 channels, 7,500 steps, dilations to 4,096",
    cure="conv-by-shifts",
)
def check_far_dilation(situation: Situation) -> Finds:
    """A convolution along one axis whose places lie 256 steps apart or more.

    The compiler of 2.51 takes seconds for one with a dilation of 128, 80 s with 512, and with 1024 more memory than
    there is.

    Fix: write it as a 1x1 convolution of parts that are shifted
    """
    for node in nodes(situation, "Conv"):
        far = [steps for steps in node.attributes.get("dilations") or () if steps > 255]
        if far:
            yield at_node(
                node,
                f"its places lie {max(far)} steps apart: the compiler may need minutes, or more memory than there is",
            )


@RULES.rule(
    "QNN286",
    "clip-to-computed-bounds",
    "warning",
    "onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64: a spectrogram that stays 80 dB below its peak",
    cure="clip-to-extremes",
)
def check_computed_bounds(situation: Situation) -> Finds:
    """A Clip whose bounds are computed.

    The HTP operator has its bounds as parameters. The provider of 2.51 leaves such a node to the CPU.

    Fix: write it with Max and Min
    """
    for node in nodes(situation, "Clip"):
        if any(name and not situation.facts.is_stored(name) for name in node.inputs[1:]):
            yield at_node(node, "its bounds are computed; the HTP has them as constants")


@RULES.rule(
    "QNN285",
    "short-axis-reduced",
    "warning",
    "onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64: 16 forms, two lengths, three types",
    cure="longer-axes",
)
def check_short_axes(situation: Situation) -> Finds:
    """A mean or sum of integers is over an axis of length 1 beside longer ones.

    QAIRT 2.48 and 2.51 compute it wrongly (-3 to -17 dB) of a 16-bit tensor that was turned, as the pooling of a window
    transformer is exported, or that a MatMul gives, and of 5 dimensions in 8 bits too. Over the longer axes alone it is
    right, and so is float16. Other releases were not tried.

    Fix: leave the axes of length 1 out of the reduction
    """
    # By shapes; the type is that of the reduced tensor, else of the
    # result: files leave out tensors that are only moved.
    facts = situation.facts
    for node in nodes(situation, "ReduceMean", "ReduceSum"):
        given, made = facts.static_shape(node.inputs[0]), facts.static_shape(node.outputs[0])
        held = quantized(situation, node.inputs[0]) or quantized(situation, node.outputs[0])
        if given is None or made is None or held is None or (held.bits < 16 and len(given) < 5):
            continue
        count = len(node.attributes.get("axes", given))
        if node.operand(1):
            count = (facts.static_shape(node.inputs[1]) or (0,))[0]
        if 0 < sum(dim > 1 for dim in given) - sum(dim > 1 for dim in made) < count:
            yield at_node(
                node, f"{node.inputs[0]} ({'x'.join(map(str, given))}) is reduced over an axis of length 1, often wrong"
            )


@RULES.rule(
    "QNN208",
    "operator-refused",
    "error",
    **limit("unsupported-ops-htp"),
    cure=(
        "simplify",
        "integer-remainder",
        "pool-by-taps",
        "cumulate-forward",
        "product-by-halves",
        "pad-by-borders",
        "equal-of-bools",
        "float-exponent",
        "one-hot-of-floats",
        "cast-by-int32",
        "zeros-in-kernel",
        "usual-activations",
        "transposed-to-conv",
        "index-from-front",
    ),
)
def check_refused(situation: Situation) -> Finds:
    """An operator, or an attribute of one, that the HTP does not have.

    The converters and the provider refuse it; the provider leaves it to the CPU where that is allowed.

    Fix: replace the operator by supported ones before converting
    """
    # The data file lists the operators and attribute values.
    facts, backend = situation.facts, situation.target.backend
    rows = grouped((row.op, row) for row in constraints().refused if row.backend in ("", backend))
    for node in nodes(situation, *rows):
        rank = facts.tensor(node.inputs[0]).rank
        types = [facts.tensor(name).dtype for name in node.inputs]
        for row in rows[node.op_type]:
            value = node.attributes.get(row.attribute, [])
            values = value if isinstance(value, list | tuple) else [value]
            refused = not row.attribute or any(str(item) not in row.unless.split() for item in values)
            if row.computed:
                given = filter(None, node.inputs[row.computed : row.computed + 1])
                refused = not all(facts.tensors[name].is_weight for name in given)
            if row.gives:
                refused = bool(_read(facts, node.outputs[row.gives : row.gives + 1]))
            if refused and row.rank in (None, rank) and (not row.types or {*row.types} & {*types[row.since :]}):
                yield at_node(node, row.why, sources=row.source, claim=claim_of(row))


@RULES.rule(
    "QNN210",
    "negative-gather-index",
    "warning",
    constraint("unsupported-ops-htp").source,
    cure="index-from-front",
)
def check_negative_indices(situation: Situation) -> Finds:
    """Gather, GatherND or GatherElements with negative indices.

    The HTP counts from the front only. The provider of 2.51 converts stored indices, with right numbers; what other
    releases and the converters do is not known.

    Fix: add the dimension's size to the index
    """
    # Only stored indices; computed ones cannot be seen.
    if situation.target.backend == "ort-qnn" and sdk_of(situation).parsed.release >= _TRIED_WITH:
        return
    for node in nodes(situation, "Gather", "GatherND", "GatherElements"):
        from deploykit.model.collect import constant_range

        size = math.prod(situation.facts.static_shape(node.inputs[1]) or ())
        bounds = constant_range(situation.model, node.inputs[1]) if size <= _LARGEST_INDEX_LIST else None
        if bounds is not None and bounds[0] < 0:
            yield at_node(node, f"its index {bounds[0]:g} is negative")


@RULES.rule("QNN211", "roi-align", "error", **limit("roialign"))
def check_roi_align(situation: Situation) -> Finds:
    """RoiAlign in a form that is not taken.

    Only average mode, half-pixel output coordinates and a sampling ratio above 0 exist.

    Fix: export with coordinate_transformation_mode output_half_pixel, mode avg and a fixed sampling_ratio
    """
    for node in nodes(situation, "RoiAlign"):
        given = node.attributes
        # The default of the coordinates changed with opset 16.
        default = "half_pixel" if situation.facts.opset >= 16 else "output_half_pixel"
        wanted = {"mode": ("avg", "avg"), "coordinate_transformation_mode": (default, "output_half_pixel")}
        found = {name: (given.get(name, default), good) for name, (default, good) in wanted.items()}
        wrong = [f"{name} {value}" for name, (value, good) in found.items() if value != good]
        if int(given.get("sampling_ratio", 0)) == 0:
            wrong.append("sampling_ratio 0")
        if wrong:
            yield at_node(node, ", ".join(wrong))


@RULES.rule(
    "QNN212",
    "grid-sample",
    "warning",
    (*constraint("gridsample").source, "qualcomm/aimet#4102 (RT-DETRv2 on 2.33)"),
)
def check_grid_sample(situation: Situation) -> Finds:
    """GridSample, or a mode of it that is not taken.

    A user of releases 2.20 to 2.29 could not finalize it (q::flat_from_vtcm); the converter of 2.33 takes it, its
    compiler perhaps; 2.36.1 and later compile it. Linear and nearest exist, cubic does not.

    Fix: check it on the target first; export another mode than cubic, or rewrite it as Gather where it fails
    """
    # A finding for the mode of each node, and one for all of them from the release's table.
    sdk = sdk_of(situation)
    row = sdk.feature("gridsample", arch=arch(situation))
    status = Status.UNKNOWN if row is None else row.status
    others = []
    for node in nodes(situation, "GridSample"):
        if "cubic" in node.attributes.get("mode", "linear"):
            yield at_node(node, "the cubic mode is not taken")
        else:
            others.append(node)
    if others and status is not Status.SUPPORTED:
        count = f"{len(others)} nodes, " if len(others) > 1 else ""
        converter = sdk.feature("gridsample", tool=_CONVERTER, arch=arch(situation))
        converts = converter is not None and converter.tool and converter.status is Status.SUPPORTED
        sources = tuple(source for known in (row, converter) if known is not None for source in known.source)
        known = "; the converter takes it, whether the compiler does is not known" if converts else ""
        yield at_node(
            others[0],
            f"{count}{status} on {sdk.version}{known}",
            sources=tuple(dict.fromkeys(sources)),
            status=str(status),
        )


@RULES.rule("QNN213", "non-max-suppression", "warning", constraint("nms").source)
def check_nms(situation: Situation) -> Finds:
    """NonMaxSuppression inside the graph.

    Its output has no fixed size, and only some targets' operator supplements list it.

    Fix: end the graph before it and suppress on the host
    """
    for node in nodes(situation, "NonMaxSuppression"):
        yield at_node(node, "keep it outside the graph unless the target's supplement lists it")


_SHALLOW = 4  # channels: pictures have three, or four
_WIDE = 128  # the least side of a large picture
_RMS_TAIL = ("ReduceMean", "Add", "Sqrt")
_COSTS = "onnxruntime-qnn 2.7.0 (QAIRT 2.51) run on Linux x86-64: its cost model for QCS9075"


@RULES.rule("QNN219", "decomposed-rms-norm", "info", (*constraint("executorch-pass-group").source, _COSTS))
def hint_rms_norm(situation: Situation) -> Finds:
    """An RMS normalization written out as Pow, ReduceMean, Add, Sqrt and Div.

    The HTP has RmsNorm as one operator. Written out, two layers with a norm of 384 values between them took 2.3 (w8a16)
    to 3.3 (float16) times as long by the compiler's own cost model, and the square leaves float16 early.

    Fix: export RMSNormalization (opset 23), or let the vendor's recomposition pass find it
    """
    # The chain from the square to the root; for x - mean(x) it is a LayerNormalization, which has its own operator.
    facts = situation.facts
    labels = []
    for node in nodes(situation, "Pow", "Mul"):
        minus = facts.maker_behind(node.inputs[0], QUANTIZERS, "Sub")
        is_centred = minus is not None and facts.maker_behind(minus.inputs[1], QUANTIZERS, "ReduceMean") is not None
        if (node.op_type == "Mul" and len(set(node.inputs)) != 1) or is_centred:
            continue
        last = _chain(facts, node, _RMS_TAIL)
        readers = () if last is None else facts.consumers_of(last.outputs[0])
        if any(reader.op_type in ("Div", "Reciprocal") for reader in readers):
            labels.append(node.label)
    if labels:
        yield about_several(labels, f"{len(labels)} RMS normalizations are written out")


def _chain(facts: GraphFacts, node: NodeFact, op_types: Names) -> NodeFact | None:
    """The last node of a chain of these types behind a node, seen through Q/DQ pairs; None if there is no
    such chain.
    """
    for op_type in op_types:
        name = node.outputs[0]
        while (pair := facts.only_reader(name, *QUANTIZERS)) is not None:
            name = pair.outputs[0]
        following = next((reader for reader in facts.consumers_of(name) if reader.op_type == op_type), None)
        if following is None:
            return None
        node = following
    return node


@RULES.rule(
    "QNN220",
    "shallow-convolution-input",
    "info",
    (*constraint("vendor-guideline-group").source, _COSTS),
)
def hint_shallow(situation: Situation) -> Finds:
    """A convolution over a large picture with at most four channels.

    The vendor's guideline advises space-to-depth for shallow inputs: the HTP works on 32 channels at a time. Two
    convolutions behind a picture of 256 x 256 took 0.72 (w8a16) to 0.84 (w8a8) of the time by the compiler's model.

    Fix: fold pixels into channels before the first convolution where the accuracy of the export can be checked
    """
    # Conv of rank 4 with few channels and both sides of at least 128.
    labels = []
    for node in nodes(situation, "Conv"):
        sizes = situation.facts.static_shape(node.inputs[0]) or ()
        if len(sizes) == 4 and sizes[1] <= _SHALLOW and min(sizes[2:]) >= _WIDE:
            labels.append(node.label)
    if labels:
        yield about_several(labels, f"{len(labels)} convolutions see at most four channels")
