"""Every file of an ort-qnn package: the QDQ model, options, intended types and scripts. It makes bytes and
text only.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from deploykit.backend.backend import BytesFile, JsonFile, PackageFile, TextFile, copied_model
from deploykit.backend.plans import Plan
from deploykit.findings.records import Json
from deploykit.report.rendering import render
from deploykit.tables.capabilities import Status
from deploykit_ort_qnn.compiler.dlc import DLC
from deploykit_ort_qnn.planning import COMPILE, CONTEXT, MODEL, RUN, TAIL, TYPES
from deploykit_ort_qnn.prepare import ProviderDraft
from deploykit_ort_qnn.provider_keys import has_option
from deploykit_qualcomm.backend import WORKFLOW
from deploykit_qualcomm.carriers import Carried, chip_on_arm, compiles_for_any_chip, host_toolchain, machines
from deploykit_qualcomm.qnn_types import TYPE_CODES

__all__ = ["package_files"]


def package_files(draft: ProviderDraft, plan: Plan[None], templates: Path | None) -> Iterator[PackageFile]:
    """Yields the files of the package."""
    situation, prepared = draft.situation, draft.prepared
    if prepared is None:
        yield from copied_model(situation, MODEL)
    else:
        yield BytesFile(MODEL, prepared.model.SerializeToString(deterministic=True))
        if situation.tail is not None:
            yield BytesFile(TAIL, situation.tail)
    for path, value in plan.configs.items():
        yield JsonFile(path, value)
    types = {
        "schema": 1,
        "types": dict(sorted(plan.precision.intended.items())),
        "stored": {} if prepared is None else dict(sorted(prepared.stored.items())),
        "steps": [] if prepared is None else [step.to_json() for step in prepared.steps],
        "strict": draft.is_strict,
    }
    yield JsonFile(TYPES, types)
    values = _values(draft)
    scripts = ("build.sh", *(("build.ps1",) if "Windows" in values["machines"] else ()), "compile.py", "run.py")
    for script in (*scripts, "run_on_device.sh"):
        text = render(f"ort_qnn/scripts/{script}.j2", values, templates=templates)
        yield TextFile(f"scripts/{script}", text, executable=True)
    if draft.options.get("emit") == "github-actions":
        # A hosted machine that can execute the compiler, and the packages installed there.
        wheel = draft.wheel
        if wheel.runs_on_linux:
            loads = [pair.version for pair in wheel.onnxruntime if pair.status is Status.SUPPORTED]
            packages = [f"onnxruntime-qnn=={wheel.version}", f"onnxruntime=={loads[-1]}"]
            where = {"runner": "ubuntu-24.04", "python": "3.11", "requirement": ""}
        else:
            host = next(host for host in wheel.host if host.system == "windows")
            packages = [f"onnxruntime-qnn=={wheel.version}"]
            runner = "windows-11-arm" if host.machine == "aarch64" else "windows-2022"
            # The libraries of this one file were read. Its Python is an x64 one, also on ARM.
            requirement = f"onnxruntime-qnn=={wheel.version} --hash=sha256:{host.sha256}" if host.sha256 else ""
            where = {"runner": runner, "python": "3.11", "requirement": requirement}
        text = render(
            "ort_qnn/scripts/compile.yml.j2",
            {**values, **where, "packages": packages, "soc_model": draft.soc_model},
            templates=templates,
        )
        yield TextFile(WORKFLOW, text)


def _values(draft: ProviderDraft) -> Json:
    """The values that every template gets."""
    situation, wheel = draft.situation, draft.wheel
    carried, spec = Carried(wheel, situation.target.device), host_toolchain(wheel.sdk)
    runs_here, folder = wheel.runs_on_linux, "" if spec is None else f"{spec.name}-{spec.version}"
    # The facts that compile.py needs about the toolchain that runs this wheel; None if the wheel runs by itself.
    toolchain = None
    if spec is not None and not runs_here:
        programs = [program for need in spec.needs for program in need.programs]
        toolchain = {"folder": folder, "programs": programs, "environment": dict(spec.environment)}
    return {
        "deploykit": version("deploykit"),
        "wheel": wheel.version,
        "qairt": wheel.sdk,
        "provider": wheel.provider,
        "machines": machines(wheel),
        "obeys": compiles_for_any_chip(carried.wheel),
        "stands_on": f"{chip_on_arm().name} ({chip_on_arm().fact('marketing')})",
        "device": situation.target.device.name,
        "model": MODEL,
        "context": CONTEXT,
        "tail": TAIL if situation.tail is not None else "",
        "compile_options": COMPILE,
        "run_options": RUN,
        "graphs": has_option("dump_json_qnn_graph", wheel.version),
        "codes": TYPE_CODES,
        "dlc": DLC if draft.options.get("dlc") else "",
        "toolchain": toolchain,
        # The folder of the toolchain that has this wheel in a Python of its own.
        "other_python": folder if runs_here else "",
    }
