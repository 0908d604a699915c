"""The base of both Qualcomm backends: what they share, whichever tool converts the model.

It is cheap to import: what needs more is imported inside the methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from deploykit.backend.backend import Backend
from deploykit.backend.options import OptionSpec

if TYPE_CHECKING:
    from deploykit.backend.quantizers import Quantizer
    from deploykit.backend.targets import Target
    from deploykit.findings import Finding
    from deploykit.tables.capabilities import CompatRow
    from deploykit.tables.devices import Device
    from deploykit.tables.known_errors import Catalog

__all__ = ["EMIT", "WORKFLOW", "QualcommBackend"]


EMIT = OptionSpec(
    "emit",
    "choice",
    choices=("github-actions",),
    help="Add a workflow to the package that compiles it on a machine that can.",
)

# The path of the workflow in the package.
WORKFLOW = "scripts/github-actions/compile.yml"


P = TypeVar("P")
D = TypeVar("D")


class QualcommBackend(Backend[P, D]):
    """The methods that the shared tables and rules decide; ``id`` chooses the backend's devices and rows."""

    def devices(self) -> tuple[Device, ...]:
        """Every device of the shared tables that this backend packages for."""
        from deploykit_qualcomm.devices import qualcomm_devices

        return tuple(device for device in qualcomm_devices() if self.id in device.backends)

    def device_of_id(self, name: str) -> Device | None:
        """The device of an id, read from its own file only; None if this backend does not have it."""
        from deploykit_qualcomm.devices import device_of_id

        found = device_of_id(name)
        return found if found is not None and self.id in found.backends else None

    def source_dates(self) -> Mapping[str, str]:
        """The dates on which the shared tables were compared with their sources."""
        from deploykit_qualcomm.tables import tables

        return tables().source_file.dates

    def reserved_codes(self) -> Mapping[str, str]:
        """Codes of shared rules that no longer exist."""
        from deploykit_qualcomm.rules.registries import RESERVED

        return RESERVED

    def rated(self, finding: Finding) -> Finding:
        """The finding with the severity that the HTP's constraints give it; elsewhere it may be milder."""
        from deploykit_qualcomm.rules.constraints import rated

        return rated(finding)

    def binary_rows(self, built_with: str, built_for: str, runtime: str, arch: str) -> Iterable[CompatRow]:
        """Rows with their sources on whether a context binary loads on another release and architecture."""
        from deploykit_qualcomm.carriers import binary_rows

        return binary_rows(self.id, built_with, built_for, runtime, arch)

    def known_errors(self) -> Catalog:
        """Known messages of the QAIRT tools, the runtime and AIMET."""
        from deploykit_qualcomm.known_errors import known_errors

        return known_errors()

    def quantizers(self, target: Target) -> tuple[Quantizer, ...]:
        """AIMET, for every chip whose architecture it can simulate."""
        from deploykit_qualcomm.aimet import AIMET, configuration

        return (AIMET,) if configuration(target) else ()

    def wanted_toolchains(self, target: Target) -> tuple[str, ...]:
        """The toolchains of the quantizers; the compiler's depends on the SDK's version and is not listed."""
        return tuple(one.toolchain for one in self.quantizers(target))
