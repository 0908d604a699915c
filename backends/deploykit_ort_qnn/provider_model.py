"""Makes a QDQ model that the provider can take as a whole: folds, fuses, completes encodings, rewrites, inserts pairs.

Each step carries the encodings along and records what it did. What cannot be changed is named with the reason. It reads
no files and starts no process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct
from onnx import ModelProto

from deploykit.encodings.complete import complete_encodings
from deploykit.encodings.insert_qdq import insert_qdq
from deploykit.encodings.lpbq import LpbqLoss, lpbq_encodings
from deploykit.encodings.new_grids import symmetric_blocks
from deploykit.encodings.qdq import extract_qdq
from deploykit.encodings.values import EncodingSet, Float8
from deploykit.findings.records import Json, Names, Published, Record
from deploykit.model.graph import view_of
from deploykit.rewrites.contract import Transform, load_transform
from deploykit_ort_qnn.forms.blocks import block_losses, blocks_to_matmul
from deploykit_ort_qnn.forms.kernel_grids import (
    REGRIDS,
    conversions_before_moves,
    find_conversions,
    gates_apart,
)
from deploykit_ort_qnn.forms.lacking import older_forms
from deploykit_ort_qnn.forms.missing_grids import (
    Observer,
    constant_grids,
    fused_grids,
    norm_scales,
    recurrent_biases,
)

__all__ = ["PreparationStep", "ProviderModel", "provider_model"]

_STRUCTURAL = (
    *("fold-batchnorm", "fuse-gelu", "fuse-hardswish", "fuse-layernorm", "expand-before-norm", "longer-axes"),
    *("global-pool", "gathernd-to-gather", "cast-labels"),
)

_WHY = {
    "complete-encodings": "data movement and Relu keep their neighbour's grid, so that whole node groups are quantized",
    "fused-grids": "inside what the device computes as one operator, where the provider wants a grid: from neighbours "
    "or data",
    "symmetric-blocks": "the compiler ignores the zero points of 4-bit blocks; 8-bit blocks hold the same numbers "
    "without them",
    "constant-grids": "a constant beside integers needs a grid; it follows from its values",
    "norm-scale": "a normalization whose scale is int8 or uint16 is refused, and one with a float scale is made float",
    "recurrent-bias": "the provider takes int32 only as the bias of a product; a recurrent layer's stays in float",
    "gate-apart": "x times Sigmoid(x) in 16 bits is one operator that is wrong at many sizes; now the two stay apart",
    "converted-moves": "what only moves values takes over their integers: they are converted to its result's grid",
    "one-width": "a node with 8-bit and 16-bit tensors would be compiled in float; its 8-bit sides are converted",
    "int16-matmul": "operand 1 of a 16-bit MatMul of two activations would be narrowed; symmetric int16 is not",
}


class PreparationStep(Published):
    """One change of the model: its name, why it was made, and the nodes or tensors that it changed."""

    id: str
    why: str
    names: Names
    losses: Mapping[str, LpbqLoss] = {}

    def as_published(self) -> Json:
        """The published fields; ``losses`` only if the step has any."""
        told = {"id": self.id, "why": self.why, "count": len(self.names), "names": self.names}
        return {**told, "losses": self.losses} if self.losses else told


class ProviderModel(Record):
    """The model to compile. ``intended`` is the intended type of every tensor, by the tensor's own name.

    ``placed`` are the types in Q/DQ nodes, ``stored`` the names of the integers, ``activations`` the tensors computed
    at run time. ``refusals`` name nodes that a rewrite almost fits, with the reason. ``float8`` are weights that no
    rewrite helps; ``narrowed`` are results of MatMuls whose operand 1 loses 8 bits.
    """

    model: ModelProto
    encodings: EncodingSet
    intended: Mapping[str, str]
    placed: Mapping[str, str]
    steps: tuple[PreparationStep, ...]
    stored: Mapping[str, str]
    activations: frozenset[str]
    skipped: Mapping[str, str]
    refusals: Names
    float8: Names
    narrowed: Names


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
    """The form of a model for the provider; with ``encodings`` None the model holds its own Q/DQ pairs, or is float.

    ``int16_matmul`` keeps 16 bits in MatMuls of two activations (HTP v73 and later). ``without`` names steps to leave
    out; ``lpbq`` turns per-block weights into LPBQ, with a loss. ``observer`` gives the evidence of
    data, if grids are missing inside fused operators. ``lacks`` are operators and forms that this
    provider does not have. The model must hold its weights.
    """
    refusals = list[str]()
    if encodings is None:
        extracted = extract_qdq(model)
        model, encodings = extracted.model, extracted.encodings
        refusals += [f"{name}: {reason}" for name, reason in extracted.kept.items()]
    given = encodings
    work = _Preparation(model=model, encodings=encodings, refusals=refusals)
    for name in (name for name in _STRUCTURAL if name not in without):
        work.apply(load_transform(name))
    work.complete()
    for form in older_forms(set(lacks) - set(without)):
        work.apply(form)
    if "fused-grids" not in without:
        work.look_inside_fused(observer)
    if lpbq:
        work.use_lpbq()
    if "blocks-to-matmul" not in without:
        work.encodings, changed = symmetric_blocks(work.encodings)
        work.note("symmetric-blocks", changed)
        if work.apply(blocks_to_matmul):
            work.complete()
    for step, change in (
        ("constant-grids", constant_grids),
        ("norm-scale", norm_scales),
        ("recurrent-bias", recurrent_biases),
    ):
        work.encodings, changed = change(work.model, work.encodings)
        work.note(step, changed)
    for form in REGRIDS:
        if form.name not in without and (int16_matmul or form.name != "even-results"):
            work.apply(form)
    return work.with_pairs(given, without, int16_matmul=int16_matmul)


class _Preparation(Struct, kw_only=True):
    """The model and its encodings at the current step, and the steps so far."""

    model: ModelProto
    encodings: EncodingSet
    steps: list[PreparationStep] = []
    refusals: list[str]

    def note(
        self, step: str, names: Iterable[str], why: str = "", losses: Mapping[str, LpbqLoss] | None = None
    ) -> None:
        """Records a step, if it changed anything."""
        changed = tuple(names)
        if changed:
            self.steps.append(PreparationStep(id=step, why=why or _WHY[step], names=changed, losses=losses or {}))

    def apply(self, transform: Transform) -> bool:
        """Rewrites the places where a transform applies. Returns whether there was any."""
        found = transform.match(self.model, self.encodings)
        self.refusals += [f"{' '.join(refusal.nodes)}: {refusal.reason}" for refusal in found.refusals]
        if found:
            done, before = transform.apply(self.model, self.encodings, found), self.encodings.entries
            assert done.encodings is not None
            self.model, self.encodings = done.model, done.encodings
            # A change of grids names no nodes, so it is reported by the tensors with another grid.
            names = [node for site in found.sites for node in site.nodes[-1:]]
            regridded = [name for name, entry in self.encodings.entries.items() if entry is not before.get(name)]
            self.note(transform.name, names or regridded, transform.summary)
        return bool(found)

    def complete(self) -> None:
        """Adds the entries that follow from those of neighbours."""
        self.encodings, origin = complete_encodings(self.model, self.encodings)
        self.note("complete-encodings", origin)

    def look_inside_fused(self, observer: Observer | None) -> None:
        """Adds grids inside fused operators, until none is new: the end of one may lie inside the next."""
        found = list[str]()
        while True:
            self.encodings, names = fused_grids(self.model, self.encodings, observer)
            found += names
            if not names:
                break
        self.note("fused-grids", found)
        if found:
            self.complete()

    def use_lpbq(self) -> None:
        """Turns per-block weights into LPBQ, and records the loss."""
        before = self.encodings
        self.encodings, left = lpbq_encodings(before)
        names = [entry.name for entry in before if entry.value is not self.encodings.entries[entry.name].value]
        self.refusals += [f"{name}: not LPBQ, {reason}" for name, reason in left.items()]
        losses = block_losses(names, before, self.encodings, view_of(self.model).stored)
        self.note("lpbq", names, "asked for; a float scale per channel times a number per block", losses)

    def with_pairs(self, given: EncodingSet, without: Collection[str], *, int16_matmul: bool) -> ProviderModel:
        """The finished model, with its Q/DQ pairs."""
        apart = {} if "gate-apart" in without else gates_apart(self.model, self.encodings)
        self.note("gate-apart", [name for name, _ in apart])
        moved = {} if "one-grid" in without else conversions_before_moves(self.model, self.encodings)
        self.note("converted-moves", dict.fromkeys(name for name, _ in moved))
        conversions = find_conversions(self.model, self.encodings, int16_matmul=int16_matmul)
        self.note("one-width", conversions.widened)
        self.note("int16-matmul", conversions.int16)
        requantize = {**apart, **moved, **conversions.requantize}
        made = insert_qdq(self.model, self.encodings, bias="int32", requantize=requantize, first=conversions.first)
        # The types of the user's entries, and those that follow for tensors made by rewrites.

        def same_width(a: str, b: str) -> bool:
            return "int" in a and "int" in b and a.lstrip("u") == b.lstrip("u")

        wanted = {
            name: made.placed[name] if same_width(entry.dtype, made.placed.get(name, "")) else entry.dtype
            for name, entry in self.encodings.entries.items()
            if name in made.placed or name not in given
        }
        return ProviderModel(
            model=made.model,
            encodings=self.encodings,
            intended={**wanted, **dict.fromkeys(sorted(given.floats), "float16")},
            placed=made.placed,
            steps=tuple(self.steps),
            stored=made.stored,
            activations=made.activations,
            skipped=made.skipped,
            refusals=tuple(self.refusals),
            narrowed=conversions.narrowed,
            float8=tuple(entry.name for entry in self.encodings if isinstance(entry.value, Float8)),
        )
