"""What a package becomes by what compiler and emulator say: both are stood in for, and what they are asked is told."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import asdict, replace

from deploykit.accuracy.latency import Estimate
from deploykit.backend.backend import Request, SharedWork
from deploykit.errors import DeploykitError, ToolError
from deploykit.flow.plan import decide
from deploykit.flow.read import read_situation
from deploykit.flow.run import execute
from deploykit.packages.manifests import list_files
from deploykit_ort_qnn import backend
from deploykit_ort_qnn import execution as module
from deploykit_ort_qnn.compiler import hosts
from deploykit_ort_qnn.compiler.jobs import LATE, CompileOutcome
from deploykit_ort_qnn.rules.compiled import DlcScope
from deploykit_ort_qnn.rules.numerics import NumericScope
from deploykit_qualcomm.hosted import RefusedNode
from sums import flat, sum_of
from text_models import text_model
from told import check_told

DONE = CompileOutcome(status="compiled", files=("artifacts/model_ctx.onnx",), seconds=2.0, peak_rss_mb=99.6)
TIME = Estimate(time_us=900.0, lower_us=800.0, upper_us=950.0, cycles=9, soc_model="57")
LOG = ("2026-01-02 10:00:00.1 [E] no form (1234 us)", "plain text (5 us)")
NODE = RefusedNode("n", "Relu", why="no form of it")
CASES: dict[str, tuple[str, dict[str, Any], CompileOutcome]] = {
    "made-up inputs": ("", {}, DONE),
    "declared inputs": ("x=0..1", {}, DONE),
    "given samples, a short limit": ("data.npz", {"time_limit": 5.0}, DONE),
    "made-up inputs, a shorter limit": ("", {"time_limit": 9.0}, DONE),
    "strict": ("data.npz", {"strict_precision": True}, DONE),
    "refused": ("data.npz", {}, CompileOutcome(status="refused", message="no form", log=LOG, refused=(NODE,))),
    "ended for its memory": ("data.npz", {}, CompileOutcome(status="crashed", message="died", grown=True)),
    "an estimate within the budget": ("data.npz", {"max": 900.0}, replace(DONE, estimate=TIME)),
    "an estimate beyond the budget": ("data.npz", {"max": 899.0}, replace(DONE, estimate=TIME)),
    "a budget without an estimate": ("data.npz", {"max": 899.0}, DONE),
    "an estimate by another chip": ("data.npz", {"estimate": True}, DONE),
    "a DLC": ("data.npz", {"dlc": True}, DONE),
    "a DLC that is none": ("data.npz", {"dlc": "no whole graph"}, DONE),
    "too late on made-up inputs": ("", {"ends": LATE}, DONE),
    "too late on given ones": ("data.npz", {"ends": LATE}, DONE),
    "dead": ("data.npz", {"ends": "it died"}, DONE),
    "another wheel": ("data.npz", {"wheel": "1.0.0"}, DONE),
    "no wheel": ("data.npz", {"wheel": ""}, DONE),
    "no wheel, and compiling is asked": ("data.npz", {"wheel": "", "compile": True}, DONE),
}


def told(value: Any, *names: str) -> str:
    return flat({name: one for name, one in asdict(value).items() if name in names})


@cache
def decided(folder: Path, asked: str, compiles: bool | None) -> Any:
    given: dict[str, Any] = {"inputs": (asked,)} if "=" in asked else {}
    given |= {"calibration": folder / asked} if asked and not given else {}
    request = Request(model=folder / "m.onnx", target="sm8650", backend="ort-qnn", precision="fp16", **given)
    _, situation = read_situation(replace(request, compile=compiles))
    return decide(backend, situation, SharedWork(), lambda _: None)


def answer(folder: Path, asked: str, how: dict[str, Any], outcome: CompileOutcome) -> Iterator[str]:
    """What both were asked, what was said then, and the files that are left."""
    lines, decision = list[str](), decided(folder, asked, how.pop("compile", None))
    draft, ends, wheel = decision.prepared, how.pop("ends", ""), how.pop("wheel", None)
    most, dlc = how.pop("max", 0.0), how.get("dlc")
    draft = replace(draft, max_time_us=most, options={**draft.options, "kernels": "off", **how})
    here = {"wheel": draft.wheel.version if wheel is None else wheel, "qairt": "2.9", "onnxruntime": "1.0"}

    def compiled(job: Any, tell: Any) -> CompileOutcome:
        lines.append(f"compile {told(job, 'options', 'entries', 'embed', 'allow_cpu', 'timeout', 'operators')}")
        return replace(outcome, estimate=TIME) if how.get("estimate") and len(lines) > 1 else outcome

    def compared(job: Any, tell: Any) -> NumericScope:
        kinds = ("options", "bits", "tail", "allow_cpu", "timeout", "keep", "context", "qdq")
        lines.append(f"emulate {len(job.inputs)} {job.label}, original {job.original is not None}: {told(job, *kinds)}")
        if ends:
            raise ToolError("m: cannot be run", why=ends)
        device = job.original and job.original.judge.compare(job.original.judge.reference)
        return NumericScope(device=device, agreement={"y": 50.0}, shared="for which the same operations were compiled")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "compile_model", compiled)
        patch.setattr(module, "compare", compared)
        patch.setattr(
            module, "write_dlc", lambda _, path, *__: str(path.write_bytes(b"") or "") if dlc is True else dlc
        )
        patch.setattr(module, "dlc_scope", lambda _: DlcScope(metadata="a graph"))
        for room in (module, hosts):
            patch.setattr(room, "installed_wheel", lambda: here if here["wheel"] else None)
        patch.setattr(module, "toolchain_host", lambda _: None)
        place = folder / str(len(list(folder.iterdir())))
        for name in ("artifacts", "model"):
            (place / name).mkdir(parents=True)
        try:
            done = execute(backend, replace(decision, prepared=draft), place, SharedWork(), lines.append)
        except DeploykitError as error:
            yield from (*lines, *str(error).splitlines())
            return
    yield from lines
    yield f"executed {' '.join(done.executed)}; left {' '.join(done.outputs)}"
    yield from (f"{one.severity} {one.code} {one.message}" for one in done.findings)
    yield from (f"compiled {done.compiled}", f"right {done.right}", f"record {flat(done.record)}")
    for path in list_files(place):
        text = (place / path).read_text("utf-8") if path.endswith((".json", ".log")) else ""
        yield f"{path}: {sum_of(flat(json.loads(text))) if path.endswith('.json') else text.splitlines()}"


def test_what_an_execution_comes_to(tmp_path: Path) -> None:
    found = dict[str, list[str]]()
    onnx.save(text_model("float[1,4] x", "y = Relu (x)", "float[1,4] y"), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 1, 4))
    for title, (asked, how, outcome) in CASES.items():
        found[title] = [*answer(tmp_path, asked, dict(how), outcome)]
    check_told(Path(__file__).with_name("executions.told"), found)
