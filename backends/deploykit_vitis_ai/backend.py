"""The vitis-ai backend behind ``deploykit.backend.backend``: each method calls the module that works."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.backend.backend import Aids, Backend, Execution, PackageFile, SharedWork, Situation, Verification
from deploykit.findings.records import Json

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
        """One of them, from its own file alone."""
        from deploykit_vitis_ai.tables import device_of_id

        return device_of_id(name)

    def options(self) -> tuple[OptionSpec, ...]:
        """What stays in float, and calibration without data."""
        from deploykit_vitis_ai.options import OPTIONS

        return OPTIONS

    def registries(self) -> tuple[Registry[Any], ...]:
        """The rules of this backend."""
        from deploykit_vitis_ai import targets
        from deploykit_vitis_ai.rules import execution, model, quantized, request, summary

        return (targets.RULES, request.RULES, model.RULES, quantized.RULES, execution.RULES, summary.RULES)

    def compat(self) -> Iterable[CompatRow]:
        """Every row of every table."""
        from deploykit_vitis_ai.compat import compat_rows

        return compat_rows()

    def source_dates(self) -> Mapping[str, str]:
        """When the tables were compared with their sources."""
        from deploykit_vitis_ai.tables import source_file

        return source_file().dates

    def toolchains(self) -> tuple[ToolchainSpec, ...]:
        """The environments for AMD Quark, one per release that was tried."""
        from deploykit.backend.toolchains import load_toolchains
        from deploykit_vitis_ai.tables import DATA

        return load_toolchains(DATA / "toolchains", backend=self.id, files=DATA.parent)

    def wanted_toolchains(self, target: Target) -> tuple[str, ...]:
        """The Quark that the target's release takes."""
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
        """Everything the decision needs; nothing of it is shared between targets."""
        from deploykit_vitis_ai.prepare import prepare

        del shared
        return prepare(situation)

    def plan(self, prepared: QuarkPrepared) -> Plan[None]:
        """Decide."""
        from deploykit_vitis_ai.planning import make_plan

        return make_plan(prepared)

    def render(self, prepared: QuarkPrepared, plan: Plan[None], templates: Path | None) -> Iterable[PackageFile]:
        """Model, calibration data, configurations and scripts."""
        from deploykit_vitis_ai.rendering import render_package

        return render_package(prepared, plan, templates)

    def execute(self, package: Path, prepared: QuarkPrepared, plan: Plan[None], aids: Aids) -> Execution:
        """Quantize where the toolchain is installed, and judge the result."""
        from deploykit_vitis_ai.execution import execute

        return execute(package, prepared, plan, aids)

    def quantized(self, package: Path, manifest: Json) -> Path | None:
        """Quark's model in a package, None where Quark did not run."""
        made = manifest.get("record", {}).get("quantized_model")
        return package / made if made else None

    def device_job(self, package: Path, manifest: Json, request: DeviceRequest) -> DeviceJob | None:
        """The compiled model in the provider of a device's Python."""
        from deploykit_vitis_ai.execution import device_job

        return device_job(package, manifest, request)

    def device_results(self, package: Path, request: DeviceRequest, folder: Path) -> DeviceResults:
        """Outputs, times and kernels of such a run."""
        from deploykit_vitis_ai.execution import device_results

        return device_results(package, request, folder)

    def verify(self, package: Path, manifest: Json) -> Verification:
        """Judge a package on disk."""
        from deploykit_vitis_ai.verification import verify

        return verify(package, manifest)


backend = VitisAiBackend()
