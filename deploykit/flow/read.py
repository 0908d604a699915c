"""The stage ``read``: the target first, because that is cheap, then model and encodings. It decides nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from deploykit.accuracy.samples.declared import parse_declarations
from deploykit.accuracy.samples.inputs import input_specs
from deploykit.backend.backend import AnyBackend, Request, Situation
from deploykit.backend.plugins import checked_request, device_named, load_backend
from deploykit.backend.targets import Target
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import Affine, Lpbq
from deploykit.errors import UsageError
from deploykit.flow.pinning import pin
from deploykit.model import load_model
from deploykit.model.collect import collect_facts

if TYPE_CHECKING:
    from deploykit.encodings.values import EncodingSet
    from deploykit.model.facts import GraphFacts

__all__ = ["read_situation", "read_situations", "refuse_other_precision", "resolve_target"]

_WIDTHS = re.compile(r"w(\d+)a(\d+)")
_FLOATS = ("fp32", "fp16", "bf16")


def resolve_target(request: Request) -> tuple[AnyBackend, Target]:
    """The backend and the device under the wanted SDK version; raises UnknownTargetError."""
    if request.backend is not None:
        backend = load_backend(request.backend)
        return backend, backend.resolve(device_named(request.target, backend), request.sdk)
    device = device_named(request.target)
    if not device.backends:
        raise UsageError(f"target {device.id}: no installed backend packages for it", next="name one with --backend")
    backend = load_backend(device.backends[0])
    return backend, backend.resolve(device, request.sdk)


def read_situation(request: Request) -> tuple[AnyBackend, Situation]:
    """Everything known before a decision: the target first, because that is cheap, then model and encodings."""
    ((backend, situation),) = read_situations([request])
    return backend, situation


def read_situations(requests: Sequence[Request]) -> list[tuple[AnyBackend, Situation]]:
    """The same for requests that differ in their target only: model and encodings are read once."""
    targets = [resolve_target(request) for request in requests]
    requests = [checked_request(request, backend) for request, (backend, _) in zip(requests, targets, strict=True)]
    model = load_model(requests[0].model)
    facts = collect_facts(model)
    request, encodings = requests[0], None
    if request.encodings is not None:
        if facts.is_qdq:
            raise UsageError(
                f"{request.model.name}: quantized already, and encodings were given too",
                why="its QuantizeLinear and DequantizeLinear nodes hold a scale for each tensor; so do the encodings",
                next="give the float model with --encodings, or the quantized model alone",
            )
        encodings = read_placed(request.encodings, facts, float_tensors=request.float_tensors)
        refuse_other_precision(request.precision, encodings, facts)
    elif request.float_tensors is not None:
        raise UsageError("--float-tensors without --encodings", next="give the encodings it belongs to")
    pinned = pin(request, model, facts, encodings)
    if pinned.inputs:
        # A name or a value that makes no sense is told even where nothing will be run with it.
        parse_declarations(pinned.inputs, input_specs(pinned.facts))
    return [
        (
            backend,
            Situation(
                request=replace(request, inputs=pinned.inputs),
                model=pinned.model,
                facts=pinned.facts,
                encodings=pinned.encodings,
                target=target,
                rewritten=pinned.changed,
                sizes=pinned.sizes,
                choices=pinned.choices or {},
            ),
        )
        for request, (backend, target) in zip(requests, targets, strict=True)
    ]


def refuse_other_precision(asked: str | None, encodings: EncodingSet, facts: GraphFacts) -> None:
    """Raise UsageError where ``asked`` names widths, or a float type, that the encodings do not hold.

    Encodings say the precision of every tensor themselves; a name beside them that says something else would
    otherwise be left out of account without a word. Names that tell no widths are the backend's business.
    """
    held: dict[str, set[int]] = {"activations": set(), "weights": set()}
    for entry in encodings:
        fact = facts.tensors.get(entry.name)
        # 32 bits are biases, which no precision's name counts.
        if isinstance(entry.value, Affine | Lpbq) and entry.value.bits < 32 and fact is not None:
            held["weights" if fact.is_weight else "activations"].add(entry.value.bits)
    widths = _WIDTHS.fullmatch(asked or "")
    if widths is None:
        differs = asked in _FLOATS and any(held.values())
    else:
        wanted = {"weights": int(widths[1]), "activations": int(widths[2])}
        differs = any(bits and wanted[kind] not in bits for kind, bits in held.items())
    if differs:
        told = ", ".join(f"{bits}-bit {kind}" for kind, found in held.items() for bits in sorted(found))
        raise UsageError(
            f"--precision {asked}: not what the encodings say",
            why=f"{encodings.source or 'they'} hold {told}",
            next="leave out --precision to package what they say, or --encodings to package the float model",
        )
