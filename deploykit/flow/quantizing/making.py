"""A float model, a target, a precision and calibration data become a model with encodings, judged.

It joins the stages: divide the samples, pick the quantizer, run its job, measure. It writes no report and no package.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from deploykit.accuracy.samples.data_quality import MOST
from deploykit.backend.quantizers import QuantizerAsked
from deploykit.errors import InputError, ToolError, UsageError
from deploykit.flow.quantizing.choosing import Picked, options_of, pick
from deploykit.flow.quantizing.numbers import Numbers, measure
from deploykit.flow.quantizing.rules import RULES, QuantizedNumbers
from deploykit.flow.quantizing.running import QuantizerRun, run_quantizer
from deploykit.flow.quantizing.samples import Division, divide, read_decoded, read_held_out
from deploykit.flow.quantizing.weight_methods import SECONDS, asked_of
from deploykit.flow.samples import about_samples
from deploykit.model.collect import collect_facts
from deploykit.packages.writing import hash_file

if TYPE_CHECKING:
    from deploykit.backend.backend import AnyBackend, Progress, Request
    from deploykit.backend.targets import Target
    from deploykit.findings import Finding
    from deploykit.model import Model
    from deploykit.model.facts import GraphFacts

__all__ = ["Made", "Making"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Made:
    """Encodings that a quantizer made, with everything there is to say about them."""

    precision: str
    picked: Picked
    options: dict[str, Any]
    division: Division
    ran: QuantizerRun
    numbers: Numbers
    model: Model
    target: Target

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the rules say of what was made; ``about_data`` says the same of what it was made from."""
        return RULES.run(
            QuantizedNumbers(
                model=self.model.path.name, precision=self.precision, picked=self.picked, numbers=self.numbers
            )
        )

    def about_data(self) -> tuple[Finding, ...]:
        """What there is to say of the samples, as the quantizer was given them and against the model as given."""
        feeds = read_decoded(self.ran.folder, MOST)
        facts = collect_facts(self.model)
        available = len(self.division.seen) + len(self.division.held_out)
        data = self.division.calibration
        return about_samples(self.model, facts, data, feeds, available=available, gives_ranges=True)

    def to_json(self) -> dict[str, Any]:
        """What ran, on what, with which versions, how long, and what came out; no path of this machine."""
        files = [("model", self.model.path), *(("external-data", one.path) for one in self.model.external)]
        result = self.ran.result
        environment = self.picked.environment
        return {
            "quantizer": self.picked.quantizer.id,
            "toolchain": "" if environment is None else environment.spec.id,
            "precision": self.precision,
            "target": self.target.device.id,
            "sdk": self.target.sdk_json()["version"],
            "options": self.options,
            "versions": result.get("versions", {}),
            "seconds": result.get("seconds", {}),
            "notes": result.get("notes", []),
            "inputs": [{"role": role, "name": path.name, "sha256": hash_file(path)[1]} for role, path in files],
            "calibration": self.division.to_json(),
            "numbers": self.numbers.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Making:
    """What encodings are made from; ``options`` are the quantizer's own, ``timeout`` is in seconds."""

    request: Request
    backend: AnyBackend
    target: Target
    model: Model
    facts: GraphFacts
    progress: Progress
    options: tuple[tuple[str, str], ...] = ()
    timeout: float | None = None

    def encodings(self, precision: str | None) -> Made:
        """Run the quantizer that was asked for, or the best one that is installed; None is its first precision.

        Raises UsageError for what makes no sense, InputError for a model that is quantized already or has nothing to
        calibrate with, ToolError when it fails.
        """
        request, model, facts = self.request, self.model, self.facts
        if facts.is_qdq:
            raise InputError(f"{model.path}: holds Q/DQ nodes already", next="give the float model")
        if request.calibration is None:
            raise UsageError(
                "a quantizer needs data", next="give --calibration: .npz or .npy samples, or a folder of images"
            )
        picked = pick(self.backend, self.target, request.quantizer, precision)
        name = precision or picked.quantizer.precisions(self.target)[0]
        values = dict(options_of(picked.quantizer, self.options))
        self.progress("dividing the calibration data")
        division = divide(request.calibration, facts)
        plan = picked.quantizer.plan(QuantizerAsked(precision=name, target=self.target, options=values))
        ran = run_quantizer(picked, plan, model, division, progress=self.progress, timeout=self.timeout)
        self.progress("simulating what came out")
        numbers = measure(model, facts, ran, read_held_out(ran.folder), seen=not division.held_out)
        return Made(
            precision=name,
            picked=picked,
            options=values,
            division=division,
            ran=ran,
            numbers=numbers,
            model=model,
            target=self.target,
        )

    def candidate(self, name: str) -> Made:
        """As ``encodings`` for one candidate among several, ``w8a16`` or ``w8a16+METHOD``.

        A method has a time limit of its own. Where the user's other options exclude it, that is a ToolError: the other
        candidates go on.
        """
        quantizer = pick(self.backend, self.target, self.request.quantizer, name.partition("+")[0]).quantizer
        precision, more = asked_of(quantizer, name)
        if not more:
            return replace(self.encodings(precision), precision=name)
        try:
            limited = replace(self, options=(*self.options, *more), timeout=min(SECONDS, self.timeout or SECONDS))
            return replace(limited.encodings(precision), precision=name)
        except UsageError as error:
            raise ToolError(error.what, why=error.why, next=error.next) from None
