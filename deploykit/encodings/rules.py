"""Rules about encodings on the graph they are meant for: entries that fit no tensor, contradict it, or hide something.

Malformed encodings were refused while reading. Codes DK101 to DK149; whether a device takes a grid is for the adapters
to say.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from deploykit.encodings.values import Affine, Encoding, EncodingSet, Lpbq
from deploykit.findings import Severity, listed
from deploykit.findings.records import Names, Record
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.model.operators import BIAS, LARGEST_FLOAT16, WEIGHT, Trait, has, ops

if TYPE_CHECKING:
    from deploykit.model.facts import GraphFacts

__all__ = ["RULES", "EncodingsOnGraph"]

# The most names in a message.
_SHOWN = 10
# Editorial: with fewer of its own steps a part of a Concat is as good as lost.
_FEW_STEPS = 32
# How far 1 / scale may lie from a whole number: scales are written with seven digits.
_WHOLE = 1e-5
# The most tensor names among which the nearest one is looked for.
_COMPARED = 20_000
_AIMET = "aimet-onnx 2.42.0, observed"


class EncodingsOnGraph(Record, dict=True):
    """Encodings, placed on the graph they are for.

    Modules that need arrays are imported inside functions, since every listing of rules loads this file.
    """

    encodings: EncodingSet
    facts: GraphFacts

    @property
    def source(self) -> str:
        """The name of the encodings file, for messages."""
        return self.encodings.source or "the encodings"

    @property
    def names(self) -> tuple[Names, Names]:
        """All tensors with an entry or named as float; and those of them that the graph does not have."""
        names = tuple(dict.fromkeys((*self.encodings.entries, *sorted(self.encodings.float_tensors))))
        return names, tuple(name for name in names if name not in self.facts.tensors)

    def known(self) -> Iterator[Encoding]:
        """The entries of tensors that the graph has."""
        return (entry for entry in self.encodings if entry.name in self.facts.tensors)


RULES = Registry[EncodingsOnGraph]("encodings")


@RULES.rule("DK101", "unknown-tensor", "error", f"{_AIMET}: loading a file with an unknown tensor raises")
def check_unknown_tensor(context: EncodingsOnGraph) -> Finds:
    """Entries whose name no tensor of the model has.

    A converter drops such an entry without a word, and the tensor it was meant for gets some default precision.

    Fix: use the model that the encodings were exported with ('deploykit quantize' leaves it beside them: model.onnx)
    or correct the names
    """
    # One finding for all unknown names, unless none fits at all.
    names, strangers = context.names
    if not strangers or len(strangers) == len(names):
        return
    # The tensor whose name looks most like it; comparing with very many names would take too long.
    near = {
        name: (
            []
            if len(context.facts.tensors) > _COMPARED
            else difflib.get_close_matches(name, context.facts.tensors, n=1, cutoff=0.5)
        )
        for name in strangers[:_SHOWN]
    }
    shown = ", ".join(name + (f" (nearest: {found[0]})" if found else "") for name, found in near.items())
    yield Found(
        "encodings",
        context.source,
        f"{len(strangers)} of {len(names)} names are no tensor of the model: {shown}"
        + listed(strangers, most=_SHOWN).removeprefix(", ".join(strangers[:_SHOWN])),
        evidence={"names": list(strangers), "nearest": {name: found[0] for name, found in near.items() if found}},
    )


@RULES.rule("DK102", "foreign-encodings", "error", f"{_AIMET}: a file fits the model that the same export call wrote")
def check_foreign_encodings(context: EncodingsOnGraph) -> Finds:
    """Encodings of which not one names a tensor of the model.

    They belong to another model, or the model was exported again and its tensors were renamed.

    Fix: use the model that was exported together with the encodings
    """
    names, strangers = context.names
    if names and len(strangers) == len(names):
        yield Found(
            "encodings",
            context.source,
            f"none of the {len(names)} entries names a tensor of {context.facts.model_name or 'the model'}; "
            f"the first are {', '.join(names[:3])}",
            evidence={"names": list(names[:_SHOWN])},
        )


@RULES.rule(
    "DK103",
    "float-set-unknown",
    "warning",
    (f"{_AIMET}: explicit and omitted float16 give the same 2.0.0 file", "qualcomm/aimet#4106"),
    cure="simplify",
)
def check_float_set_unknown(context: EncodingsOnGraph) -> Finds:
    """Encodings of version 2.0.0, which has no entries for 16-bit floats, without a list of the float tensors.

    A tensor without an entry may be meant to be float16, or may simply never have been quantized: the file looks the
    same, and a converter fills the gap with its default precision.

    Fix: name the float tensors with --float-tensors, or export version 1.0.0, which has float entries
    """
    # A warning where tensors are left, an info where every tensor has an entry or a reason to have none.
    if not context.encodings.version.startswith("2.") or context.encodings.float_tensors:
        return
    from deploykit.encodings.float_sets import missing_entries

    missing = missing_entries(context.facts, context.encodings)
    left = (
        f"{len(missing)} tensors have no entry: {listed(missing, most=_SHOWN)}"
        if missing
        else "no tensor lacks an entry"
    )
    yield Found(
        "encodings",
        context.source,
        f"version {context.encodings.version} cannot say which tensors are float16, none were named; {left}",
        severity=None if missing else Severity.INFO,
        evidence={"missing": list(missing)},
    )


@RULES.rule(
    "DK104",
    "step-beyond-float16",
    "warning",
    f"{_AIMET}: an anchor constant of 1e30 gets a uint8 scale of 3.9e27, and the model 7.9 dB",
    cure=("simplify", "mask-constant"),
)
def check_step_beyond_float16(context: EncodingsOnGraph) -> Finds:
    """A scale so large that a single step of the grid exceeds the range of float16.

    Every ordinary value rounds to zero: such scales come from constants like 1e30 that stand for infinity.

    Fix: clamp the constant, or keep the tensors it reaches in float
    """
    for entry in context.known():
        step = float(entry.value.scale.max()) if isinstance(entry.value, Affine) else 0.0
        if step > LARGEST_FLOAT16:
            yield Found(
                "tensor",
                entry.name,
                f"{entry.name}: one {entry.dtype} step is {step:.3g}, so that values below half of it become 0",
                evidence={"scale": step},
            )


@RULES.rule(
    "DK105",
    "unplaceable-list",
    "error",
    f"{_AIMET}: loading a blockwise 0.6.1 file fails on the length of the list",
)
def check_unplaceable_list(context: EncodingsOnGraph) -> Finds:
    """A list of scales whose axes neither the file states nor the model settles.

    Version 0.6.1 lists blockwise scales without their block size, and no reader can place them, not even AIMET.

    Fix: export version 1.0.0 or 2.0.0, which state the block size
    """
    # One finding per tensor that stayed unplaced on a graph that has it.
    for entry in context.known():
        value = entry.value
        if not isinstance(value, Affine | Lpbq) or value.placed:
            continue
        count = int(value.block_scale.size if isinstance(value, Lpbq) else value.scale.size)
        shape = context.facts.tensors[entry.name].shape
        known = "unknown shape" if shape is None else "x".join("?" if d is None else str(d) for d in shape)
        yield Found(
            "tensor",
            entry.name,
            f"{entry.name}: {count} scales for a tensor of {known}, along no axis that is stated or follows "
            "from the model",
            severity=None if shape is not None else Severity.WARNING,
            evidence={"scales": count, "version": context.encodings.version},
        )


@RULES.rule(
    "DK106",
    "asymmetric-weight",
    "warning",
    (
        "https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html (choose symmetric weights)",
        f"{_AIMET}: its device configurations quantize parameters symmetrically",
    ),
)
def check_asymmetric_weight(context: EncodingsOnGraph) -> Finds:
    """A weight whose grid is not symmetric around zero.

    An accumulator then needs a correction by the sum of the inputs; most integer kernels take symmetric weights only,
    and the others run slower.

    Fix: quantize weights symmetrically, unless the backend's documentation says that it takes them like this
    """
    # One finding for all weights together, since a file is usually all one way.
    import numpy as np

    from deploykit.model.parameters import parameter_uses

    # Weights of norms only scale, and are left out.
    linear = {
        name
        for name, uses in parameter_uses(context.facts).items()
        if any(use.role == WEIGHT and use.channel_axis is not None for use in uses)
    }
    names = []
    for entry in context.known():
        value = entry.value
        if isinstance(value, Affine) and entry.name in linear:
            middle = value.lowest + (1 << (value.bits - 1))
            if not np.isin(value.zero_point - middle, (0.0, -0.5)).all():
                names.append(entry.name)
    if names:
        yield Found(
            "encodings",
            context.source,
            f"{len(names)} weights are asymmetric: {listed(names, most=_SHOWN)}",
            evidence={"names": list(names)},
        )


@RULES.rule("DK107", "narrow-bias", "warning", ("qualcomm/aimet#2443", "qualcomm/aimet#4050"))
def check_narrow_bias(context: EncodingsOnGraph) -> Finds:
    """A bias quantized to fewer than 32 bits.

    A bias is added to 32-bit sums; on a coarser grid it shifts every output of its channel.

    Fix: leave the entry out, so that an int32 one is derived from input and weight
    """
    from deploykit.model.parameters import parameter_uses

    uses = parameter_uses(context.facts)
    for entry in context.known():
        roles = {use.role for use in uses.get(entry.name, ())}
        if 0 < entry.integer_bits < 32 and BIAS in roles:
            yield Found(
                "tensor",
                entry.name,
                f"{entry.name}: a bias on a grid of {entry.dtype}",
                evidence={"dtype": entry.dtype},
            )


@RULES.rule(
    "DK108",
    "regrid-in-movement",
    "warning",
    (f"{_AIMET}: outputs of data movement copy their input's entry", "qualcomm/aimet#4074"),
)
def check_regrid_in_movement(context: EncodingsOnGraph) -> Finds:
    """A data-movement op whose input and output have different grids.

    Moving data changes no value, so that both grids describe the same numbers; a converter inserts a requantization
    there, or keeps only one of the two.

    Fix: give both tensors the same entry, or leave one of them out
    """
    from deploykit.encodings.formats.differences import compare_values

    for node in context.facts.nodes:
        holds_same = has(node, Trait.REARRANGES, Trait.SELECTS) and has(node, Trait.AIMET_COPIES)
        source = context.encodings.get(node.inputs[0]) if holds_same and node.inputs else None
        if source is None:
            continue
        for copy in filter(None, map(context.encodings.get, node.outputs)):
            if {source.value.granularity, copy.value.granularity} != {"per-tensor"}:
                continue
            changes = compare_values(source.value, copy.value, grid_only=True, tolerance=1e-6)
            if changes:
                yield Found(
                    "node",
                    node.label,
                    f"{node.op_type} {node.label}: {source.name} is {source.dtype}, {copy.name} is "
                    f"{copy.dtype}, with another " + " and ".join(change.field for change in changes),
                    evidence={"input": source.name, "output": copy.name, "changes": list(map(str, changes))},
                )


@RULES.rule("DK109", "entry-on-integers", "error", f"{_AIMET}: only floating-point tensors get quantizers")
def check_entry_on_integers(context: EncodingsOnGraph) -> Finds:
    """An entry for a tensor that holds integers or booleans in the model.

    Shapes, indices and conditions are not quantized: the entry belongs to another tensor.

    Fix: use the model that the encodings were exported with, or remove the entry
    """
    for entry in () if context.facts.is_qdq else context.known():
        fact = context.facts.tensors[entry.name]
        if fact.dtype and not fact.is_float:
            yield Found(
                "tensor",
                entry.name,
                f"{entry.name} holds {fact.dtype} in the model, but has an entry of {entry.dtype}",
                evidence={"dtype": fact.dtype, "encoding": entry.dtype},
            )


@RULES.rule(
    "DK110",
    "symmetric-off-centre",
    "warning",
    f"{_AIMET}: the flag only chooses between a signed and an unsigned grid, the offset counts",
)
def check_symmetric_off_centre(context: EncodingsOnGraph) -> Finds:
    """An entry that claims to be symmetric while its grid is not centred.

    Readers disagree: some take the offset, some take zero because the flag says so.

    Fix: export again; if the grid is meant, the flag must be false
    """
    # One finding per tensor; strict and unsigned symmetry, which AIMET has, are no contradiction.
    for entry in context.known():
        value = entry.value
        if not isinstance(value, Affine) or not value.symmetric or not value.signed:
            continue
        centres = (0.0, -0.5, -1.0, float(value.lowest))
        odd = next((zero for zero in value.zero_point.ravel().tolist() if zero not in centres), None)
        if odd is not None:
            yield Found(
                "tensor",
                entry.name,
                f"{entry.name}: called symmetric, but zero lies at step {odd:g} of {entry.dtype}",
                evidence={"zero_point": odd},
            )


@RULES.rule(
    "DK111",
    "mixed-widths",
    "info",
    "qualcomm/aimet#4090 (147 conversions: 46.6 ms against 14.3 ms, as reported)",
)
def check_mixed_widths(context: EncodingsOnGraph) -> Finds:
    """Elementwise ops whose two quantized inputs have different integer widths.

    One operand must be converted before the op, which costs time and, downwards, precision.

    Fix: give both operands the same width where that costs no accuracy
    """
    nodes = []
    for node in context.facts.nodes:
        values = (entry.value for entry in map(context.encodings.get, node.inputs) if entry is not None)
        widths = {value.bits for value in values if isinstance(value, Affine)}
        if len(widths) > 1 and has(node, Trait.COMBINES, Trait.JOINS):
            nodes.append(node.label)
    if nodes:
        yield Found(
            "model",
            context.facts.model_name or "model",
            f"{len(nodes)} ops join inputs of different widths: {listed(nodes, most=_SHOWN)}",
            evidence={"nodes": list(nodes)},
        )


_MOVED = ops(Trait.RESHAPES) | {"Transpose"}


@RULES.rule("DK112", "one-sided-decision", "warning", "the entry of what the Sigmoid reads")
def check_one_sided_decisions(context: EncodingsOnGraph) -> Finds:
    """A score of the model cannot get to the other side of 1/2: the range of what its Sigmoid reads ends before zero.

    The samples that were calibrated on held no case of that kind, such as a wake word that nobody spoke. On the device
    such a case is cut off, and comparing on the same samples shows nothing.

    Fix: calibrate with samples that hold both answers
    """
    from deploykit.encodings.new_grids import range_of

    for output in context.facts.outputs:
        node = context.facts.maker_behind(output, _MOVED, "Sigmoid")
        ends = None if node is None else range_of(context.encodings.get(node.inputs[0]))
        if ends is not None and not ends[0] < 0 < ends[1]:
            never = "above" if ends[1] <= 0 else "below"
            yield Found(
                "tensor",
                output,
                f"{output} is never {never} 0.5: its Sigmoid reads {ends[0]:.4g} to {ends[1]:.4g}",
                evidence={"range": list(ends)},
            )


@RULES.rule("DK113", "index-on-a-grid", "warning", "the entry, and the Cast that reads the tensor")
def check_indices(context: EncodingsOnGraph) -> Finds:
    """A float tensor of indices, only read by a Cast to integers, on a grid that does not hold the whole numbers.

    An index of 152 becomes 151.998, and the Cast cuts it off to 151: another row of the table, another word.

    Fix: give the tensor a scale of 1, or no entry
    """
    from deploykit.model.patterns import casts_of_indices

    for entry in context.known():
        if isinstance(entry.value, Affine) and casts_of_indices(context.facts, entry.name):
            step = float(entry.value.scale.max())
            if abs(1 / step - round(1 / step)) > _WHOLE:
                yield Found(
                    "tensor",
                    entry.name,
                    f"{entry.name} is cast to integers, and its scale of {step:.4g} does not hold whole numbers",
                    evidence={"step": step},
                )


@RULES.rule("DK250", "coarse-join", "warning", "the entries of the Concat and of its parts")
def check_coarse_joins(context: EncodingsOnGraph) -> Finds:
    """A Concat behind the network puts values of unlike ranges on one grid, which leaves some of them few steps.

    Boxes of 0..640 and scores of 0..1 on one 8-bit grid: every score becomes 0 or 1, and whole-tensor metrics still
    look good, since the boxes make all of the energy.

    Fix: give --calibration: the post-processing then gets 16-bit grids, or its parts outputs of their own, whichever is
    measured best
    """
    # Each part with the steps that are left to it.
    from deploykit.encodings.new_grids import range_of
    from deploykit.encodings.post_processing import Harm, find_post_processing

    ranges = {entry.name: ends for entry in context.known() if (ends := range_of(entry)) is not None}
    found = find_post_processing(context.facts, ranges.get)
    made = {node.label: node.outputs[0] for node in context.facts.nodes if node.op_type == "Concat"}
    for hurt in found.hurts if found is not None else ():
        entry = context.encodings.get(made[hurt.node]) if hurt.harm is Harm.UNLIKE else None
        if entry is None or range_of(entry) is None or not isinstance(entry.value, Affine):
            continue
        step = float(entry.value.scale.max())
        for part in hurt.parts:
            steps = (part.high - part.low) / step
            if steps < _FEW_STEPS:
                others = ", ".join(str(other) for other in hurt.parts if other is not part)
                yield Found(
                    "node",
                    hurt.node,
                    f"{hurt.node}: one step is {step:.4g}, which leaves {part} {max(steps, 1):.0f} of them; it "
                    f"is joined with {others}",
                    evidence={"part": str(part), "steps": steps, "step": step},
                )
