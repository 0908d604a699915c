"""The stage ``read``: the target first, because it is cheap, then model and
encodings, with the fixed sizes devices need.

``accuracy.samples.sizes`` decides the sizes and says why. A model with fixed shapes
is not changed. Nothing else is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto

from deploykit.accuracy.samples.domains import arbitrary_values, generator
from deploykit.accuracy.samples.inputs import InputSpec, input_specs
from deploykit.backend.backend import AnyBackend, Request, Same, SharedWork, Situation
from deploykit.backend.plugins import checked_request, device_named, load_backend
from deploykit.backend.requests import FLOATS, bits_of
from deploykit.backend.targets import Target
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import Affine, EncodingSet, Lpbq
from deploykit.errors import DeploykitError, UsageError
from deploykit.findings.records import Shape, replace
from deploykit.flow.cure import rewrite
from deploykit.model.collect import collect_facts, facts_of
from deploykit.model.facts import GraphFacts
from deploykit.model.graph import view_of
from deploykit.model.load import load_model, wrap_proto
from deploykit.model.pinning import branch_choices, has_stale_shapes, keep_weights_constant, pin_shapes, settle_outputs
from deploykit.model.weights import lean_weights

__all__ = ["read_situation", "read_situations", "resolve_target", "with_turned_borders"]


def resolve_target(request: Request) -> tuple[AnyBackend, Target]:
    """The backend, and the device under the requested SDK version. Raises UnknownTargetError."""
    if request.backend is not None:
        backend = load_backend(request.backend)
        return backend, backend.resolve(device_named(request.target, backend), request.sdk)
    device = device_named(request.target)
    if not device.backends:
        raise UsageError(f"target {device.id}: no installed backend packages for it", next="name one with --backend")
    backend = load_backend(device.backends[0])
    return backend, backend.resolve(device, request.sdk)


def read_situation(request: Request) -> tuple[AnyBackend, Situation]:
    """Reads everything that is known before a decision: the target first,
    because it is cheap, then model and encodings.
    """
    ((backend, situation),) = read_situations([request])
    return backend, situation


def read_situations(requests: Sequence[Request]) -> list[tuple[AnyBackend, Situation]]:
    """Reads the situations of requests that differ in their target only: model and encodings are read once."""
    targets = [resolve_target(request) for request in requests]
    requests = [checked_request(request, backend) for request, (backend, _) in zip(requests, targets, strict=True)]
    model = load_model(requests[0].model)
    changed = keep_weights_constant(model.proto) or model.reordered
    outputs = (item.type.tensor_type for item in model.proto.graph.output)
    if any(one.elem_type and not one.HasField("shape") for one in outputs):
        settle_outputs(model.proto)  # a runtime does without the shape of an output, a compiler does not
        changed = True
    facts = view_of(model.proto).keep("facts", collect_facts(model))
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
    elif facts.is_qdq and bits_of(request.precision or ""):
        raise UsageError(
            f"{request.model.name}: quantized already, and --precision {request.precision} was given too",
            why="its QuantizeLinear and DequantizeLinear nodes say the width of each tensor",
            next="leave out --precision to package it as it is, or give the float model",
        )
    elif request.float_tensors is not None:
        raise UsageError("--float-tensors without --encodings", next="give the encodings it belongs to")
    target = targets[0][1]
    given = pin(
        Situation(request=request, model=model, facts=facts, encodings=encodings, target=target, rewritten=changed)
    )
    inputs = given.request.inputs
    if inputs:  # wrong names and values are reported even if nothing is run with them
        from deploykit.accuracy.samples.calibration import parse_declarations

        parse_declarations(inputs, input_specs(given.facts))
    if request.io:  # wrong names are reported before any work
        from deploykit.rewrites.borders import asked_borders

        asked_borders(request.io, given.facts)
    return [
        (backend, replace(given, request=replace(request, inputs=inputs), target=target))
        for request, (backend, target) in zip(requests, targets, strict=True)
    ]


def with_turned_borders(situation: Situation, shared: SharedWork) -> Situation:
    """The situation with the inputs and outputs that ``--io`` names turned to N, H, W, C."""
    if not situation.request.io:
        return situation
    from deploykit.rewrites.borders import asked_borders, turn_borders

    names = asked_borders(situation.request.io, situation.facts)
    if not names:
        return situation

    def make() -> Situation:
        model, encodings = turn_borders(lean_weights(situation.model), situation.encodings, names)
        facts = replace(facts_of(model), model_name=situation.facts.model_name)
        wrapped = wrap_proto(model, path=situation.model.path)
        return replace(situation, model=wrapped, facts=facts, encodings=encodings, rewritten=True, unturned=situation)

    made = shared.once(("turned", Same(situation.model.proto), situation.encodings, names), make)
    return replace(made, request=situation.request, target=situation.target)


def refuse_other_precision(asked: str | None, encodings: EncodingSet, facts: GraphFacts) -> None:
    """Raises UsageError if ``asked`` names widths, or a float type, that the encodings do not hold.

    Encodings state the precision of every tensor; a different name beside them would be silently ignored. Names without
    widths are left to the backend.
    """
    held: dict[str, set[int]] = {"activations": set(), "weights": set()}
    for entry in encodings:
        fact = facts.tensors.get(entry.name)
        # 32 bits are biases, which a precision's name does not count.
        if isinstance(entry.value, Affine | Lpbq) and entry.value.bits < 32 and fact is not None:
            held["weights" if fact.is_weight else "activations"].add(entry.value.bits)
    widths = bits_of(asked or "")
    if widths is None:
        differs = asked in FLOATS and any(held.values())
    else:
        wanted = dict(zip(("weights", "activations"), widths, strict=True))
        differs = any(bits and wanted[kind] not in bits for kind, bits in held.items())
    if differs:
        told = ", ".join(f"{bits}-bit {kind}" for kind, found in held.items() for bits in sorted(found))
        raise UsageError(
            f"--precision {asked}: not what the encodings say",
            why=f"{encodings.source or 'they'} hold {told}",
            next="leave out --precision to package what they say, or --encodings to package the float model",
        )


# Rewrites that fixed sizes make possible: the branch that runs, the number of loops, shapes computed from shapes.
_FOLDS = ("inline-control-flow", "simplify")


def pin(given: Situation) -> Situation:
    """The situation with sizes from the request, the samples, or the model; the same one if no size is open.

    Shapes in ``--input`` are removed from the request. Raises UsageError for a stated shape that the model contradicts.
    Sizes that nothing decides stay open; a rule reports them.
    """
    request, model, facts, encodings = given.request, given.model, given.facts, given.encodings
    # Inputs of unknown rank or of text cannot be fed here: rules report them.
    fed = [facts.tensors[name] for name in facts.inputs]
    specs = input_specs(facts) if all(one.shape is not None and one.dtype != "string" for one in fed) else ()
    open_ = any(None in spec.shape for spec in specs)
    branches = any(node.op_type in ("If", "Loop") for node in facts.nodes)
    stale = not open_ and has_stale_shapes(model.proto)
    if not specs or not (open_ or branches or stale):
        return given
    from deploykit.accuracy.samples.sizes import decide_sizes, runs_with, split_shapes
    from deploykit.model.shape_inference import contradiction

    declared, texts = split_shapes(request.inputs, specs)
    proto = lean_weights(model)
    choices, texts = _stated_choices(branch_choices(proto) if branches else {}, texts)
    runs = runs_with(proto, facts, choices)
    given = replace(given, request=replace(request, inputs=texts))
    # An output with an open dimension besides the batch is dense: it has a result for each place of a picture.
    outputs = [facts.tensors[name].shape or (None, None) for name in facts.outputs]
    sizes = decide_sizes(
        facts,
        declared=declared,
        sampled=_sampled_shapes(request.calibration, specs, proto) if open_ else {},
        metadata={entry.key: entry.value for entry in model.proto.metadata_props},
        runs=runs,
        fits=lambda shapes: not contradiction(proto, shapes),
        dense=any(not isinstance(dim, int) for shape in outputs for dim in shape[1:]),
    )
    if not (sizes or choices or stale or branches):
        return given
    shapes = {item.name: item.shape for item in sizes}
    if sizes and (why := contradiction(proto, shapes)) and not runs(shapes):
        told = "; ".join(f"{item.name} {' x '.join(map(str, item.shape))} ({item.why})" for item in sizes)
        raise UsageError(
            f"{told}: the model's operators do not fit together at this size",
            why=why,
            next="give sizes that they take, with --input NAME=SIZES",
        )
    pinned = pin_shapes(proto, shapes, choices)
    was = [tensor.shape or (None,) for tensor in facts.tensors.values()]
    # Symbols of computed tensors are only removed if they hid sizes.
    if not (sizes or choices or any(not isinstance(dim, int) for shape in was for dim in shape)):
        pinned = proto
    # Folding is right by construction; a run of both forms shows that there is no defect.
    feed = {
        spec.name: arbitrary_values(
            generator(0, spec.name, 0), spec.made_shape, spec.numpy_type, is_float=spec.is_float, low=0
        )
        for spec in input_specs(collect_facts(wrap_proto(pinned, path=Path("model.onnx"))))
    }
    folded = rewrite(pinned, encodings, _FOLDS, [feed])
    if folded.problem is not None:  # an index may have no other valid value than 0
        floats = {name: value if value.dtype.kind == "f" else np.zeros_like(value) for name, value in feed.items()}
        folded = rewrite(pinned, encodings, _FOLDS, [floats])
    pinned, kept = folded.model, folded.encodings
    settle_outputs(pinned)
    if pinned is proto or not (sizes or choices or folded.kept):
        return given
    if kept is not None and encodings is not None:  # folding must not hide entries without a tensor
        strangers = {entry.name: entry for entry in encodings if entry.name not in facts.tensors}
        kept = replace(kept, entries={**strangers, **kept.entries})
    changed = wrap_proto(pinned, path=model.path)
    return replace(
        given,
        model=changed,
        facts=collect_facts(changed),
        encodings=kept,
        rewritten=True,
        sizes=sizes,
        choices=choices,
    )


def _stated_choices(choices: Mapping[str, int], texts: tuple[str, ...]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Replaces the graph's choice of a branch by the user's ``--input``; also the other ``--input`` texts."""
    stated = dict(choices)
    rest = []
    for text in texts:
        name, _, said = text.partition("=")
        if name not in stated:
            rest.append(text)
        elif said.strip().isdecimal():
            stated[name] = int(said)
        else:
            raise UsageError(f"--input {text}: {name} only chooses a branch, by a whole number")
    return stated, tuple(rest)


def _sampled_shapes(source: Path | None, specs: tuple[InputSpec, ...], model: ModelProto) -> dict[str, Shape]:
    """The shape of one sample by input, from the first file; empty if the data does not tell."""
    if source is None:
        return {}
    from deploykit.accuracy.samples.calibration import load_calibration, places_in, read_places
    from deploykit.accuracy.samples.images import fed_by_images
    from deploykit.accuracy.samples.sizes import rows_meet

    try:
        data = load_calibration(source, specs)
        if data.recipe is not None:
            fed = fed_by_images(data.recipe, specs)
            sized = fed is not None and data.recipe.width and fed.fits(data.recipe.shape)
            return {fed.name: data.recipe.shape} if fed is not None and sized else {}
        known = frozenset(spec.name for spec in specs)
        places = [places_in(file, specs, optional=known, sound=data.sound) for file in data.files[:1]]
        sample = next(read_places(places[0][:1]), {}) if places else {}
    except DeploykitError:  # the code that reads the samples reports their errors
        return {}
    shapes = {spec: sample[spec.name].shape for spec in specs if spec.name in sample}
    # An open first axis counts samples, unless they meet in the model. For a sound it may be the only axis.
    several = {spec for spec, shape in shapes.items() if shape and spec.shape[0] is None and data.sound is None}
    cut = not rows_meet(model, sample, {spec.name for spec in several if shapes[spec][0] > 1})
    return {spec.name: (1, *shape[1:]) if cut and spec in several else shape for spec, shape in shapes.items()}
