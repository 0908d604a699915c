"""The backend object: the methods of ``deploykit.backend.backend.Backend``, each calls the module that does the work.

It is cheap to import: modules that need onnx or numpy are imported inside the methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.findings.records import Json, Names, Tell
from deploykit_qualcomm.backend import QualcommBackend

if TYPE_CHECKING:
    from deploykit.backend.backend import (
        Aids,
        Execution,
        MixedSupport,
        PackageFile,
        SharedWork,
        Situation,
        Verification,
    )
    from deploykit.backend.on_device import DeviceJob, DeviceRequest, DeviceResults
    from deploykit.backend.opinions import Audit, Compiler, Opinion
    from deploykit.backend.options import OptionSpec
    from deploykit.backend.plans import Plan
    from deploykit.backend.probes import Probe
    from deploykit.backend.quantizers import Quantizer
    from deploykit.backend.targets import Target
    from deploykit.findings import Finding
    from deploykit.findings.rules import Registry
    from deploykit.system.specs import ToolchainSpec
    from deploykit.tables.capabilities import CompatRow
    from deploykit.tables.devices import Device
    from deploykit_ort_qnn.prepare import ProviderDraft as Prepared

__all__ = ["OrtQnn"]


class OrtQnn(QualcommBackend["Prepared", None]):
    """Qualcomm HTP through ONNX Runtime's QNN provider."""

    id = "ort-qnn"
    summary = "Qualcomm HTP through ONNX Runtime's QNN provider: compiled, typed and emulated on the build machine"

    def options(self) -> tuple[OptionSpec, ...]:
        """The options of compilation, and how strictly its result is judged."""
        from deploykit_ort_qnn.options import OPTIONS

        return OPTIONS

    def registries(self) -> tuple[Registry[Any], ...]:
        """The shared rules, then those about the plan, the environment,
        the compilation, types, numbers and the package.
        """
        from deploykit_ort_qnn.rules import audit, compiled, numerics, prepared
        from deploykit_qualcomm.rules.registries import PROVIDER, SHARED

        before = (*SHARED, *PROVIDER, prepared.RULES, compiled.ENVIRONMENT_RULES)
        types = (compiled.RULES, compiled.BUDGET_RULES, numerics.PRECISION_RULES, numerics.RULES)
        return (*before, *types, compiled.PACKAGE_RULES, compiled.DLC_RULES, audit.RULES, audit.COUNT_RULES)

    def compat(self) -> Iterable[CompatRow]:
        """Rows of the shared tables, of the provider's options, and the measured operators of each release."""
        from deploykit_ort_qnn.compat import kernel_rows, operator_rows, option_rows
        from deploykit_qualcomm.compat import compat_rows

        yield from compat_rows(self.id)
        yield from option_rows()
        yield from operator_rows()
        yield from kernel_rows()

    def resolve(self, device: Device, sdk: str | None) -> Target:
        """The device under the QAIRT that the wanted wheel carries; ``sdk`` is a wheel's or a QAIRT's version."""
        from deploykit_ort_qnn.planning import resolve

        return resolve(device, sdk)

    def prepare(self, situation: Situation, shared: SharedWork) -> Prepared:
        """Works out all that the plan needs: the model that the compiler gets, its options and its findings."""
        from deploykit_ort_qnn.prepare import prepare

        return prepare(situation, shared)

    def plan(self, prepared: Prepared) -> Plan[None]:
        """Decides the commands, the files and the findings."""
        from deploykit_ort_qnn.planning import make_plan

        return make_plan(prepared)

    def render(self, prepared: Prepared, plan: Plan[None], templates: Path | None) -> Iterable[PackageFile]:
        """Gives the package's files: the QDQ model, options and scripts."""
        from deploykit_ort_qnn.rendering import package_files

        return package_files(prepared, plan, templates)

    def execute(self, package: Path, prepared: Prepared, plan: Plan[None], aids: Aids) -> Execution:
        """Compiles the model, reads the types it was compiled in, and emulates it."""
        from deploykit_ort_qnn.execution import execute

        return execute(package, prepared, plan, aids)

    def audit(self, prepared: Prepared, *, level: str, progress: Tell, given: Situation | None = None) -> Audit:
        """Runs each kernel of the model to be compiled by itself on the emulator, and judges it."""
        from deploykit_ort_qnn.bench.audit import audit_draft, with_count

        found = audit_draft(prepared, level=level, progress=progress, given=given)
        return found if given is None else with_count(found, prepared)

    def verify(self, package: Path, manifest: Json) -> Verification:
        """Judges a package on disk."""
        from deploykit_ort_qnn.verification import verify

        return verify(package, manifest)

    def device_job(self, package: Path, manifest: Json, request: DeviceRequest) -> DeviceJob:
        """The job that runs the package's context with the provider in the device's Python."""
        from deploykit_ort_qnn.execution import device_job

        return device_job(package, manifest, request)

    def device_results(self, package: Path, request: DeviceRequest, folder: Path) -> DeviceResults:
        """The outputs, times and profiles of a run on a device."""
        from deploykit_ort_qnn.execution import device_results

        return device_results(package, request, folder)

    def inspect(self, path: Path) -> Json:
        """The metadata of a compiled context binary or model. Raises InputError for any other file."""
        from deploykit_ort_qnn.compiler.contexts import inspect_context

        return inspect_context(path)

    def mixed_support(self, target: Target, options: Json) -> MixedSupport:
        """Integers for all tensors; float16 tensors in the same graph if the chip supports float16."""
        from deploykit_ort_qnn.planning import mixed_support

        del options
        return mixed_support(target)

    def probes(self) -> Iterable[Probe]:
        """Probes of this machine: the wheel, the ONNX Runtime beside it, and whether the provider registers."""
        from deploykit_qualcomm.carriers import probe_hosts
        from deploykit_qualcomm.probes import probe_wheel

        return probe_wheel, probe_hosts

    def time_us(self, model: bytes, device: Device, progress: Tell) -> float | None:
        """The estimated microseconds of one run of a QDQ or float model, by the installed wheel's compiler."""
        from deploykit_ort_qnn.bench.opinions import time_us

        return time_us(model, device, progress)

    def compilers(self, device: Device, sdk: str) -> tuple[Compiler, ...]:
        """The compiler of the nearest release that runs here, and that of the installed wheel."""
        from deploykit_ort_qnn.bench.opinions import compilers_for

        return compilers_for(device, sdk)

    def releases_here(self) -> Names:
        """The versions of the wheels that run here: the installed one, and those of toolchains that are ready."""
        from deploykit_ort_qnn.bench.opinions import wheels_here

        return tuple(wheel.version for wheel in wheels_here())

    def settle(
        self,
        situation: Situation,
        findings: Sequence[Finding],
        *,
        compiler: Compiler,
        shared: SharedWork,
        seconds: float,
        progress: Tell,
    ) -> tuple[Opinion, ...]:
        """One compiler's opinions on findings of this backend, or of another backend for the same devices."""
        from deploykit_ort_qnn.bench.opinions import settle

        return settle(situation, findings, release=compiler.release, shared=shared, seconds=seconds, progress=progress)

    def quantizers(self, target: Target) -> tuple[Quantizer, ...]:
        """AIMET; with weight blocks for layers that become a MatMul, if the release's provider takes block weights."""
        from deploykit_ort_qnn.prepare import wheel_for
        from deploykit_qualcomm.aimet import Aimet
        from deploykit_qualcomm.carriers import forms_of

        refuses = forms_of(wheel_for(target.requested)).refuses
        return tuple(
            Aimet(() if "block-weights" in refuses else ("Gemm", "MatMul")) for _ in super().quantizers(target)
        )

    def block_weight_path(self, *, op_type: str, lpbq: bool, has_bias: bool, sdk: str) -> str:
        """Describes what the provider makes of a layer with block-quantized weights."""
        from deploykit_ort_qnn.forms.blocks import block_weight_path
        from deploykit_ort_qnn.prepare import wheel_for

        return block_weight_path(op_type=op_type, lpbq=lpbq, has_bias=has_bias, wheel=wheel_for(sdk).version)

    def toolchains(self) -> tuple[ToolchainSpec, ...]:
        """Isolated environments for the wheel and for AIMET."""
        from deploykit_qualcomm.carriers import qualcomm_toolchains

        return qualcomm_toolchains(self.id)
