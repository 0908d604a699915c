"""The backend object: the methods of ``deploykit.backend.backend.Backend``, each calls the module that does the work.

It is cheap to import: modules that need onnx or numpy are imported inside the methods.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.findings.records import Json
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
    from deploykit.backend.options import OptionSpec
    from deploykit.backend.plans import Plan
    from deploykit.backend.probes import Probe
    from deploykit.backend.targets import Target
    from deploykit.findings.rules import Registry
    from deploykit.tables.capabilities import CompatRow
    from deploykit.tables.devices import Device
    from deploykit_qnn_htp.planning import ConversionPart, ConversionPlan
    from deploykit_qnn_htp.prepare import PreparedConversions

__all__ = ["QnnHtp"]


class QnnHtp(QualcommBackend["PreparedConversions", "tuple[ConversionPart, ...]"]):
    """Qualcomm HTP through QAIRT's own converters."""

    id = "qnn-htp"
    summary = "Qualcomm HTP through QAIRT: converter commands, configuration, build and run scripts"

    def options(self) -> tuple[OptionSpec, ...]:
        """The options for routes, calibration, segments and a second graph."""
        from deploykit_qnn_htp.options import OPTIONS

        return OPTIONS

    def registries(self) -> tuple[Registry[Any], ...]:
        """The shared rules, then those of converters, drafts and routes."""
        from deploykit_qnn_htp.rules import prepared, routes
        from deploykit_qualcomm.rules.registries import CONVERTERS, SHARED

        return (*SHARED, *CONVERTERS, prepared.RULES, routes.RULES)

    def compat(self) -> Iterable[CompatRow]:
        """Every row of the SDK tables."""
        from deploykit_qualcomm.compat import compat_rows, method_rows

        yield from compat_rows(self.id)
        yield from method_rows(self.id)

    def resolve(self, device: Device, sdk: str | None) -> Target:
        """The device under the SDK table that holds for a version."""
        from deploykit_qualcomm.resolving import resolve_target

        return resolve_target(device, sdk, self.id)

    def prepare(self, situation: Situation, shared: SharedWork) -> PreparedConversions:
        """Works out all that the plan needs; only what another backend prepares is shared between targets."""
        from deploykit_qnn_htp.prepare import prepare

        return prepare(situation, shared)

    def plan(self, prepared: PreparedConversions) -> Plan[tuple[ConversionPart, ...]]:
        """Decides the routes, the commands and the findings."""
        from deploykit_qnn_htp.planning import make_plan

        return make_plan(prepared)

    def render(
        self, prepared: PreparedConversions, plan: ConversionPlan, templates: Path | None
    ) -> Iterable[PackageFile]:
        """Gives the package's files: model, encodings, calibration data, configurations and scripts."""
        from deploykit_qnn_htp.rendering import package_files

        return package_files(prepared, plan, templates)

    def execute(self, package: Path, prepared: PreparedConversions, plan: ConversionPlan, aids: Aids) -> Execution:
        """Runs the compiler of a wheel if the route has one; else nothing,
        as the user's SDK runs in ``deploykit build``.
        """
        from deploykit.backend.backend import Execution

        del prepared
        provider = next((part.provider for part in plan.details or () if part.provider is not None), None)
        return Execution() if provider is None else provider.execute(package, aids)

    def verify(self, package: Path, manifest: Json) -> Verification:
        """Judges a package on disk."""
        from deploykit_qnn_htp.verification import verify

        return verify(package, manifest)

    def device_job(self, package: Path, manifest: Json, request: DeviceRequest) -> DeviceJob | None:
        """The job that runs the context binaries with the SDK's own program; None on a machine without such a
        device.
        """
        from deploykit_qnn_htp.execution import device_job

        return device_job(package, manifest, request)

    def device_results(self, package: Path, request: DeviceRequest, folder: Path) -> DeviceResults:
        """The outputs, times and cycles of a run on a device."""
        from deploykit_qnn_htp.execution import device_results

        return device_results(package, request, folder)

    def calibrates_itself(self, situation: Situation) -> bool:
        """True if the user named a route, or insists on calibration inside the converter."""
        own = situation.request.adapter_options
        return own.get("input_list") is True or own.get("route") is not None

    def mixed_support(self, target: Target, options: Json) -> MixedSupport:
        """Integers for all tensors; a float fallback if the architecture supports float16."""
        from deploykit_qnn_htp.selection import mixed_support

        return mixed_support(target, options)

    def probes(self) -> Iterable[Probe]:
        """Probes of this machine: SDK roots, their tools and Python, the NDK, adb."""
        from deploykit_qualcomm.probes import probe_adb, probe_ndk, probe_sdks

        return probe_sdks, probe_ndk, probe_adb
