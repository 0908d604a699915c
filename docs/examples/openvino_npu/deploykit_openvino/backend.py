"""The stages: the model and scripts that quantize and compile it; here it is compiled for the CPU, which stands in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.backend.backend import Backend, Check, Execution, TextFile, Verification, copied_model
from deploykit.backend.options import OptionSpec
from deploykit.backend.plans import Plan, Rejected, Route, Step
from deploykit.backend.probes import CheckLine, Probe, Surroundings
from deploykit.backend.targets import Target
from deploykit.backend.toolchains import load_toolchains
from deploykit.findings import Confidence, Finding
from deploykit.findings.rules import Registry
from deploykit.tables.capabilities import CompatRow, Status
from deploykit.tables.devices import Device, load_devices
from deploykit.tables.known_errors import Catalog, load_catalog
from deploykit_openvino.rules import INT8, PRECISIONS, RULES

if TYPE_CHECKING:
    from deploykit.accuracy.samples.gathering import Samples
    from deploykit.backend.backend import Aids, PackageFile, SharedWork, Situation
    from deploykit.system.specs import ToolchainSpec

__all__ = ["OpenVinoNpu", "Prepared", "backend"]

_HERE = Path(__file__).parent
_SCRIPTS = ("scripts/convert.py", "scripts/build.sh")
_CALIBRATION = "calibration/rows.npz"
_MOST = 300
"""Samples to calibrate on: what NNCF takes of a data set when nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The situation, the precision, and what is calibrated on; None where nothing is quantized here."""

    situation: Situation
    precision: str
    findings: tuple[Finding, ...]
    calibration: Samples | None

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the script is told beside the device."""
        hint = str(self.situation.request.adapter_options["performance_hint"])
        data = ("--calibration", _CALIBRATION) if self.calibration is not None else ()
        return (*data, "--hint", hint.upper())


class OpenVinoNpu(Backend[Prepared, None]):
    """The NPUs of Intel's Core Ultra processors."""

    id = "openvino-npu"
    summary = "Intel NPUs through OpenVINO: INT8 by NNCF, scripts to compile; here the CPU stands in"

    def devices(self) -> tuple[Device, ...]:
        """One file each."""
        return load_devices(_HERE / "data/devices")

    def options(self) -> tuple[OptionSpec, ...]:
        """What the compilation is to favour."""
        choices = ("latency", "throughput")
        text = "What OpenVINO's compilation favours."
        return (OptionSpec(name="performance_hint", kind="choice", choices=choices, default="latency", help=text),)

    def registries(self) -> tuple[Registry[Any], ...]:
        """The rules of this backend."""
        return (RULES,)

    def compat(self) -> Iterable[CompatRow]:
        """What is offered."""
        said = (("int8", Status.SUPPORTED), ("fp16", Status.SUPPORTED), ("dynamic-shapes", Status.UNSUPPORTED))
        for feature, status in said:
            yield CompatRow(
                feature=feature,
                backend=self.id,
                tool="openvino",
                sdk="",
                status=status,
                since="",
                until="",
                note="",
                source=("docs.openvino.ai, Supported Devices and NPU Device",),
                confidence=Confidence.DOCUMENTED,
            )

    def known_errors(self) -> Catalog:
        """What OpenVINO's NPU plugin was seen to fail with."""
        return load_catalog([_HERE / "data/known_errors.toml"])

    def probes(self) -> Iterable[Probe]:
        """What ``doctor`` looks for."""
        return (look_for_npu,)

    def toolchains(self) -> tuple[ToolchainSpec, ...]:
        """OpenVINO with NNCF, in an environment of their own."""
        return load_toolchains(_HERE / "data/toolchains", backend=self.id)

    def resolve(self, device: Device, sdk: str | None) -> Target:
        """There is one toolchain; another release is the user's own affair."""
        return Target(device=device, backend=self.id, requested=sdk or "", sdk=None)

    def prepare(self, situation: Situation, shared: SharedWork) -> Prepared:
        """Which precision, and the samples to calibrate on."""
        del shared
        from deploykit.accuracy.samples.gathering import gather

        findings = RULES.run(situation)
        request = situation.request
        precision = "as it is" if situation.facts.is_qdq else request.precision or PRECISIONS[0]
        samples = None
        if precision == INT8 and not findings:
            samples = gather(situation.model.proto, situation.facts, calibration=request.calibration, most=_MOST)
        return Prepared(situation=situation, precision=precision, findings=findings, calibration=samples)

    def plan(self, prepared: Prepared) -> Plan[None]:
        """One script, unless a rule says no."""
        target = prepared.situation.target
        common: dict[str, Any] = {
            "backend": self.id,
            "target": target.device.to_json(),
            "sdk": target.sdk_json(),
            "findings": prepared.findings,
        }
        if prepared.findings:
            because = tuple(dict.fromkeys(finding.code for finding in prepared.findings))
            return Plan(route=None, rejected=(Rejected(id="convert", because=because),), **common)
        argv = ("python3", _SCRIPTS[0], "--device", "NPU", *prepared.arguments)
        step = Step(id="convert", tool="openvino", argv=argv, outputs=("artifacts/model.xml", "artifacts/model.blob"))
        why = f"{prepared.precision}, compiled by OpenVINO where the NPU is"
        return Plan(route=Route(id="convert", why=why, confidence=Confidence.DOCUMENTED), steps=(step,), **common)

    def render(self, prepared: Prepared, plan: Plan[None], templates: Path | None) -> Iterable[PackageFile]:
        """The model, the samples to calibrate on, and the scripts."""
        del plan
        from deploykit.backend.backend import BytesFile
        from deploykit.report.rendering import render
        from deploykit_openvino.standing_in import stored

        yield from copied_model(prepared.situation, "model/model.onnx")
        if prepared.calibration is not None:
            yield BytesFile(path=_CALIBRATION, data=stored(prepared.calibration.feeds))
        values = {
            "device": prepared.situation.target.device.name,
            "quantizes": prepared.calibration is not None,
            "arguments": prepared.arguments,
        }
        for path in _SCRIPTS:
            text = render(f"deploykit_openvino/{path}.j2", values, templates=templates, own=_HERE / "templates")
            yield TextFile(path=path, text=text, executable=True)

    def execute(self, package: Path, prepared: Prepared, plan: Plan[None], aids: Aids) -> Execution:
        """Where the toolchain is installed, the package's own script runs for the CPU, and its numbers are told."""
        if plan.route is None:
            return Execution()
        from deploykit_openvino.standing_in import stand_in

        situation, (spec,) = prepared.situation, self.toolchains()
        return stand_in(package, situation, spec, prepared.arguments, aids)

    def verify(self, package: Path, manifest: Mapping[str, Any]) -> Verification:
        """The scripts are there."""
        del manifest
        there = [(package / path).is_file() for path in _SCRIPTS]
        return Verification(checks=(Check(id="scripts", ok=all(there), detail=", ".join(_SCRIPTS)),))


def look_for_npu(around: Surroundings) -> Iterable[CheckLine]:
    """Is there a device file of the kernel's driver?"""
    found = sorted((around.root / "dev/accel").glob("accel*"))
    if found:
        yield CheckLine(id="openvino-npu", state="ok", detail=", ".join(map(str, found)))
    else:
        yield CheckLine(id="openvino-npu", state="absent", detail="no /dev/accel", next="install the NPU's driver")


backend = OpenVinoNpu()
