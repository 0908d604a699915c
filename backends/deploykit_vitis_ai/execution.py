"""Runs Quark in its environment while packaging, then inspects its model and judges its outputs.

Compiling for the NPU happens in the vendor's container or on the PC, by ``deploykit build`` and the scripts.
"""

from __future__ import annotations

from pathlib import Path

from deploykit.accuracy.judge.rules import RULES as COMPARISON_RULES
from deploykit.accuracy.judge.rules import Judged
from deploykit.backend.backend import Aids, Execution, Instead
from deploykit.backend.on_device import DeviceFile, DeviceJob, DeviceRequest, DeviceResults
from deploykit.backend.plans import Plan
from deploykit.backend.status import Correctness
from deploykit.devices.profiles import origins_of
from deploykit.devices.sessions import session_job, session_results
from deploykit.errors import ToolError
from deploykit.findings import Findings
from deploykit.findings.records import Json, Names, finite, replace
from deploykit.tables.reading import read_json
from deploykit_vitis_ai import configs
from deploykit_vitis_ai.draft import QuarkDraft, ladder
from deploykit_vitis_ai.prepare import QuarkPrepared
from deploykit_vitis_ai.rules.execution import RULES as OUTCOME_RULES
from deploykit_vitis_ai.rules.execution import QuarkOutcome
from deploykit_vitis_ai.rules.quantized import RULES as QUANTIZED_RULES
from deploykit_vitis_ai.runner import RESULT, EndlessError, quark_environment
from deploykit_vitis_ai.search import Measured, find_better, measure, tried
from deploykit_vitis_ai.verification import inspected

__all__ = ["device_job", "device_results", "execute"]

_SESSION = "config/session.json"


def execute(package: Path, details: QuarkPrepared, plan: Plan[None], aids: Aids) -> Execution:
    """Quantizes inside the unpublished package if the toolchain is installed, and judges the result.

    If the outputs are wrong, parts that integers damage are tried in float, and a better package is proposed. A format
    that the compiler makes itself (BF16) is imitated in a copy, if there is data.
    """
    del plan
    draft, progress = details.draft, aids.progress
    is_imitated = details.calibration is not None and (package / configs.VALIDATION).is_file()
    if not (draft.needs_quark or is_imitated):
        return Execution()
    environment = quark_environment(draft.toolchain)
    state = environment.state(with_size=False).state
    if not draft.needs_quark:
        if state != "ready":
            why = f"bf16 is imitated by Quark, which is {state}: deploykit toolchain install {draft.toolchain}"
            return Execution(right=Correctness(why=why))
        seen = tried(environment, package, details, draft.situation.request, progress)
        return Execution() if seen is None else Execution(findings=_quality_findings(details, seen), right=seen.right)
    if state != "ready":
        if draft.situation.request.compile:
            environment.require()
        outcome = QuarkOutcome(
            toolchain=draft.toolchain,
            state=state,
            untried=draft.precision if draft.ladder else "",
            room=f"{environment.spec.disk_mb / 1000:.1f} GB, about {environment.spec.minutes} minutes",
        )
        return Execution(findings=OUTCOME_RULES.run(outcome))
    try:
        measured = measure(environment, package, draft, progress)
    except EndlessError as error:
        # The same without equalization, unless the user asked for it by name.
        request = draft.situation.request
        if "include_cle" in dict(request.options):
            raise
        outcome = QuarkOutcome(toolchain=draft.toolchain, state="ready", endless=error.why)
        return Execution(
            instead=Instead(
                replace(request, options=(*request.options, ("include_cle", "false"))),
                "quantized without cross-layer equalization",
                findings=OUTCOME_RULES.run(outcome),
            )
        )
    found = find_better(environment, package, details, measured, progress)
    run = measured.run
    skipped = tuple((str(item["file"]), str(item["why"])) for item in run.result.get("skipped", []))
    # The trials that led to another package are reported there.
    outcome = QuarkOutcome(toolchain=draft.toolchain, state="ready") if found.instead else found.outcome
    outcome = replace(outcome, skipped=skipped, samples=run.result.get("samples"))
    quantized, comparison = inspected(package), measured.comparison
    record = {
        "quark": run.result.get("quark"),
        "samples": run.result.get("samples"),
        "random_data": draft.random_data,
        "quantized_model": run.output,
    }
    if details.survey is not None:
        record["calibration"] = details.survey.to_json()
    if comparison is not None:
        record["quality"] = {
            name: {key: finite(value) and round(value, 9) for key, value in output.summary().items()}
            for name, output in comparison.outputs.items()
        }
    return Execution(
        executed=("quantize",),
        outputs=(run.output, RESULT),
        record=record,
        findings=(
            *OUTCOME_RULES.run(outcome),
            *(() if quantized is None else QUANTIZED_RULES.run(quantized)),
            *_quality_findings(details, measured),
        ),
        right=_right(draft, measured),
        instead=found.instead,
    )


def _wider(draft: QuarkDraft) -> Names:
    """The device's precisions above the one that was made, the next one first."""
    rungs, made = ladder(draft.offered), draft.precision
    return rungs[rungs.index(made) + 1 if made in rungs else 1 :]


def _right(draft: QuarkDraft, measured: Measured) -> Correctness | None:
    """The judge's verdict; where more is lost than needed, with the next wider precision."""
    right, wider, quality = measured.right, _wider(draft), measured.quality
    if not (right and quality and quality.verdict.loses and wider):
        return right
    return replace(right, why=f"{right.why}; --precision {wider[0]} is wider, and is judged in the same way")


def _quality_findings(details: QuarkPrepared, measured: Measured) -> Findings:
    """The findings of ``deploykit accuracy compare`` on the calibration samples: they show dead outputs at once."""
    if measured.comparison is None or measured.quality is None:
        return ()
    draft = details.draft
    judged = Judged(
        comparison=measured.comparison,
        facts=draft.facts,
        model=draft.situation.request.model.name,
        target=draft.situation.target.device.id,
        precision=draft.precision_with_exclusions,
        verdict=measured.quality.verdict,
    )
    return COMPARISON_RULES.run(judged)


def device_job(package: Path, manifest: Json, request: DeviceRequest) -> DeviceJob | None:
    """The job that runs the compiled model with the provider in the board's
    or PC's Python; None without such a provider.

    Raises ToolError for a package that is not compiled: the provider would silently run it on the CPU.
    """
    del manifest
    if request.place.kind != "ssh":
        return None
    session = read_json(package / _SESSION)
    options = {str(key): str(value) for key, value in session["provider_options"].items()}
    cache = package / options["cache_dir"]
    if not (cache / options["cache_key"]).exists() and not (cache / f"{options['cache_key']}.rai").is_file():
        raise ToolError(
            f"{package}: is not compiled", next="deploykit build, or scripts/compile.py where the tools are"
        )
    model = package / str(session["model"])
    paths = [model, *sorted((package / "config").glob("*.json")), *sorted(cache.rglob("*"))]
    files = [DeviceFile(path.relative_to(package).as_posix(), path) for path in paths if path.is_file()]
    asked = {"model": files[0].path, "provider": session["providers"][0], "options": options}
    return session_job(request, asked, files)


def device_results(package: Path, request: DeviceRequest, folder: Path) -> DeviceResults:
    """The results of a run, with the kernels from the session's own profile."""
    session = read_json(package / _SESSION)
    origins = origins_of(package / str(session["model"]))
    return session_results(request, folder, origins, npu=str(session["providers"][0]))
