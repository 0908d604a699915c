"""Runs one quantizer's job in a folder named by everything that goes in, and takes up what it leaves.

A job that ended well is not run again, and one that was interrupted keeps its folder, where its script may go on.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from deploykit.accuracy.samples import decoding
from deploykit.backend.backend import Progress
from deploykit.encodings.formats.conversion import convert
from deploykit.encodings.place import layouts, place
from deploykit.encodings.qdq import extract_qdq
from deploykit.errors import ToolError
from deploykit.flow.quantizing.samples import Division
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.weights import load_weights
from deploykit.packages.writing import hash_file
from deploykit.rewrites.contract import load_transform
from deploykit.system.folders import waiting_for
from deploykit.system.jobs import Job, finished_job, run_job
from deploykit.system.store import cache_folder, is_off

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.backend.quantizers import QuantizerJob
    from deploykit.flow.quantizing.choosing import Picked
    from deploykit.model import Model

__all__ = ["QuantizerRun", "run_quantizer"]

QDQ = "out/model.qdq.onnx"
MODEL = "out/model.onnx"
ENCODINGS = "out/model.encodings"
_BESIDE = (Path(__file__).with_name("child.py"), Path(str(decoding.__file__)))
"""What lies beside each quantizer's script."""
_LARGE = 1_900_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizerRun:
    """What a quantizer left: its folder, the float model and the encodings in it, and its own account.

    ``qdq`` is the quantized model where the quantizer made one. ``again`` is True where an earlier run was found.
    """

    folder: Path
    model: Path
    encodings: Path
    result: Mapping[str, Any]
    qdq: Path | None = None
    again: bool = False


def run_quantizer(
    picked: Picked,
    plan: QuantizerJob,
    model: Model,
    division: Division,
    *,
    progress: Progress,
    timeout: float | None = None,
) -> QuantizerRun:
    """Run the job, or find it done. Raises ToolError as ``deploykit.system.jobs.run_job``."""
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
        again = result is not None
        if result is None:
            _lay_out(folder, told, plan, model, division)
            job = _job(picked, plan, folder)
            result = run_job(job, progress=progress, timeout=timeout)
        else:
            progress(f"{title}: done before with the same model, data and settings")
        return _taken_up(folder, result, again=again)


def _key(told: Mapping[str, Any], plan: QuantizerJob, model: Model, division: Division) -> str:
    """Everything that the result depends on; the same work is found again wherever its files lie."""
    images = told["images"] and {**told["images"], "samples": len(division.seen), "held_out": len(division.judged)}
    asked = {**told, "images": images, "rewrites": plan.rewrites, "data": division.to_json()}
    digest = sha256(json.dumps(asked, sort_keys=True).encode())
    for path in (model.path, *(file.path for file in model.external), plan.script, *_BESIDE):
        digest.update(hash_file(path)[1].encode())
    return digest.hexdigest()[:24]


def _lay_out(folder: Path, told: Mapping[str, Any], plan: QuantizerJob, model: Model, division: Division) -> None:
    """Everything the child reads; what an earlier, interrupted run made for itself (``work/``) stays."""
    for name in ("out", "samples", "held_out", "scripts"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "scripts").mkdir(parents=True)
    for script in (*_BESIDE, plan.script):
        shutil.copyfile(script, folder / "scripts" / script.name)
    (folder / "job.json").write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    save_model(_rewritten(load_weights(model), plan.rewrites), folder / "model.onnx")
    division.write(folder)


def _rewritten(model: ModelProto, names: tuple[str, ...]) -> ModelProto:
    for name in names:
        transform = load_transform(name)
        found = transform.match(model)
        if found:
            model = transform.apply(model, None, found).model
    return model


def save_model(model: ModelProto, path: Path) -> None:
    """One file, or two where one would be too large."""
    if model.ByteSize() > _LARGE:
        onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")
    else:
        path.write_bytes(model.SerializeToString(deterministic=True))


def _job(picked: Picked, plan: QuantizerJob, folder: Path) -> Job:
    script = f"scripts/{plan.script.name}"
    if picked.environment is None:
        known = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return Job(title=picked.quantizer.id, folder=folder, argv=(sys.executable, script), variables=known)
    environment = picked.environment
    return Job(
        title=picked.quantizer.id,
        folder=folder,
        argv=(str(environment.python), script),
        variables=environment.variables,
    )


def _taken_up(folder: Path, result: Mapping[str, Any], *, again: bool) -> QuantizerRun:
    qdq = folder / QDQ
    if qdq.is_file():
        encodings = folder / "extracted.encodings"
        encodings.write_text(_encodings_of(qdq, folder / "model.onnx"), "utf-8")
        return QuantizerRun(
            folder=folder, model=folder / "model.onnx", encodings=encodings, result=result, qdq=qdq, again=again
        )
    missing = [name for name in (MODEL, ENCODINGS) if not (folder / name).is_file()]
    if missing:
        raise ToolError(f"{result.get('quantizer', 'the quantizer')} left no {missing[0]}", next=f"look at {folder}")
    return QuantizerRun(folder=folder, model=folder / MODEL, encodings=folder / ENCODINGS, result=result, again=again)


def _encodings_of(qdq: Path, model: Path) -> str:
    """The encodings behind a QDQ model's nodes, placed on the float model that went in."""
    extracted = extract_qdq(onnx.load(qdq))
    if extracted.kept:
        node, why = next(iter(extracted.kept.items()))
        raise ToolError(f"{qdq}: {node} cannot be read as an encoding", why=why)
    facts = collect_facts(load_model(model))
    lost = sorted(name for name in extracted.encodings.entries if name not in facts.tensors)
    if lost:
        raise ToolError(f"{qdq}: the tensor {lost[0]!r} that it quantizes is not in {model.name}")
    return convert(place(extracted.encodings, facts), "1.0.0", layouts=layouts(facts)).text
