"""Makes the QDQ model that the provider takes wholly: folds, fuses, completes encodings, rewrites, inserts.

Each step carries the encodings along and says what it did; what still cannot go is named, with the reason. It reads
no files and starts nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from deploykit.encodings.complete import complete_encodings
from deploykit.encodings.insert_qdq import Skipped, insert_qdq
from deploykit.encodings.lpbq import Loss, lpbq_encodings
from deploykit.encodings.new_grids import symmetric_blocks
from deploykit.encodings.qdq import extract_qdq
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float8
from deploykit.model.graph import view_of
from deploykit.model.operators import Trait, has
from deploykit.model.weights import constant_values, element_type
from deploykit.rewrites.blocks_to_matmul import blocks_to_matmul, match_blocks, value_grid
from deploykit.rewrites.contract import load_transform
from deploykit_ort_qnn.block_losses import block_losses
from deploykit_ort_qnn.fused_grids import Observer, fused_grids
from deploykit_ort_qnn.kernel_grids import LOG_RANGE, clipped_ends, rounded_softmaxes, whole_softmax_steps, widen_logs
from deploykit_ort_qnn.node_units import even_results, find_conversions, gates_apart, symmetric_int16
from deploykit_ort_qnn.older_forms import older_forms
from deploykit_ort_qnn.one_grids import conversions_before_moves, one_grids

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

__all__ = ["ProviderModel", "Step", "provider_model"]

_STRUCTURAL = (
    *("fold-batchnorm", "fuse-gelu", "fuse-hardswish", "fuse-layernorm", "expand-before-norm", "longer-axes"),
    *("global-pool", "gathernd-to-gather"),
)

_REGRIDS = {
    "widen-log": widen_logs,
    "clip-ends": clipped_ends,
    "even-results": even_results,
    "softmax-rounding": rounded_softmaxes,
    "softmax-step": whole_softmax_steps,
    "one-grid": one_grids,
}
"""Changes of grids alone, by the name of their step."""

_WHY = {
    "widen-log": f"a 16-bit Log whose output range is below {LOG_RANGE:g} answers its minimum everywhere (QAIRT 2.51)",
    "clip-ends": "a Clip behind a convolution loses its bounds: only the ends of the grid cut off (QAIRT 2.51)",
    "even-results": "a 16-bit product of two activations is rounded to symmetric steps; its own grid has the same ones",
    "softmax-rounding": "a 16-bit Softmax cuts off to a grid from 0 to 1; to one with 0 in the middle it rounds",
    "softmax-step": "a Softmax goes on with the whole part of its input's step, counted in 2^-22 of a factor of two",
    "gate-apart": "x times Sigmoid(x) in 16 bits is one operator that is wrong at many sizes; now the two stay apart",
    "one-grid": "what only moves values takes over their integers: they are on its result's grid from the start",
    "converted-moves": "what only moves values takes over their integers: they are converted to its result's grid",
    "one-width": "a node with 8-bit and 16-bit tensors would be compiled in float; its 8-bit sides are converted",
    "int16-matmul": "operand 1 of a 16-bit MatMul of two activations would be narrowed; symmetric int16 is not",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that was done to the model: its name, how often, why, and on which nodes or tensors."""

    id: str
    why: str
    names: tuple[str, ...]
    losses: Mapping[str, Loss] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """For the manifest; ``losses`` only where the step has a loss."""
        losses = {name: loss.to_json() for name, loss in self.losses.items()}
        told = {"losses": losses} if losses else {}
        return {"id": self.id, "why": self.why, "count": len(self.names), "names": list(self.names), **told}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderModel:
    """The model to compile. ``intended`` is the type every tensor is meant to have, by the tensor's own name.

    ``placed`` are the types that Q/DQ nodes state, ``stored`` the names of the integers, ``activations`` the tensors
    computed at run time. ``refusals`` name nodes that look rewritable and are not.
    ``float8`` are weights that no rewrite helps; ``narrowed`` are results of MatMuls whose operand 1 loses 8 bits.
    """

    model: ModelProto
    encodings: EncodingSet
    intended: Mapping[str, str]
    placed: Mapping[str, str]
    steps: tuple[Step, ...]
    stored: Mapping[str, str] = field(default_factory=dict)
    activations: frozenset[str] = frozenset()
    skipped: tuple[Skipped, ...] = ()
    refusals: tuple[str, ...] = ()
    float8: tuple[str, ...] = ()
    narrowed: tuple[str, ...] = ()


def provider_model(
    model: ModelProto,
    encodings: EncodingSet | None,
    *,
    int16_matmul: bool,
    without: Collection[str] = (),
    lpbq: bool = False,
    observer: Observer | None = None,
    lacks: Collection[str] = (),
) -> ProviderModel:
    """The form of a model for the provider; ``encodings`` None means that the model holds its own Q/DQ, or is float.

    ``int16_matmul`` keeps 16 bits in MatMuls of two activations (HTP v73 and later). ``without`` names steps to leave
    out; ``lpbq`` turns per-block weights into LPBQ, with a loss. ``observer`` tells what data showed, where grids are
    missing inside fused operators. ``lacks`` are operators that this provider does not have. The model must hold its
    weights.
    """
    steps, refusals = list[Step](), list[str]()
    if encodings is None:
        extracted = extract_qdq(model)
        model, encodings = extracted.model, extracted.encodings
        refusals += [f"{name}: {reason}" for name, reason in extracted.kept.items()]
    given = encodings
    for name in _STRUCTURAL:
        if name not in without:
            model, encodings = _apply(name, model, encodings, steps, refusals)
    encodings = _complete(model, encodings, steps)
    model, encodings, forms = older_forms(model, encodings, set(lacks) - set(without))
    steps += [Step(id=name, why=why, names=names) for name, (why, names) in forms.items()]
    if "fused-grids" not in without:
        encodings = _inside_fused(model, encodings, observer, steps)
    if lpbq:
        encodings = _lpbq(model, encodings, steps, refusals)
    if "blocks-to-matmul" not in without:
        model, encodings = _blocks(model, encodings, steps, refusals)
    encodings = _norm_scales(model, constant_grids(model, encodings, steps), steps)
    encodings = _kernel_grids(model, encodings, without, steps, int16=int16_matmul)
    apart = {} if "gate-apart" in without else gates_apart(model, encodings)
    _note("gate-apart", [name for name, _ in apart], steps)
    moved = {} if "one-grid" in without else conversions_before_moves(model, encodings)
    _note("converted-moves", dict.fromkeys(name for name, _ in moved), steps)
    conversions = find_conversions(model, encodings, int16_matmul=int16_matmul)
    _note("one-width", conversions.widened, steps)
    _note("int16-matmul", conversions.int16, steps)
    made = insert_qdq(
        model, encodings, bias="int32", requantize={**apart, **moved, **conversions.requantize}, first=conversions.first
    )
    return ProviderModel(
        model=made.model,
        encodings=encodings,
        intended=_intended(given, encodings, made.placed),
        placed=made.placed,
        steps=tuple(steps),
        stored=made.stored,
        activations=made.activations,
        skipped=made.skipped,
        refusals=tuple(refusals),
        narrowed=conversions.narrowed,
        float8=tuple(entry.name for entry in encodings if isinstance(entry.value, Float8)),
    )


def _intended(given: EncodingSet, final: EncodingSet, placed: Mapping[str, str]) -> dict[str, str]:
    """What the user's entries say, and what follows from them for tensors that the rewrites made.

    A signed activation grid is written as the same unsigned one: that is no other intention.
    """
    wanted = {
        name: placed[name] if _same_width(entry.dtype, placed.get(name, "")) else entry.dtype
        for name, entry in final.entries.items()
        if name in placed or name not in given
    }
    return {**wanted, **dict.fromkeys(given.floats, "float16")}


def _same_width(a: str, b: str) -> bool:
    return "int" in a and "int" in b and a.lstrip("u") == b.lstrip("u")


def _apply(
    name: str, model: ModelProto, encodings: EncodingSet, steps: list[Step], refusals: list[str]
) -> tuple[ModelProto, EncodingSet]:
    transform = load_transform(name)
    found = transform.match(model)
    refusals += [f"{' '.join(refusal.nodes)}: {refusal.reason}" for refusal in found.refusals]
    if not found:
        return model, encodings
    done = transform.apply(model, encodings, found)
    names = tuple(node for site in found.sites for node in site.nodes[-1:])
    steps.append(Step(id=name, why=transform.summary, names=names))
    assert done.encodings is not None
    return done.model, done.encodings


def _complete(model: ModelProto, encodings: EncodingSet, steps: list[Step]) -> EncodingSet:
    completed, origin = complete_encodings(model, encodings)
    if origin:
        why = "data movement and Relu keep their neighbour's grid, so that whole node groups are quantized"
        steps.append(Step(id="complete-encodings", why=why, names=tuple(origin)))
    return completed


def _inside_fused(
    model: ModelProto, encodings: EncodingSet, observer: Observer | None, steps: list[Step]
) -> EncodingSet:
    found: list[str] = []
    while True:  # what one operator ends with may lie inside the next
        encodings, names = fused_grids(model, encodings, observer)
        if not names:
            break
        found += names
    if not found:
        return encodings
    why = "inside what the device computes as one operator, where the provider wants a grid: from neighbours or data"
    steps.append(Step(id="fused-grids", why=why, names=tuple(found)))
    return _complete(model, encodings, steps)


def _lpbq(model: ModelProto, encodings: EncodingSet, steps: list[Step], refusals: list[str]) -> EncodingSet:
    changed, left = lpbq_encodings(encodings)
    names = tuple(entry.name for entry in encodings if entry.value is not changed.entries[entry.name].value)
    refusals += [f"{name}: not LPBQ, {reason}" for name, reason in left.items()]
    if names:
        why = "asked for; a float scale per channel times a number per block"
        losses = block_losses(names, encodings, changed, view_of(model).stored)
        steps.append(Step(id="lpbq", why=why, names=names, losses=losses))
    return changed


def _blocks(
    model: ModelProto, encodings: EncodingSet, steps: list[Step], refusals: list[str]
) -> tuple[ModelProto, EncodingSet]:
    encodings, changed = symmetric_blocks(encodings)
    if changed:
        why = "the compiler ignores the zero points of 4-bit blocks; 8-bit blocks hold the same numbers without them"
        steps.append(Step(id="symmetric-blocks", why=why, names=changed))
    found = match_blocks(model, encodings)
    refusals += [f"{' '.join(refusal.nodes)}: {refusal.reason}" for refusal in found.refusals]
    if not found:
        return model, encodings
    done = blocks_to_matmul(model, encodings, found)
    assert done.encodings is not None
    why = "block-quantized weights are taken, and computed rightly, as MatMul only"
    steps.append(Step(id="blocks-to-matmul", why=why, names=tuple(node for site in found.sites for node in site.nodes)))
    return done.model, _complete(done.model, done.encodings, steps)


def _norm_scales(model: ModelProto, encodings: EncodingSet, steps: list[Step]) -> EncodingSet:
    """The scale of a normalization must be uint8 or int16: the same grid as given, or that of its values."""
    stored, entries, changed = view_of(model).stored, dict(encodings.entries), list[str]()
    for node in model.graph.node:
        name = node.input[1] if has(node, Trait.NORMALIZES) and len(node.input) > 1 else ""
        if name not in stored or name in encodings.floats:
            continue
        value = _norm_scale(entries.get(name), stored[name], wanted=bool(_common_width(node, encodings, stored)))
        if value is not None and (value.bits == 8 or node.op_type == "LayerNormalization"):
            entries[name] = Encoding(name=name, value=value, is_param=False)
            changed.append(name)
    if changed:
        why = "a normalization whose scale is int8 or uint16 is refused, and one with a float scale is made float"
        steps.append(Step(id="norm-scale", why=why, names=tuple(changed)))
    return replace(encodings, entries=entries)


def _norm_scale(entry: Encoding | None, tensor: TensorProto, *, wanted: bool) -> Affine | None:
    """The grid to use instead of the given one, None to leave it."""
    if entry is None:
        return value_grid(constant_values(tensor), 8) if wanted else None
    value = entry.value
    if not isinstance(value, Affine) or value.scale.size != 1 or value.signed != (value.bits == 8):
        return None
    if value.bits == 16:
        return symmetric_int16(value)
    return replace(value, signed=False, zero_point=value.zero_point - value.lowest)


def constant_grids(model: ModelProto, encodings: EncodingSet, steps: list[Step]) -> EncodingSet:
    """Constants of elementwise operators whose other sides are integers get the grid of their values.

    An int32 grid is one of a bias: the provider refuses it here. Where a product without a grid is added to a bias,
    ONNX Runtime makes one layer of the two and stores the bias itself, so the constant stays float.
    """
    stored, entries, changed = view_of(model).stored, dict(encodings.entries), list[str]()
    for node in model.graph.node:
        if not has(node, Trait.COMBINES) and node.op_type != "PRelu":
            continue
        width = _common_width(node, encodings, stored)
        for name in node.input:
            entry = encodings.get(name)
            is_bias = entry is not None and isinstance(entry.value, Affine) and entry.value.bits == 32
            if name not in stored or not (entry is None or is_bias) or name in encodings.floats:
                continue
            entries.pop(name, None)
            if width and stored[name].data_type == element_type("float"):
                value = value_grid(constant_values(stored[name]), width)
                entries[name] = Encoding(name=name, value=value, is_param=False)
                changed.append(name)
    if changed:
        why = "a constant beside integers needs a grid; it follows from its values"
        steps.append(Step(id="constant-grids", why=why, names=tuple(changed)))
    return replace(encodings, entries=entries)


def _common_width(node: NodeProto, encodings: EncodingSet, stored: Mapping[str, object]) -> int:
    """The output's width when all tensors computed at run time have integer grids, else 0."""
    names = [*(name for name in node.input if name not in stored), *node.output]
    values = [entry.value for name in names if (entry := encodings.get(name)) is not None]
    if len(values) < len(names) or not all(isinstance(value, Affine) and value.bits in (8, 16) for value in values):
        return 0
    last = values[-1]
    return last.bits if isinstance(last, Affine) else 0


def _kernel_grids(
    model: ModelProto, encodings: EncodingSet, without: Collection[str], steps: list[Step], *, int16: bool
) -> EncodingSet:
    """Grids that kernels compute rightly with."""
    for name, change in _REGRIDS.items():
        if name not in without and (int16 or name != "even-results"):
            encodings, changed = change(model, encodings)
            _note(name, changed, steps)
    return encodings


def _note(name: str, changed: Collection[str], steps: list[Step]) -> None:
    if changed:
        steps.append(Step(id=name, why=_WHY[name], names=tuple(changed)))
