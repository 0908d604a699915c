"""Lint rules about shapes: ranks, types, memory. Codes QNN200, QNN204, QNN205, QNN207, QNN222, QNN274."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from deploykit.backend.backend import Situation
from deploykit.findings import Severity
from deploykit.findings.records import Json
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.model.facts import GraphFacts
from deploykit.model.operators import QUANTIZERS, Trait, ops
from deploykit.model.parameters import stored_behind_pairs
from deploykit.tables.capabilities import Feature, Status
from deploykit_qualcomm.rules.constraints import claim_of, constraint, constraints, limit
from deploykit_qualcomm.rules.views import (
    about_several,
    arch,
    at_node,
    bits_of,
    byte_count,
    is_computed,
    listed,
    nodes,
    quantized,
    rewrite_advice,
    sdk_of,
)

__all__ = ["RULES"]


_MAX_RANK = 5  # as in the row rank-max-5 of constraints.toml
_MOVES = frozenset({"Reshape", "Transpose", *QUANTIZERS})
_REFUSES_MOVES = (2, 36)
_LEAVES_ONES = (2, 51)
# In one unsigned process domain on SM8750, 3.652 GB were refused and about 3.62 GB loaded.
_DOMAIN_BYTES = 3_500_000_000

RULES = Registry[Situation]("situation")


@RULES.rule(
    "QNN200",
    "rank-above-5",
    "error",
    (*constraint("rank-max-5").source, "qualcomm/aimet#4086 (fp16 on 2.41)"),
    claim=claim_of(constraint("rank-max-5")),
    cure=("simplify", "merge-axes", "sums-to-matmul", "reshape-behind"),
)
def check_rank(situation: Situation) -> Finds:
    """A tensor with more than five dimensions.

    HTP tensors have at most five; the converter or the provider refuses the node. Reshapes and transposes alone are
    merged by some releases, and then it is a warning: a windowed ViT compiles in fp16 on 2.41; the compiler of 2.36.1
    refuses them, and a user of 2.42 had to squeeze his. The provider of 2.51 took six dimensions of which the first is
    one in 21 of 22 small quantized graphs, and none of another first: there it is a note.

    Fix: merge dimensions around the operation: Reshape, Transpose and Reshape of rank 6 are often a SpaceToDepth,
    DepthToSpace or two steps of rank 5
    """
    # Every tensor, constants included; an error if an operator computes on it or the release refuses to move it.
    names = sorted(fact.name for fact in situation.facts.tensors.values() if (fact.rank or 0) > _MAX_RANK)
    if names:
        moved = _only_moved(situation, set(names))
        one = sdk_of(situation).parsed.release >= _LEAVES_ONES and situation.target.backend == "ort-qnn"
        one &= any(node.op_type == "DequantizeLinear" for node in situation.facts.nodes)
        one &= all((situation.facts.tensors[name].shape or ())[:1] == (1,) for name in names)
        told = ", all between reshapes and transposes, which some releases merge" if moved else ""
        yield Found(
            "tensor",
            names[0],
            f"{len(names)} tensors have more than {_MAX_RANK} dimensions: {listed(names)}{told}",
            severity=None if not moved else Severity.INFO if one else Severity.WARNING,
            evidence={"tensors": names, "only_moved": moved},
        )


def _only_moved(situation: Situation, names: set[str]) -> bool:
    """True if only reshapes, transposes and their Q/DQ pairs touch these tensors, all inside the graph.

    At the graph's border there is nothing to merge them with: 2.51 refuses a lone Transpose of rank 6.
    """
    if sdk_of(situation).parsed.release[:2] == _REFUSES_MOVES:
        return False
    if names.intersection((*situation.facts.inputs, *situation.facts.outputs)):
        return False
    touching = [node for node in situation.facts.nodes if names.intersection((*node.inputs, *node.outputs))]
    return bool(touching) and all(node.op_type in _MOVES for node in touching)


@RULES.rule(
    "QNN204",
    "row-exceeds-vtcm",
    "error",
    **limit("per-op-vtcm"),
)
def check_row(situation: Situation) -> Finds:
    """A Softmax, reduction, normalization or search along a last axis that does not fit into the VTCM.

    Such an operator needs one row of its axis in VTCM at four bytes per element; spilling to memory happens between
    operators only. Prepare ends with 1002, or with 'greater than the TCM size'.

    Fix: split the axis: reshape it into two, work along the last one, then combine the parts
    """
    # The data file lists the operators and their bytes per element; other axes are tiled and do not matter.
    megabytes = situation.target.device.fact("vtcm_mb")
    if not isinstance(megabytes, int):
        return
    rows = {row.op: row for row in constraints().row_operand}
    for node in nodes(situation, *rows):
        shape, row = situation.facts.tensor(node.inputs[0]).shape or (None,), rows[node.op_type]
        length, last = shape[-1], {-1, len(shape) - 1}
        # Only an attribute can name another axis; an axis given as input counts as the last.
        axes = node.attributes.get("axes", node.attributes.get("axis", -1))
        if not isinstance(length, int) or last.isdisjoint(axes if isinstance(axes, list | tuple) else [axes]):
            continue
        needed = length * row.bytes_per_element
        if needed > megabytes << 20:
            yield at_node(
                node,
                f"a row of {length} elements needs {needed:,} bytes, the VTCM has {megabytes << 20:,}",
                sources=row.source,
                claim=claim_of(row),
                bytes=needed,
                vtcm_bytes=megabytes << 20,
            )


@RULES.rule("QNN222", "operand-exceeds-vtcm", "warning", constraint("per-op-vtcm").source)
def check_operands(situation: Situation) -> Finds:
    """A normalization over whole channels whose operands are larger than the VTCM.

    Older releases need them in VTCM as a whole and end with code 13 and 1002; QAIRT 2.51 compiles them.

    Fix: use a newer SDK, reduce the spatial size, or use another normalization
    """
    # Releases before the one that was seen to compile it.
    megabytes = situation.target.device.fact("vtcm_mb")
    whole = {row.op: row for row in constraints().whole_operand}
    if not isinstance(megabytes, int):
        return
    for node in nodes(situation, *whole):
        row = whole[node.op_type]
        if sdk_of(situation).parsed >= Version(row.before):
            continue
        sizes = [byte_count(situation, name) for name in (*node.inputs[:1], *node.outputs[:1])]
        total = sum(size for size in sizes if size is not None)
        if total > megabytes << 20:
            yield at_node(
                node,
                f"{total / (1 << 20):.1f} MB of operands, the VTCM has {megabytes} MB",
                sources=row.source,
                bytes=total,
                vtcm_bytes=megabytes << 20,
            )


@RULES.rule("QNN205", "int64-input", "warning", constraint("int64").source)
def check_int64(situation: Situation) -> Finds:
    """A graph input or output of type int64.

    It becomes int32 on the device unless it is kept explicitly; raw calibration and input files must have the type the
    converted graph declares, or every value is read wrong. ONNX Runtime converts it by itself.

    Fix: export with int32, or feed int32 where the converted graph declares it
    """
    # Only inputs and outputs: the converters handle tensors inside.
    facts = situation.facts
    for name in (*facts.inputs, *facts.outputs) if situation.target.backend != "ort-qnn" else ():
        if facts.tensor(name).dtype == "int64":
            yield Found("tensor", name, f"{name} is int64; the device has int32")


@RULES.rule(
    "QNN207",
    "operator-rank",
    "error",
    **limit("rank-limits"),
    cure=("rank-four", "norm-rows"),
)
def check_operator_rank(situation: Situation) -> Finds:
    """An operator at a rank at which it is not taken.

    The operator builders of the vendor's provider refuse it; the native tools follow the same supplement.

    Fix: reshape to rank 4 around the operator
    """
    # The data file lists the ranks.
    limits = {row.op: row for row in constraints().op_rank}
    for node in nodes(situation, *limits):
        rank, row = situation.facts.tensor(node.inputs[0]).rank, limits[node.op_type]
        if rank is not None and not row.lowest <= rank <= row.highest:
            allowed = f"{row.lowest} to {row.highest}" if row.lowest else f"at most {row.highest}"
            yield at_node(
                node, f"its input has rank {rank}, {allowed} is taken", sources=row.source, claim=claim_of(row)
            )


@RULES.rule("QNN274", "weights-exceed-domain", "warning", constraint("pd-size").source)
def check_domain(situation: Situation) -> Finds:
    """Weights, or one tensor, that do not fit into one process domain of the DSP.

    A context of 3.652 GB was refused on SM8750 ('Failed to find available PD'), about 3.62 GB loaded. A single tensor
    that is larger is held by no chip, and the compiler looks for a way for minutes, so it is not asked.

    Fix: split the model into several contexts, or use fewer bits per weight
    """
    facts = situation.facts
    for fact in facts.tensors.values():
        # Only computed tensors: a weight may get fewer bits.
        size = 0 if fact.is_weight else byte_count(situation, fact.name) or 0
        if size > _DOMAIN_BYTES:
            yield Found(
                "tensor",
                fact.name,
                f"{fact.name} takes {size / 1e9:.3g} GB; one domain takes about 3.5 GB",
                severity=Severity.ERROR,
                evidence={"bytes": size, "limit": _DOMAIN_BYTES},
            )
            return
    # The bytes of the stored tensors at their width on the device; other buffers are not counted.
    if facts.weight_bytes < _DOMAIN_BYTES:
        return
    total = sum(byte_count(situation, f.name) or 0 for f in facts.tensors.values() if f.is_weight and f.is_float)
    total = total or facts.weight_bytes
    if total > _DOMAIN_BYTES:
        bits = sorted({bits_of(situation, f.name) for f in facts.tensors.values() if f.is_weight and f.is_float})
        yield Found(
            "model",
            situation.request.model.name,
            f"about {total / 1e9:.2f} GB of weights (widths {bits}); one domain takes about 3.5 GB",
            evidence={"bytes": total, "limit": _DOMAIN_BYTES},
        )


_PASSING = ops(Trait.REARRANGES, Trait.COMBINES) | {"Cast", "Concat", *QUANTIZERS}
_COMPILERS = {"qnn-htp": "qnn-context-binary-generator", "ort-qnn": "onnxruntime-qnn"}
_REACH = 64  # the most tensors looked at behind a layer: attention is a few operators away
_MOST_WORK = 250_000  # the most borders times nodes: more takes too long for a lint
# The most operators in an extension that is looked for.
_SMALL = 12


def _linears(situation: Situation) -> Iterator[tuple[str, str]]:
    """Yields MatMuls of a rank-3 tensor by a stored weight whose result reaches a product of two activations.

    Each comes with its output tensor: behind the bias Add, and behind a pair.
    """
    facts = situation.facts
    for node in nodes(situation, "MatMul"):
        if facts.tensor(node.inputs[0]).rank != 3 or stored_behind_pairs(facts, node.inputs[1]) is None:
            continue
        output = node.outputs[0]
        for _ in range(3):
            reader = facts.only_reader(output, "Add", *QUANTIZERS)
            if reader is None:
                break
            output = reader.outputs[0]
            if reader.op_type == "Add":
                break
        if _enters_attention(facts, output):
            yield node.label, output


def _enters_attention(facts: GraphFacts, name: str) -> bool:
    waiting, seen = [name], {name}
    while waiting and len(seen) < _REACH:
        for reader in facts.consumers_of(waiting.pop()):
            if reader.op_type == "MatMul" and all(is_computed(facts, operand) for operand in reader.inputs[:2]):
                return True
            if reader.op_type in _PASSING:
                fresh = [output for output in reader.outputs if output and output not in seen]
                waiting += fresh
                seen.update(fresh)
    return False


def _row(situation: Situation) -> Feature | None:
    """The table's row about the tool that compiles for this backend: the report is about one tool only."""
    tool = _COMPILERS.get(situation.target.backend, "")
    row = sdk_of(situation).feature("vit-3d-linear", tool=tool, arch=arch(situation))
    return row if row is not None and row.arch else None


@RULES.rule("QNN215", "rank-3-linear-into-attention", "error", (*constraint("keep-4d").source, "qualcomm/aimet#4086"))
def check_rank_3_linear(situation: Situation) -> Finds:
    """A quantized linear layer on rank 3 (MatMul and Add) whose result enters attention.

    On v73 with SDK 2.41 the quantized Add got an internal 5-D layout that the kernel lacks: 'could not create op:
    q::linearclip', for every such layer of the encoder.

    Fix: try --rewrite linear-to-conv, or use an SDK that is known to take them
    """
    # An error if the SDK's row says broken, a warning if nothing is known.
    row = _row(situation)
    if row is None or row.status is Status.SUPPORTED:
        return
    labels = [label for label, output in _linears(situation) if _is_integer(situation, output)]
    if labels:
        where = f"{arch(situation)} with {sdk_of(situation).version}"
        yield about_several(
            labels,
            f"{len(labels)} rank-3 linear layers enter attention, which is {row.status} on {where}",
            severity=None if row.status is Status.BROKEN else Severity.WARNING,
            hint=f"{rewrite_advice(situation, 'linear-to-conv')}, or use an SDK that is known to take them",
            sources=row.source,
            evidence={"status": str(row.status), "contradicts": row.contradicts},
        )


def _is_integer(situation: Situation, name: str) -> bool:
    found = quantized(situation, name)
    return found is not None and bool(found.bits)


@RULES.rule("QNN271", "attention-partly-float", "warning", "qualcomm/aimet#4086")
def check_partly_float(situation: Situation) -> Finds:
    """Linear layers that enter attention, some of them quantized and some left in float.

    In qualcomm/aimet#4086 every partial exclusion moved the failure to the next block, and converting back and forth
    cost more than the float layers saved (67 ms against 60 ms for all of it in fp16).

    Fix: keep whole blocks in one precision: extend the float set to the block, or quantize all of it
    """
    # Applies if the architecture has a row about such layers and the SDK is not known to take them.
    row = _row(situation)
    if row is None or row.status is Status.SUPPORTED or situation.encodings is None:
        return
    linears = list(_linears(situation))
    kept = [label for label, output in linears if not _is_integer(situation, output)]
    if kept and len(kept) < len(linears):
        message = f"{len(kept)} of {len(linears)} rank-3 linear layers into attention stay float: {listed(kept)}"
        yield Found("node", kept[0], message, evidence={"float": kept, "layers": len(linears)})


@RULES.rule("QNN270", "float-borders", "warning", ("qualcomm/aimet#4086", "qualcomm/aimet#4090"), cure="simplify")
def check_borders(situation: Situation) -> Finds:
    """Places where data changes between float16 and integers because of the tensors that are left in float.

    Each one is a Convert at run time. In qualcomm/aimet#4090 147 of them made a 14 ms model take 47 ms, and a border in
    the middle of attention is where kernels are missing.

    Fix: make the float set larger by the tensors that are named, or smaller: few whole blocks cost least
    """
    # The borders of the float set that follows from the encodings, and the operators that remove most of them.
    if situation.encodings is None:
        return
    facts = situation.facts
    from deploykit.encodings.float_sets import predict_float_set, suggest_extensions

    prediction = predict_float_set(facts, situation.encodings)
    if not prediction.borders or not prediction.predicted:
        return
    labels = list(dict.fromkeys(border["node"] for border in prediction.borders))
    ignored = prediction.absorbed.keys()
    best = list[Json]()
    if len(prediction.borders) * len(facts.nodes) <= _MOST_WORK:
        best = suggest_extensions(facts, prediction.predicted, ignored=ignored, most_nodes=_SMALL)[:1]
    advice = "".join(
        f"; {listed(more['tensors'])} in float too would remove {more['removed']} of them" for more in best
    )
    yield Found(
        "encodings",
        (situation.request.encodings or situation.request.model).name,
        f"{len(prediction.borders)} borders between float and integers at {len(labels)} operators: "
        f"{listed(labels)}{advice}",
        evidence={
            "borders": list(prediction.borders),
            "operators": len(labels),
            "extension": best,
        },
    )
