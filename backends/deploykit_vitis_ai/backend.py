"""The vitis-ai backend behind ``deploykit.backend.backend``: each method calls the module that does the work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.backend.backend import Aids, Backend, Execution, PackageFile, SharedWork, Situation, Verification
from deploykit.findings.records import Json, Names

if TYPE_CHECKING:
    from deploykit.backend.on_device import DeviceJob, DeviceRequest, DeviceResults
    from deploykit.backend.options import OptionSpec
    from deploykit.backend.plans import Plan
    from deploykit.backend.targets import Target
    from deploykit.findings.rules import Registry
    from deploykit.system.specs import ToolchainSpec
    from deploykit.tables.capabilities import CompatRow
    from deploykit.tables.devices import Device
    from deploykit.tables.known_errors import Catalog
    from deploykit_vitis_ai.prepare import QuarkPrepared

__all__ = ["backend"]


class VitisAiBackend(Backend["QuarkPrepared", None]):
    """Versal AI Edge Gen 2 (VAIML) and Ryzen AI, both through ONNX Runtime's VitisAIExecutionProvider."""

    id = "vitis-ai"
    quantizer = "quark"
    summary = "AMD Versal AI Edge Gen 2 and Ryzen AI: Quark recipes, provider options, compile and run scripts"

    def devices(self) -> tuple[Device, ...]:
        """The devices of this backend's data files."""
        from deploykit_vitis_ai.tables import devices

        return devices()

    def device_of_id(self, name: str) -> Device | None:
        """The device of an id, read from its own file only, or None."""
        from deploykit_vitis_ai.tables import device_of_id

        return device_of_id(name)

    def options(self) -> tuple[OptionSpec, ...]:
        """Options for the parts that stay in float, and for calibration without data."""
        from deploykit_vitis_ai.options import OPTIONS

        return OPTIONS

    def registries(self) -> tuple[Registry[Any], ...]:
        """The rules of this backend."""
        from deploykit_vitis_ai import targets
        from deploykit_vitis_ai.rules import execution, model, quantized, request, summary

        return (targets.RULES, request.RULES, model.RULES, quantized.RULES, execution.RULES, summary.RULES)

    def compat(self) -> Iterable[CompatRow]:
        """Every row of this backend's tables."""
        from deploykit_vitis_ai.compat import compat_rows

        return compat_rows()

    def source_dates(self) -> Mapping[str, str]:
        """The dates on which the tables were compared with their sources."""
        from deploykit_vitis_ai.tables import source_file

        return source_file().dates

    def toolchains(self) -> tuple[ToolchainSpec, ...]:
        """The environments for AMD Quark, one per release that was tried."""
        from deploykit.backend.toolchains import load_toolchains
        from deploykit_vitis_ai.tables import DATA

        return load_toolchains(DATA / "toolchains", backend=self.id, files=DATA.parent)

    def wanted_toolchains(self, target: Target) -> Names:
        """The Quark environment that fits the target's release."""
        from deploykit_vitis_ai.draft import wanted_toolchain
        from deploykit_vitis_ai.targets import release_of

        return (wanted_toolchain(release_of(target)),)

    def known_errors(self) -> Catalog:
        """Known failures of Quark, of the compiler and of its runtime."""
        from deploykit_vitis_ai.tables import known_errors

        return known_errors()

    def resolve(self, device: Device, sdk: str | None) -> Target:
        """The device under one release of its product."""
        from deploykit_vitis_ai.targets import resolve

        return resolve(device, sdk)

    def prepare(self, situation: Situation, shared: SharedWork) -> QuarkPrepared:
        """Works out all that the plan needs; nothing is shared between targets."""
        from deploykit_vitis_ai.prepare import prepare

        del shared
        return prepare(situation)

    def plan(self, prepared: QuarkPrepared) -> Plan[None]:
        """Decides the route, the steps and the findings."""
        from deploykit_vitis_ai.planning import make_plan

        return make_plan(prepared)

    def render(self, prepared: QuarkPrepared, plan: Plan[None], templates: Path | None) -> Iterable[PackageFile]:
        """Gives the package's files: model, calibration data, configurations and scripts."""
        from deploykit_vitis_ai.rendering import render_package

        return render_package(prepared, plan, templates)

    def execute(self, package: Path, prepared: QuarkPrepared, plan: Plan[None], aids: Aids) -> Execution:
        """Quantizes if the toolchain is installed, and judges the result."""
        from deploykit_vitis_ai.execution import execute

        return execute(package, prepared, plan, aids)

    def quantized(self, package: Path, manifest: Json) -> Path | None:
        """The path of Quark's model in a package, None if Quark did not run."""
        made = manifest.get("record", {}).get("quantized_model")
        return package / made if made else None

    def device_job(self, package: Path, manifest: Json, request: DeviceRequest) -> DeviceJob | None:
        """The job that runs the compiled model with the provider in the device's Python."""
        from deploykit_vitis_ai.execution import device_job

        return device_job(package, manifest, request)

    def device_results(self, package: Path, request: DeviceRequest, folder: Path) -> DeviceResults:
        """The outputs, times and kernels of a run on a device."""
        from deploykit_vitis_ai.execution import device_results

        return device_results(package, request, folder)

    def verify(self, package: Path, manifest: Json) -> Verification:
        """Judges a package on disk."""
        from deploykit_vitis_ai.verification import verify

        return verify(package, manifest)


backend = VitisAiBackend()
