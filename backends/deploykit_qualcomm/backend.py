"""What the backends for these chips answer and ask alike, whatever converts the model; each adds what is its own.

Cheap to import; what needs more is imported when it is called.
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

# Where the workflow lies in the package.
WORKFLOW = "scripts/github-actions/compile.yml"


P = TypeVar("P")
D = TypeVar("D")


class QualcommBackend(Backend[P, D]):
    """The part of a backend that the shared tables and rules decide; ``id`` says whose devices and rows are meant."""

    def devices(self) -> tuple[Device, ...]:
        """Every device of the shared tables that this backend packages for."""
        from deploykit_qualcomm.devices import qualcomm_devices

        return tuple(device for device in qualcomm_devices() if self.id in device.backends)

    def device_of_id(self, name: str) -> Device | None:
        """One of them, from its own file alone."""
        from deploykit_qualcomm.devices import device_of_id

        found = device_of_id(name)
        return found if found is not None and self.id in found.backends else None

    def source_dates(self) -> Mapping[str, str]:
        """When the shared tables were compared with their sources."""
        from deploykit_qualcomm.tables import tables

        return tables().source_file.dates

    def reserved_codes(self) -> Mapping[str, str]:
        """Codes that the shared rules had once."""
        from deploykit_qualcomm.rules.registries import RESERVED

        return RESERVED

    def rated(self, finding: Finding) -> Finding:
        """What stands in the way of the HTP, although it need not elsewhere."""
        from deploykit_qualcomm.rules.constraints import rated

        return rated(finding)

    def binary_rows(self, built_with: str, built_for: str, runtime: str, arch: str) -> Iterable[CompatRow]:
        """Whether a context binary loads elsewhere, as rows with their sources."""
        from deploykit_qualcomm.carriers import binary_rows

        return binary_rows(self.id, built_with, built_for, runtime, arch)

    def known_errors(self) -> Catalog:
        """Known messages of the QAIRT tools, of the runtime and of AIMET."""
        from deploykit_qualcomm.known_errors import known_errors

        return known_errors()

    def quantizers(self, target: Target) -> tuple[Quantizer, ...]:
        """AIMET, for every chip whose architecture it can simulate."""
        from deploykit_qualcomm.aimet import AIMET, configuration

        return (AIMET,) if configuration(target) else ()

    def wanted_toolchains(self, target: Target) -> tuple[str, ...]:
        """The quantizers' own; which compiler runs is a question of the SDK's version."""
        return tuple(one.toolchain for one in self.quantizers(target))
