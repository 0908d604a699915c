"""A float model, a target, a precision and calibration data become a model with encodings, judged.

It joins the stages: divide the samples, pick the quantizer, run its job, measure on the samples that it did not see.
It writes no report and no package.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.accuracy.judge.judge import Judge
from deploykit.accuracy.samples.data_quality import MOST
from deploykit.accuracy.samples.inputs import Label
from deploykit.accuracy.simulate.simulation import Fidelity, Simulator, compare_outputs, overall_sqnr_db
from deploykit.backend.quantizers import QuantizerAsked
from deploykit.encodings.read import read_placed
from deploykit.errors import InputError, ToolError, UsageError
from deploykit.flow.quantizing.choosing import SECONDS, Picked, options_of, pick
from deploykit.flow.quantizing.running import Division, QuantizerRun, divide, read_decoded, read_held_out, run_quantizer
from deploykit.flow.rules import QUANTIZED_RULES, QuantizedNumbers
from deploykit.flow.samples import about_samples
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.weights import lean_weights
from deploykit.packages.manifests import hash_file

if TYPE_CHECKING:
    from deploykit.accuracy.judge.verdict import Verdict
    from deploykit.accuracy.simulate.sessions import Feed
    from deploykit.backend.backend import AnyBackend, Progress, Request
    from deploykit.backend.targets import Target
    from deploykit.findings import Finding
    from deploykit.model import Model
    from deploykit.model.facts import GraphFacts

__all__ = ["Made", "Making", "Numbers", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Numbers:
    """SQNR in dB over all outputs: deploykit's simulation, the quantizer's own, and how near the two are to each other.

    ``agreement_db`` takes the quantizer's as the signal; infinite where they are bit for bit the same. ``seen`` is True
    where no sample could be held out.
    """

    sqnr_db: float
    quantizer_db: float | None
    agreement_db: float | None
    largest_difference: float | None
    outputs: tuple[Fidelity, ...]
    verdict: Verdict
    samples: int
    seen: bool

    def to_json(self) -> dict[str, Any]:
        """The published shape; what is not finite is None beside ``exact``."""
        return {
            "sqnr_db": _finite(self.sqnr_db),
            "quantizers_own": {
                "sqnr_db": _finite(self.quantizer_db),
                "agreement_db": _finite(self.agreement_db),
                "exact": self.agreement_db == math.inf,
                "largest_difference": self.largest_difference,
            },
            "outputs": [output.to_json() for output in self.outputs],
            "verdict": self.verdict.to_json(),
            "samples": {"count": self.samples, "held_out": not self.seen},
        }


def measure(given: Model, facts: GraphFacts, ran: QuantizerRun, feeds: Sequence[Feed], *, seen: bool) -> Numbers:
    """Run the float model as given and the quantized one on the samples, and hold the quantizer's own outputs beside.

    Raises ToolError where the quantized model's outputs are not those of the model as given.
    """
    quantized = load_model(ran.model)
    placed = read_placed(ran.encodings, collect_facts(quantized))
    judge = Judge(lean_weights(given), facts, feeds, label=Label.GIVEN)
    weights = lean_weights(quantized)
    if tuple(value.name for value in weights.graph.output) != judge.names:
        raise ToolError(f"{ran.model}: its outputs are not those of {given.path.name}", next=f"look at {ran.folder}")
    simulator = Simulator(weights, placed)
    shown = simulator.runs(feeds)
    reference = [{name: row[name] for name in judge.names} for row in judge.reference]
    outputs = [{name: row[name] for name in judge.names} for row in shown]
    own = _own(ran.folder, judge.names)
    return Numbers(
        sqnr_db=overall_sqnr_db(reference, outputs),
        quantizer_db=None if own is None else overall_sqnr_db(reference, own),
        agreement_db=None if own is None else overall_sqnr_db(own, outputs),
        largest_difference=None if own is None else max(one.max_error for one in compare_outputs(own, outputs)),
        outputs=compare_outputs(reference, outputs, placed),
        verdict=judge.compare(shown),
        samples=len(feeds),
        seen=seen,
    )


def _own(folder: Path, names: Sequence[str]) -> list[Feed] | None:
    """The quantizer's own simulated outputs; None where it simulates nothing."""
    place = folder / "out" / "simulated"
    if not (place / "names.json").is_file():
        return None
    given = json.loads((place / "names.json").read_text("utf-8"))
    rows: list[Feed] = []
    for path in sorted(place.glob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            values = {name: arrays[f"v{at}"] for at, name in enumerate(given)}
        rows.append({name: values[name] for name in names})
    return rows


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


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
        name = self.model.path.name
        return QUANTIZED_RULES.run(
            QuantizedNumbers(model=name, precision=self.precision, picked=self.picked, numbers=self.numbers)
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
        precision, _, method = name.partition("+")
        if not method:
            return self.encodings(name)
        quantizer = pick(self.backend, self.target, self.request.quantizer, precision).quantizer
        more = next(one for one in quantizer.weight_methods(precision) if one.name == method).options.items()
        try:
            limited = replace(self, options=(*self.options, *more), timeout=min(SECONDS, self.timeout or SECONDS))
            return replace(limited.encodings(precision), precision=name)
        except UsageError as error:
            raise ToolError(error.what, why=error.why, next=error.next) from None
