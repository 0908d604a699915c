"""The quantizer as a step of packaging: a float model with an integer precision gets encodings.

It decides whether the step applies; ``making`` does the work.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from deploykit.backend.backend import AnyBackend, Request, Same, SharedWork, Situation
from deploykit.encodings.read import read_placed
from deploykit.errors import ToolError, UsageError
from deploykit.findings.records import Tell, replace
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from deploykit.model.operators import Trait, has
from deploykit.system.files import with_folder

if TYPE_CHECKING:
    from deploykit.flow.quantizing.making import Made

__all__ = ["AUTO", "quantized_situation", "quantizes"]

AUTO = "auto"
NONE = "none"
"""The name that means no quantizer: the target's own tools calibrate."""


def quantized_situation(backend: AnyBackend, given: Situation, shared: SharedWork, tell: Tell) -> Situation:
    """The situation with encodings made here, if an integer precision is requested for a float model with data.

    Otherwise the same situation. Raises UsageError if a quantizer was named and none can run.
    """
    request = given.request
    if not quantizes(backend, given):
        _refuse_unused(backend, request)
        return given
    # A model with encodings, as most have, does not need these modules.
    from deploykit.backend.quantizers import QuantizedModel
    from deploykit.flow.candidates import make_asked, make_best
    from deploykit.flow.quantizing.choosing import quantizers_for
    from deploykit.flow.quantizing.making import Making

    ids = {one.id for one in quantizers_for(backend, given.target)}
    own = tuple((key, value) for key, value in request.options if key.partition(".")[0] in ids)
    making = Making(
        backend=backend,
        given=given,
        progress=tell,
        options=tuple((key.partition(".")[2], value) for key, value in own),
        shared=shared,
    )

    def situated(made: Made) -> Situation:
        """The situation with the quantized model in place of the float one; the quantizer's options are removed."""

        def read() -> Situation:
            # The files get the user's own name, which packages and reports show.
            folder = made.ran.folder / "named" / made.ran.encodings.stem
            shutil.rmtree(folder, ignore_errors=True)
            path, encodings = folder / request.model.name, (folder / request.model.name).with_suffix(".encodings")
            sources = {path: made.ran.model, encodings: made.ran.encodings}
            sources |= {folder / external.location: external.path for external in load_model(made.ran.model).external}
            for place, source in sources.items():
                os.link(source, with_folder(place))
            model = load_model(path)
            facts = collect_facts(model)
            asked = replace(request, model=path, encodings=encodings)
            return replace(given, request=asked, model=model, facts=facts, encodings=read_placed(encodings, facts))

        found = shared.once(("read again", Same(made.ran)), read)
        asked = replace(
            request,
            model=found.request.model,
            encodings=found.request.encodings,
            precision=None if request.precision == AUTO else request.precision,
            options=tuple(pair for pair in request.options if pair not in own),
        )
        assert request.calibration is not None
        quantized = QuantizedModel(
            model=given.request.model,
            calibration=request.calibration,
            record=made.to_json(),
            findings=(*made.findings, *made.about_data()),
        )
        return replace(found, request=asked, target=given.target, quantized=quantized)

    if request.precision != AUTO:
        try:
            return situated(make_asked(making))
        except ToolError as error:
            loop = next((node for node in given.facts.nodes if has(node, Trait.CONTROL_FLOW)), None)
            if loop is None:
                raise
            asked = f"deploykit check {request.model} --target {request.target} --precision fp16"
            raise ToolError(
                f"{loop.op_type} {loop.name} runs another graph, which the quantizer did not take",
                why=f"{error.what}: {error.why}",
                next=f"see whether it can run at all: {asked}",
            ) from None
    made, ladder = make_best(making, situated)
    if made is not None:
        return replace(situated(made), ladder=ladder.to_json())
    if ladder.chosen is None:  # not even the float model reaches the goal
        raise UsageError(
            f"--precision auto: {ladder.why}",
            why=ladder.advised,
            next="see what costs it with 'deploykit accuracy layers', or ask for less with --goal",
        )
    return replace(given, request=replace(request, precision="fp16"), ladder=ladder.to_json())


def quantizes(backend: AnyBackend, given: Situation) -> bool:
    """True if ``quantized_situation`` would make encodings."""
    request = given.request
    if given.encodings is not None or given.facts.is_qdq or not backend.offers("quantizers"):
        return False
    from deploykit.backend.requests import bits_of

    return (
        (request.precision == AUTO or bits_of(request.precision or "") is not None)
        and request.calibration is not None
        and request.compile is not False
        and request.quantizer != NONE
        and not backend.calibrates_itself(given)
    )


def _refuse_unused(backend: AnyBackend, request: Request) -> None:
    """Raises UsageError for a named quantizer that will not run, and for ``auto`` without data."""
    if request.precision == AUTO and request.calibration is None and backend.offers("quantizers"):
        raise UsageError(
            f"--precision {AUTO}: nothing to measure the candidates on",
            why="each precision is made and judged on your samples",
            next="give --calibration DIR|FILE.npz, or name a precision",
        )
    asked = request.quantizer
    own = backend.quantizer or NONE
    if asked in (None, NONE, own):
        return
    if request.encodings is not None:
        raise UsageError(f"--with {asked}: encodings were given", next="leave out one of them")
    raise UsageError(
        f"--with {asked}: nothing to quantize here",
        why="it runs where an integer precision is asked of a float model, with calibration data, for a backend that "
        "takes encodings",
        next="give --precision w8a16 and --calibration, or leave it out",
    )
