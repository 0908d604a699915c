"""A float model, a target, a precision and calibration data become a model with encodings, judged.

It joins the stages: divide the samples, pick the quantizer, run its job in a child process, measure on the samples that
it did not see. The job's folder is named by a hash of all its inputs: a job that ended well is not run again, an
interrupted one may go on. It writes no report and no package.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from deploykit.accuracy.judge.judge import Judge
from deploykit.accuracy.judge.verdict import Verdict
from deploykit.accuracy.samples import decoding
from deploykit.accuracy.samples.arrays import read_arrays, write_arrays
from deploykit.accuracy.samples.calibration import Calibration, load_calibration, places_of, read_places
from deploykit.accuracy.samples.data_quality import MOST
from deploykit.accuracy.samples.images import images_misfit, inspect_image
from deploykit.accuracy.samples.inputs import InputSpec, Label, evenly_chosen, input_specs
from deploykit.accuracy.simulate.simulation import Fidelity, Simulator, compare_outputs, in_float, overall_sqnr_db
from deploykit.backend.backend import AnyBackend, Same, SharedWork, Situation
from deploykit.backend.quantizers import QuantizerAsked, QuantizerJob
from deploykit.backend.targets import Target
from deploykit.encodings.float_sets import unscaled_rows
from deploykit.encodings.formats.conversion import convert
from deploykit.encodings.new_grids import entry_for_range
from deploykit.encodings.place import layouts, place
from deploykit.encodings.qdq import extract_qdq
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import Affine, EncodingSet
from deploykit.errors import InputError, ToolError, UsageError
from deploykit.findings import Findings
from deploykit.findings.records import Arrays, Feeds, Json, Pairs, Published, Record, Tell, field, replace
from deploykit.flow.quantizing.choosing import SECONDS, Picked, options_of, pick
from deploykit.flow.rules import QUANTIZED_RULES
from deploykit.flow.samples import about_samples
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import Model, load_model
from deploykit.model.weights import lean_weights, load_weights
from deploykit.packages.manifests import hash_file
from deploykit.rewrites.contract import load_transform
from deploykit.system.folders import waiting_for
from deploykit.system.jobs import Job, finished_job, run_job
from deploykit.system.store import cache_folder, is_off

__all__ = ["Made", "Making", "measure", "read_held_out"]

MOST_HELD_OUT = 8
"""The most samples that are judged on; at most one in five is held out, none of fewer than five."""
_ONE_IN = 5


class Division(Published):
    """Calibration samples, divided. ``held_out`` may be empty: then the seen ones are judged on.

    The samples are given as indices into arrays, or as image files.
    """

    calibration: Calibration
    inputs: tuple[InputSpec, ...]
    seen: tuple[Any, ...]
    held_out: tuple[Any, ...]

    @property
    def judged(self) -> tuple[Any, ...]:
        """The samples to judge on: the held-out ones, else a few of the seen ones."""
        return self.held_out or tuple(self.seen[i] for i in evenly_chosen(len(self.seen), MOST_HELD_OUT))

    @property
    def judged_at(self) -> tuple[tuple[int, ...], int]:
        """The positions in the data of the samples judged on, and the number of all, for labels in the same order."""
        count = len(self.seen) + len(self.held_out)
        return tuple(sorted(_held_out(count)) if self.held_out else evenly_chosen(count, MOST_HELD_OUT)), count

    def as_published(self) -> Json:
        """The kind and the numbers of samples, and the hash of each file; without paths of this machine."""
        return {
            "kind": self.calibration.kind,
            "seen": len(self.seen),
            "held_out": len(self.held_out),
            "files": {path.name: hash_file(path)[1] for path in self.calibration.files},
            "recipe": self.calibration.recipe,
        }

    def images(self) -> Json | None:
        """The data with which the child decodes images; None if the samples are arrays."""
        recipe = self.calibration.recipe
        if recipe is None:
            return None
        return {
            "samples": [str(path.resolve()) for path in self.seen],
            "held_out": [str(path.resolve()) for path in self.judged],
            "recipe": recipe.to_json(),
            "input": recipe.input or self.inputs[0].name,
        }

    def write(self, folder: Path) -> None:
        """Writes arrays as ``samples/NNNNN.npz`` and ``held_out/NNNNN.npz``; writes nothing for images.

        Raises InputError for values that are not finite.
        """
        if self.calibration.recipe is not None:
            return
        for name, places in (("samples", self.seen), ("held_out", self.judged)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            for index, feed in enumerate(read_places(places)):
                for of, values in feed.items():
                    if values.dtype.kind == "f" and not np.isfinite(values).all():  # they fit no grid
                        raise InputError(
                            f"{places[index].file}: values for the input {of} are infinite",
                            next="save the largest finite value that the model needs, such as -10000 in a mask",
                        )
                write_arrays(folder / name / f"{index:05}.npz", feed)


def divide(source: Path, facts: GraphFacts) -> Division:
    """Lists the samples and chooses those to hold out, spread over the data.

    Raises InputError for data that does not fit the model, UsageError for data that cannot be read outside a package.
    """
    inputs = input_specs(facts)
    calibration = load_calibration(source, inputs)
    places: tuple[Any, ...] = calibration.files
    if calibration.recipe is None:
        places = places_of(calibration, inputs)
    else:
        misfit = images_misfit(calibration.recipe, inputs)
        if misfit:
            raise UsageError(
                f"{source}: {misfit}",
                next="set width, height and layout in calibration.toml, or give .npz with an array for each input",
            )
        for path in calibration.files:
            inspect_image(path)
    if not places:
        raise InputError(f"{source}: holds no sample")
    held = _held_out(len(places))
    return Division(
        calibration=calibration,
        inputs=inputs,
        seen=tuple(place for at, place in enumerate(places) if at not in held),
        held_out=tuple(places[at] for at in sorted(held)),
    )


def _held_out(count: int) -> set[int]:
    """Positions spread over the data, away from its ends, so that ranges of sorted data stay whole."""
    wanted = min(MOST_HELD_OUT, count // _ONE_IN)
    return {round((at + 0.5) * count / wanted) for at in range(wanted)} if wanted else set()


def read_held_out(folder: Path) -> list[Arrays]:
    """The decoded samples that were judged on."""
    return [read_arrays(path) for path in sorted((folder / "held_out").glob("*.npz"))]


def read_decoded(folder: Path, most: int) -> list[Arrays]:
    """At most ``most`` of a job's samples, spread over those seen and those held out."""
    files = [*sorted((folder / "samples").glob("*.npz")), *sorted((folder / "held_out").glob("*.npz"))]
    return [read_arrays(files[at]) for at in evenly_chosen(len(files), most)]


_QDQ, _MODEL, _ENCODINGS = "out/model.qdq.onnx", "out/model.onnx", "out/model.encodings"
_BESIDE = (Path(__file__).with_name("child.py"), Path(str(decoding.__file__)))
"""The files that are copied beside each quantizer's script."""
_LARGE = 1_900_000_000  # protobuf writes no message above 2 GiB


class QuantizerRun(Record):
    """The result of a quantizer: its folder, the float model and the encodings in it, and its own record.

    ``qdq`` is the quantized model if the quantizer made one.
    """

    folder: Path
    model: Path
    encodings: Path
    result: Json
    qdq: Path | None = None

    def read(self) -> tuple[Model, GraphFacts, EncodingSet]:
        """The model, its facts, and its encodings."""
        model = load_model(self.model)
        facts = collect_facts(model)
        return model, facts, read_placed(self.encodings, facts)


def run_quantizer(
    picked: Picked,
    plan: QuantizerJob,
    model: Model,
    division: Division,
    *,
    progress: Tell,
    timeout: float | None,
) -> QuantizerRun:
    """Runs the job, or takes its kept result. Raises ToolError as ``deploykit.system.jobs.run_job``."""
    told = {
        "schema": 1,
        "quantizer": picked.quantizer.id,
        "toolchain": "" if picked.environment is None else picked.environment.spec.id,
        "settings": dict(plan.settings),
        "images": division.images(),
    }
    folder = cache_folder() / "quantized" / _key(told, plan, model, division)
    title = picked.quantizer.id

    def waiting() -> None:
        progress(f"{title}: another process does the same; waiting for it")

    with waiting_for(folder, waiting=waiting):
        result = None if is_off() else finished_job(folder)
        if result is None:
            _lay_out(folder, told, plan, model, division)
            environment = picked.environment
            python = sys.executable if environment is None else str(environment.python)
            known = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            job = Job(
                title=title,
                folder=folder,
                argv=(python, f"scripts/{plan.script.name}"),
                variables=known if environment is None else environment.variables,
            )
            result = run_job(job, progress=progress, timeout=timeout)
        else:
            progress(f"{title}: done before with the same model, data and settings")
        return _read_job_result(folder, result)


# No quantizer gives encodings to tensors inside an If, to sequences, between integers computed at run time, or in
# operators that compilers lack; so these are rewritten first.
_FOR_ALL = (
    "resolve-sequences",
    "both-branches",
    "dequantize-layers",
    "write-out-functions",
    "double-to-float",
    "half-to-float",
)


def _key(told: Json, plan: QuantizerJob, model: Model, division: Division) -> str:
    """A hash of everything that the result depends on, without paths, so that moved files give the same key."""
    images = told["images"] and {**told["images"], "samples": len(division.seen), "held_out": len(division.judged)}
    asked = {**told, "images": images, "rewrites": (*_FOR_ALL, *plan.rewrites), "data": division.to_json()}
    digest = sha256(json.dumps(asked, sort_keys=True).encode())
    for path in (model.path, *(file.path for file in model.external), plan.script, *_BESIDE):
        digest.update(hash_file(path)[1].encode())
    return digest.hexdigest()[:24]


def _lay_out(folder: Path, told: Json, plan: QuantizerJob, model: Model, division: Division) -> None:
    """Writes all that the child reads; files of an earlier, interrupted run (``work/``) stay."""
    for name in ("out", "samples", "held_out", "scripts"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "scripts").mkdir(parents=True)
    for script in (*_BESIDE, plan.script):
        shutil.copyfile(script, folder / "scripts" / script.name)
    (folder / "job.json").write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    proto = load_weights(model)
    for name in (*_FOR_ALL, *plan.rewrites):
        transform = load_transform(name)
        found = transform.match(proto)
        proto = transform.apply(proto, None, found).model if found else proto
    if proto.ByteSize() > _LARGE:
        onnx.save(proto, folder / "model.onnx", save_as_external_data=True, location="model.onnx.data")
    else:
        (folder / "model.onnx").write_bytes(proto.SerializeToString(deterministic=True))
    division.write(folder)


def _read_job_result(folder: Path, result: Json) -> QuantizerRun:
    """The model and encodings that the job left; a quantized model's encodings are placed on the float model."""
    qdq, given = folder / _QDQ, folder / "model.onnx"
    if not qdq.is_file():
        made = QuantizerRun(folder=folder, model=folder / _MODEL, encodings=folder / _ENCODINGS, result=result)
        missing = [path for path in (made.model, made.encodings) if not path.is_file()]
        if missing:
            left = f"{result.get('quantizer', 'the quantizer')} left no {missing[0].relative_to(folder)}"
            raise ToolError(left, next=f"look at {folder}")
        return made
    extracted = extract_qdq(onnx.load(qdq))
    if extracted.kept:
        node, why = next(iter(extracted.kept.items()))
        raise ToolError(f"{qdq}: {node} is no encoding", why=why, next="leave it in float: --precision fp16")
    facts = collect_facts(load_model(given))
    # A bias shared by several layers is copied for each: no entry describes one tensor then, and compilers derive it.
    strange = {name: entry for name, entry in extracted.encodings.entries.items() if name not in facts.tensors}
    lost = sorted(name for name, entry in strange.items() if entry.integer_bits < 32)
    if lost:
        raise ToolError(f"{qdq}: the tensor {lost[0]!r} that it quantizes is not in {given.name}")
    encodings = folder / "extracted.encodings"
    found, known = extracted.encodings.only(facts.tensors), layouts(facts)
    # The file does not name the channel axis: the operator determines it, and a MatMul's left operand has none.
    found = found.with_entries(
        entry_for_range(entry.name, found, *entry.value.ends)
        for entry in found
        if isinstance(entry.value, Affine) and entry.value.bits < 32 and entry.value.axis is not None
        if known[entry.name].channel_axis is None
    )
    encodings.write_text(convert(place(found, facts), "1.0.0", layouts=known).text, "utf-8")
    return QuantizerRun(folder=folder, model=given, encodings=encodings, result=result, qdq=qdq)


class Numbers(Published, eq=False):
    """SQNR in dB over all outputs: deploykit's simulation, the quantizer's own, and the agreement of the two.

    ``agreement_db`` takes the quantizer's outputs as the signal; infinite if both are equal bit for bit. ``seen`` is
    True if no sample could be held out; ``since`` tells of a later change of the ranges.
    """

    sqnr_db: float
    quantizer_db: float | None
    agreement_db: float | None
    largest_difference: float | None
    outputs: tuple[Fidelity, ...]
    verdict: Verdict
    samples: int
    seen: bool
    since: str = ""

    def as_published(self) -> Json:
        """The published fields; infinite numbers are None, and ``exact`` is True for equal simulations."""
        return {
            "sqnr_db": self.sqnr_db,
            "quantizers_own": {
                "sqnr_db": self.quantizer_db,
                "agreement_db": self.agreement_db,
                "exact": self.agreement_db == math.inf,
                "largest_difference": self.largest_difference,
            },
            "outputs": self.outputs,
            "verdict": self.verdict,
            "samples": {"count": self.samples, "held_out": not self.seen},
        }


def measure(given: Model, facts: GraphFacts, ran: QuantizerRun, feeds: Feeds, *, seen: bool) -> Numbers:
    """Runs the float model and the quantized one on the samples, and compares the quantizer's own outputs.

    Raises ToolError if the quantized model's outputs are not those of the given
    model, InputError if their size depends on values.
    """
    quantized, _, placed = ran.read()
    judge = Judge(in_float(lean_weights(given), facts)[0], facts, feeds, label=Label.GIVEN)
    weights = lean_weights(quantized)
    if tuple(value.name for value in weights.graph.output) != judge.names:
        raise ToolError(f"{ran.model}: its outputs are not those of {given.path.name}", next=f"look at {ran.folder}")
    shown = Simulator(weights, placed).runs(feeds)
    reference = [{name: row[name] for name in judge.names} for row in judge.reference]
    outputs = [{name: row[name] for name in judge.names} for row in shown]
    own = _own(ran.folder, judge.names)
    # Rows behind a selection such as NonMaxSuppression vary in number with the values: the judge matches them.
    rows = list(zip(reference, outputs, own or outputs, strict=True))
    rows = [row for row in rows if all(len({np.shape(one[name]) for one in row}) == 1 for name in judge.names)]
    if not rows:
        raise InputError(
            f"{given.path.name}: an output changes its size with the values on every sample",
            next="export it without what decides the size, such as a Loop or a NonZero",
        )
    reference, outputs, simulated = map(list, zip(*rows, strict=True))
    own = own and simulated
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


def _own(folder: Path, names: Sequence[str]) -> list[Arrays] | None:
    """The quantizer's own simulated outputs; None if it simulates nothing."""
    place = folder / "out" / "simulated"
    if not (place / "names.json").is_file():
        return None
    given = json.loads((place / "names.json").read_text("utf-8"))
    rows = map(read_arrays, sorted(place.glob("*.npz")))
    return [{name: row[f"v{given.index(name)}"] for name in names} for row in rows]


class Made(Published, eq=False):
    """Encodings that a quantizer made, with all facts about them.

    ``widened`` says which 8-bit activations got 16 bits and why; "" for none.
    """

    precision: str
    picked: Picked
    options: Json
    division: Division
    ran: QuantizerRun
    numbers: Numbers
    model: Model
    target: Target
    widened: str = ""

    @property
    def findings(self) -> Findings:
        """The findings on the encodings; ``about_data`` gives those on the data."""
        return QUANTIZED_RULES.run(self)

    def about_data(self) -> Findings:
        """The findings on the samples as the quantizer got them, for the model as given."""
        feeds = read_decoded(self.ran.folder, MOST)
        facts = collect_facts(self.model)
        available = len(self.division.seen) + len(self.division.held_out)
        data = self.division.calibration
        return about_samples(self.model, facts, data, feeds, available=available, gives_ranges=True)

    def as_published(self) -> Json:
        """The quantizer, its inputs, versions, seconds and results; without paths of this machine."""
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
            "notes": [*result.get("notes", ()), *filter(None, [self.widened])],
            "inputs": [{"role": role, "name": path.name, "sha256": hash_file(path)[1]} for role, path in files],
            "calibration": self.division,
            "numbers": self.numbers,
        }


class Making(Record, eq=False):
    """The inputs for making encodings; ``options`` are the quantizer's own, ``timeout`` is in seconds."""

    backend: AnyBackend
    given: Situation
    progress: Tell
    options: Pairs = ()
    timeout: float | None = None
    shared: SharedWork = field(default_factory=SharedWork)

    def encodings(self, precision: str | None) -> Made:
        """Runs the requested quantizer, or the best installed one; with None it makes its first precision.

        Raises UsageError for a request that is not valid, InputError for a model that is already quantized or has no
        data, ToolError if the quantizer fails.
        """
        request, model, facts, target = self.given.request, self.given.model, self.given.facts, self.given.target
        if facts.is_qdq:
            raise InputError(f"{model.path}: holds Q/DQ nodes already", next="give the float model")
        for fed in facts.inputs:
            kind = facts.tensors[fed].dtype
            if kind == "float16" or (kind == "double" and not load_transform("double-to-float").match(model.proto)):
                raise InputError(
                    f"{model.path.name}: its input {fed} is {kind}, and quantizers start from float32",
                    next="export it with float32 inputs, or package one in float16 as it is, without --precision",
                )
        calibration = request.calibration
        if calibration is None:
            raise UsageError(
                "a quantizer needs data", next="give --calibration: .npz or .npy samples, or a folder of images"
            )
        picked = pick(self.backend, target, request.quantizer, precision)
        name = precision or picked.quantizer.precisions(target)[0]
        values = dict(options_of(picked.quantizer, self.options))
        plan = picked.quantizer.plan(
            QuantizerAsked(precision=name, target=target, options=values, floats=unscaled_rows(facts))
        )
        # Equal requests of several targets are made once; the plan holds everything a quantizer is given.
        key = ("quantized", repr((plan, values, calibration)), Same(model))

        def make() -> Made:
            self.progress("dividing the calibration data")
            division = divide(calibration, facts)
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
                target=target,
            )

        return replace(self.shared.once(key, make), target=target)

    def candidate(self, name: str) -> Made:
        """Makes one of several candidates, ``w8a16`` or ``w8a16+METHOD``.

        A method has its own time limit. If the user's other options exclude a method, that is a ToolError: the other
        candidates go on.
        """
        precision, _, method = name.partition("+")
        if not method:
            return self.encodings(name)
        quantizer = pick(self.backend, self.given.target, self.given.request.quantizer, precision).quantizer
        more = next(one for one in quantizer.weight_methods(precision) if one.name == method).options.items()
        try:
            limited = replace(self, options=(*self.options, *more), timeout=min(SECONDS, self.timeout or SECONDS))
            return replace(limited.encodings(precision), precision=name)
        except UsageError as error:
            raise ToolError(error.what, why=error.why, next=error.next) from None
