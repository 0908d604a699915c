"""Runs what this machine can run inside the package folder: the compiler, then the emulator against the CPU.

Rules make its findings. It follows the plan and chooses nothing else.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from deploykit.accuracy.latency import Estimate, chrome_trace
from deploykit.accuracy.samples.gathering import EXPECTED_FILE
from deploykit.accuracy.samples.inputs import Label
from deploykit.backend.backend import Aids, Execution, Same
from deploykit.backend.on_device import DeviceFile, DeviceJob, DeviceRequest, DeviceResults
from deploykit.backend.opinions import Audit
from deploykit.backend.plans import Plan
from deploykit.backend.status import Compilation, Compiled, Correctness, Right
from deploykit.devices.profiles import origins_of
from deploykit.devices.sessions import PROVIDER_PROFILE, session_job, session_results
from deploykit.errors import ToolError
from deploykit.findings import Severity
from deploykit.findings.records import Json, Tell, replace
from deploykit.model.collect import facts_of
from deploykit.packages.manifests import json_text
from deploykit.system.folders import scratch
from deploykit.tables.reading import read_json
from deploykit_ort_qnn.bench.audit import audit_draft, with_count
from deploykit_ort_qnn.bench.repair import done_otherwise, rescue, wanted_repairs
from deploykit_ort_qnn.compiler.dlc import DLC
from deploykit_ort_qnn.compiler.emulation import NUMBERS, EmulationJob, compare, correctness, narrowest, numbers_json
from deploykit_ort_qnn.compiler.estimates import compiled_origins, nearest_estimated
from deploykit_ort_qnn.compiler.hosts import HERE, Host, installed_wheel, toolchain_host, who_compiles
from deploykit_ort_qnn.compiler.jobs import LATE, CompileJob, CompileOutcome, compile_model, write_dlc
from deploykit_ort_qnn.compiler.precision import EVIDENCE, dlc_scope, evidence_json, precision_scope, read_evidence
from deploykit_ort_qnn.planning import COMPILE, CONTEXT, MODEL, RUN, TAIL
from deploykit_ort_qnn.prepare import ProviderDraft
from deploykit_ort_qnn.rules.compiled import (
    BUDGET_RULES,
    DLC_RULES,
    ENVIRONMENT_RULES,
    DlcScope,
    EnvironmentScope,
    TimeBudget,
)
from deploykit_ort_qnn.rules.compiled import RULES as COMPILE_RULES
from deploykit_ort_qnn.rules.numerics import PRECISION_RULES, NumericScope
from deploykit_ort_qnn.rules.numerics import RULES as NUMERIC_RULES
from deploykit_qualcomm.devices import POWER
from deploykit_qualcomm.profiles import read_profile_csv
from deploykit_qualcomm.tables import tables

__all__ = ["device_job", "device_results", "execute"]

AUDIT, TIMELINE = "artifacts/audit.json", "artifacts/timeline.json"
_PROVIDER = "QNNExecutionProvider"
_PLUGIN = {
    "module": "onnxruntime_qnn",
    "library": "get_library_path",
    "paths": {"backend_path": "get_qnn_htp_path"},
    # Wheels before 2.0 are an ONNX Runtime with the provider and its libraries inside.
    "built_in": {"backend_path": "capi/libQnnHtp.so"},
}
_MADE_UP_SECONDS = 120.0  # results on made-up inputs judge nothing, so nobody should wait half an hour for them
# The time at the start of a line, and how long a stage took.
_TIMES = re.compile(r"^\d{4}[^ ]* [^ ]* (?=.* )| \(\d+ us\)$")


def execute(package: Path, draft: ProviderDraft, plan: Plan[None], aids: Aids) -> Execution:
    """Compiles and compares. Without the planned wheel nothing is compiled, and a finding says so."""
    installed, host, progress = installed_wheel(), toolchain_host(draft.wheel), aids.progress
    if installed is None and host is None and draft.situation.request.compile:
        raise ToolError(
            "--compile: the QNN provider is not installed here",
            why="onnxruntime-qnn cannot be imported",
            next="pip install 'deploykit[ort-qnn]' (Linux x86-64)",
        )
    wheel = who_compiles(host)
    emulator = installed if host is None or host.emulator is None else host.identity
    environment = ENVIRONMENT_RULES.run(EnvironmentScope(installed=wheel, planned=draft.wheel, emulator=emulator))
    if wheel is None or wheel["wheel"] != draft.wheel.version:
        return Execution(findings=environment)
    config = plan.configs[COMPILE]
    entries = dict(config["session_entries"])
    entries.pop("ep.context_enable")
    job = CompileJob(
        package,
        MODEL,
        context=CONTEXT,
        options=config["provider_options"],
        entries=entries,
        embed=entries.pop("ep.context_embed_mode") == "1",
        allow_cpu=entries.pop("session.disable_cpu_ep_fallback", "0") != "1",
        timeout=float(draft.options["time_limit"]),
        host=host,
        operators=frozenset(node.name for node in draft.situation.facts.nodes),
    )
    outcome, instead = rescue(job, compile_model(job, progress), draft.situation.request, progress)
    peak = "" if outcome.peak_rss_mb is None else f", {outcome.peak_rss_mb:.0f} MiB at most"
    progress(f"{outcome.status} in {outcome.seconds:.1f} s{peak}")
    findings = (*environment, *COMPILE_RULES.run(outcome))
    where, soc = "" if host is None else host.where, config["provider_options"]["soc_model"]
    by = f"QAIRT {wheel['qairt']} (onnxruntime-qnn {wheel['wheel']}{where}) for soc_model {soc}"
    record: dict[str, Any] = {"compile": _record(plan, wheel, outcome)}
    if not outcome.ok:
        (package / "logs").mkdir(exist_ok=True)
        text = "".join(_TIMES.sub("", line) + "\n" for line in outcome.log) or "\n"
        (package / "logs" / "compile.log").write_text(text, "utf-8")
        refused = Compilation(Compiled.REFUSED, by, outcome.status.removeprefix("refused"))
        return Execution(
            outputs=("logs/compile.log",), findings=findings, record=record, compiled=refused, instead=instead
        )
    (package / EVIDENCE).write_text(json_text(evidence_json(outcome)), "utf-8")
    precision = PRECISION_RULES.run(
        precision_scope(outcome.graphs, outcome.schematics, draft.prepared, strict=draft.is_strict)
    )
    estimate = _estimated(package, draft, job, outcome, f"QAIRT {wheel['qairt']}", progress)
    dlc = None
    if draft.options.get("dlc"):
        why = write_dlc(job, package / DLC, progress)
        dlc = DlcScope(why=why) if why else dlc_scope(package)
        record["dlc"] = {"metadata": dlc.metadata, "compared": len(dlc.compared), "wrong": list(dlc.wrong)}
    # Chips of one architecture with the same compiled operations compute the same values; the lab tests check this.
    made = tuple(schematic.after for schematic in outcome.schematics)
    kernels = ((draft.situation.target.device.fact("arch"), made), str(wheel)) if made else ()
    numeric = _judge_numbers(package, draft, plan, aids, host, kernels)
    ran = numeric.device is not None
    if ran:
        numbers = numbers_json(numeric)
        (package / NUMBERS).write_text(json_text(numbers), "utf-8")
        record["numbers"] = {"outputs": numbers["agreement_db"], "first_node": numeric.first}
        if numeric.shared:
            record["numbers"]["emulated_for"] = f"another chip of this run, {numeric.shared}"
    right = correctness(numeric)
    audit = _audited(package, draft, right, progress, doubted=bool(numeric.doubtful))
    if audit:
        record["audit"] = {"level": audit.level, "by": audit.by, "kernels": dict(audit.counts)}
    instead = wanted_repairs(draft, audit, numeric, host, progress)
    left = (path for path in (AUDIT, EXPECTED_FILE, NUMBERS, DLC, TIMELINE) if (package / path).is_file())
    if draft.max_time_us:
        findings += BUDGET_RULES.run(TimeBudget(most_us=draft.max_time_us, estimate=estimate))
    findings += (*precision, *NUMERIC_RULES.run(numeric), *(DLC_RULES.run(dlc) if dlc else ()))
    return Execution(
        executed=("compile", "emulate") if ran else ("compile",),
        outputs=(*outcome.files, EVIDENCE, *left),
        record=record,
        findings=(*findings, *(audit.findings if audit else ())),
        compiled=Compilation(Compiled.YES, by),
        right=right,
        instead=instead,
        audit=audit,
        estimate=estimate,
        seen=numeric.seen,
        settled={**({} if audit is None else audit.settled), **done_otherwise(draft)},
    )


def _estimated(
    package: Path, draft: ProviderDraft, job: CompileJob, outcome: CompileOutcome, compiler: str, progress: Tell
) -> Estimate | None:
    """The compiler's estimate, its trace written to the package; ``--estimate`` allows that of the nearest chip."""
    device, estimate, instead = draft.situation.target.device, outcome.estimate, ""
    if not estimate and draft.options.get("estimate"):
        near = nearest_estimated(device)
        if not near:
            return None
        with scratch() as folder:
            shutil.copytree((package / MODEL).parent, (folder / MODEL).parent)
            options = {**job.options, "soc_model": str(near.fact("soc_model"))}
            estimate = compile_model(replace(job, root=folder, options=options), progress).estimate
        device, instead = near, device.name
    if not estimate:
        return None
    timeline = TIMELINE if estimate.events else ""
    told = replace(estimate, compiler=compiler, chip=device.name, instead_of=instead, timeline=timeline)
    if timeline:
        (package / TIMELINE).write_text(json.dumps(chrome_trace(told), separators=(",", ":")) + "\n", "utf-8")
    return told


def _audited(package: Path, draft: ProviderDraft, right: Correctness, progress: Tell, *, doubted: bool) -> Audit | None:
    """The audit of single kernels, also written into the package; None if it is off, not possible or finds nothing.

    If the outputs are right on real inputs, a kernel that is wrong elsewhere is a warning.
    """
    level = str(draft.options.get("kernels", "off"))
    if level == "off" or installed_wheel() is None:
        return None
    audit = with_count(audit_draft(draft, level=level, progress=progress, doubted=doubted), draft)
    if not audit.findings:
        return None
    if right.state is Right.YES:
        lowered = (
            replace(finding, severity=Severity.WARNING) if finding.severity is Severity.ERROR else finding
            for finding in audit.findings
        )
        audit = replace(audit, findings=tuple(lowered))
    (package / AUDIT).write_text(json_text({"schema": 1, **audit.to_json()}), "utf-8")
    return audit


def _record(plan: Plan[None], wheel: Mapping[str, str], outcome: CompileOutcome) -> Json:
    options = plan.configs[COMPILE]["provider_options"]
    return {
        "status": outcome.status,
        **wheel,
        "soc_model": int(options["soc_model"]),
        "finalization_mode": options.get("htp_graph_finalization_optimization_mode", "default"),
        "graphs": len(outcome.graphs),
        "nodes_on_cpu": len(outcome.cpu_nodes),
        "schematic": bool(outcome.schematics),
    }


def _judge_numbers(
    package: Path, draft: ProviderDraft, plan: Plan[None], aids: Aids, host: Host | None, kernels: tuple[Hashable, ...]
) -> NumericScope:
    """The emulator's outputs judged against the file on the CPU and against float; ``not_run`` says why not."""
    if installed_wheel() is None and (host is None or host.emulator is None):
        return NumericScope(not_run="no emulator is installed here: pip install 'deploykit[ort-qnn]' (Linux x86-64)")
    prepared, samples, original = draft.prepared, aids.samples(), aids.original()
    limit = _MADE_UP_SECONDS if samples.label is Label.ARBITRARY else math.inf
    same = Same(prepared or draft.situation.model.proto), Same(original and original.judge), samples
    job = EmulationJob(
        root=package,
        qdq=MODEL,
        facts=facts_of(draft.situation.model.proto if prepared is None else prepared.model),
        context=CONTEXT,
        options={"soc_model": plan.configs[COMPILE]["provider_options"]["soc_model"]},
        inputs=tuple(samples.varied if original is None else original.judge.feeds),
        label=samples.label,
        bits=0 if prepared is None else narrowest(prepared.placed[name] for name in prepared.activations),
        original=original,
        tail=TAIL if (package / TAIL).exists() else "",
        allow_cpu=draft.chosen.allows_cpu,
        timeout=min(float(draft.options["time_limit"]), limit),
        host=host,
        keep=draft.situation.request.keep_samples,
        shared=aids.shared,
        kernels=kernels and (*kernels, *same),
    )
    try:
        return compare(job, aids.progress)
    except ToolError as error:
        return NumericScope(not_run=error.why, is_spared=limit < math.inf and error.why.endswith(LATE))


def device_job(package: Path, manifest: Json, request: DeviceRequest) -> DeviceJob:
    """The job that runs the context in the device's own Python, whose wheel must be the package's. Raises ToolError.

    On this machine a toolchain with that wheel runs it, unless another Python was named.
    """
    if not (package / CONTEXT).is_file():
        raise ToolError(f"{package}: is not compiled", next="deploykit build, where the wheel is installed")
    place = request.place
    if place.kind == "adb":
        raise ToolError(
            f"{place.name}: this package is not run through adb",
            why="an Android device has no Python that onnxruntime-qnn is made for",
            next="a package of --backend qnn-htp runs there by the SDK's own program",
        )
    release = (manifest.get("sdk") or {}).get("version", "")
    if (place.kind, place.python) == ("local", HERE.python):
        hosts = [toolchain_host(wheel) for wheel in tables().wheels if wheel.version == release]
        for emulator in (host.emulator for host in hosts if host and host.emulator):
            request = replace(request, place=replace(place, python=emulator.python))
    config = read_json(package / RUN)
    options = dict(config["provider_options"])
    if request.power:
        options["htp_performance_mode"] = POWER[request.power]
    paths = sorted((package / CONTEXT).parent.glob(f"{Path(CONTEXT).stem}*"))
    asked = {
        "model": CONTEXT,
        "provider": _PROVIDER,
        "options": options,
        "entries": config["session_entries"],
        "plugin": _PLUGIN,
        "profile_options": {"profiling_level": "detailed", "profiling_file_path": PROVIDER_PROFILE},
    }
    return session_job(
        request,
        asked,
        [DeviceFile(path.relative_to(package).as_posix(), path) for path in paths],
        distributions={"onnxruntime-qnn": str(release)},
        # On such a machine the provider's library is an emulator.
        where="emulator" if place.machine == "x86_64" else "device",
    )


def device_results(package: Path, request: DeviceRequest, folder: Path) -> DeviceResults:
    """A run's results: the accelerator's cycles from the provider's profile, the host's kernels from the session's."""
    origins = origins_of(package / MODEL)
    if (package / EVIDENCE).is_file():
        origins = compiled_origins(read_evidence(package / EVIDENCE)[0], origins.nodes)
    results = session_results(request, folder, origins, npu=_PROVIDER)
    if not (folder / PROVIDER_PROFILE).is_file():
        return results
    on_host = (one for one in results.operators if one.on == "CPU")
    return replace(results, operators=(*read_profile_csv(folder / PROVIDER_PROFILE, origins).operators, *on_host))
