"""Runs the package's script for the CPU in the toolchain: it shows that OpenVINO takes the model, and what INT8 costs.

It never says that the NPU compiled it, or that its numbers are right there.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from deploykit.accuracy.judge.judge import Judge
from deploykit.accuracy.judge.verdict import Against
from deploykit.backend.backend import Execution
from deploykit.backend.status import Compilation, Correctness
from deploykit.errors import ToolError
from deploykit.system.environments import environment_of

if TYPE_CHECKING:
    from deploykit.accuracy.judge.verdict import Verdict
    from deploykit.backend.backend import Aids, Situation
    from deploykit.system.specs import ToolchainSpec

__all__ = ["stand_in", "stored"]

_SECONDS = 3600.0


def stored(samples: Sequence[Mapping[str, Any]]) -> bytes:
    """Samples as the script reads them: a .npz with one array per sample and input, called NUMBER/INPUT."""
    out = io.BytesIO()
    arrays = {f"{number}/{name}": value for number, sample in enumerate(samples) for name, value in sample.items()}
    np.savez(out, **arrays)
    return out.getvalue()


def stand_in(
    package: Path, situation: Situation, spec: ToolchainSpec, arguments: Sequence[str], aids: Aids
) -> Execution:
    """What the CPU made of it, as a record. Raises ToolError where it was asked for and the toolchain is missing."""
    environment = environment_of(spec)
    if environment.state(with_size=False).state != "ready":
        if situation.request.compile:
            environment.require()
        why = f"the toolchain is not installed: deploykit toolchain install {spec.id}"
        return Execution(compiled=Compilation(why=why))
    samples = aids.samples()
    qdq = situation.facts.is_qdq
    against = Against.QUANTIZED if qdq else Against.FLOAT
    bits = 8 if qdq or "--calibration" in arguments else 0
    judge = Judge(situation.model.proto, situation.facts, samples, against=against, bits=bits)
    aids.progress(f"{spec.id}: compiling for the CPU, which stands in for the NPU")
    with tempfile.TemporaryDirectory() as folder:
        given, made, log = (Path(folder, name) for name in ("given.npz", "made.npz", "log"))
        given.write_bytes(stored(judge.feeds))
        told = ["scripts/convert.py", "--device", "CPU", *arguments, "--run", str(given), str(made)]
        done = environment.run(told, cwd=package, timeout=_SECONDS, log=log)
        if not done.ok:
            raise ToolError(f"{spec.id} did not take the model", why=" ".join(done.tail[-3:]))
        verdict = judge.compare(_outputs(made, len(judge.feeds)))
    on = Correctness(label=str(samples.label), count=len(judge.feeds), against=str(against))
    return _execution(spec, verdict, on)


def _outputs(path: Path, count: int) -> list[dict[str, Any]]:
    with np.load(path) as stored_outputs:
        made: list[dict[str, Any]] = [{} for _ in range(count)]
        for key in stored_outputs.files:
            number, _, name = key.partition("/")
            made[int(number)][name] = stored_outputs[key]
    return made


def _execution(spec: ToolchainSpec, verdict: Verdict, right: Correctness) -> Execution:
    why = f"for the NPU; {spec.id} compiled it for the CPU, which stands in"
    said = f"the CPU, which stands in and keeps floats in 32 bits, is {verdict.described}; of the NPU it says nothing"
    return Execution(
        executed=("convert-for-cpu",),
        outputs=("artifacts/model.xml", "artifacts/model.bin"),
        record={
            "stand_in": {
                "device": "CPU",
                "toolchain": spec.id,
                "verdict": verdict.described,
                "sqnr_db": {name: round(value, 2) for name, value in verdict.sqnr_db.items()},
            }
        },
        compiled=Compilation(why=why),
        right=replace(right, why=said),
    )
