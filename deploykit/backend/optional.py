"""What a backend may offer beyond ``Backend``: one optional method each, found by its Protocol.

Every other backend goes without; who asks must live with that. Nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from deploykit.backend.audits import Audit
    from deploykit.backend.backend import MixedSupport, Progress, Situation
    from deploykit.backend.kept import Kept
    from deploykit.backend.known_errors import Catalog
    from deploykit.backend.opinions import Compiler, Opinion
    from deploykit.backend.probes import Probe
    from deploykit.backend.quantizers import Quantizer
    from deploykit.backend.targets import Target
    from deploykit.findings import Finding
    from deploykit.system.specs import ToolchainSpec
    from deploykit.tables.capabilities import CompatRow
    from deploykit.tables.devices import Device

__all__ = [
    "AnswersBinaries",
    "AnswersFromFiles",
    "AuditsKernels",
    "DatesSources",
    "DecidesFromFiles",
    "FindsDevices",
    "GivesSecondOpinion",
    "HasKnownErrors",
    "HasProbes",
    "HasQuantizers",
    "HasToolchains",
    "Inspects",
    "MixesPrecision",
    "QuantizesWhilePackaging",
    "RatesFindings",
    "ReservesCodes",
    "SettlesClaims",
    "WantsToolchains",
]


@runtime_checkable
class AnswersFromFiles(Protocol):
    """A backend whose rows follow from its files alone, so that they can be kept while those stay the same."""

    id: str

    def answered_from(self) -> Sequence[Path]:
        """The folders that hold every table and all code, beside the core's, from which ``compat()`` follows."""


@runtime_checkable
class DecidesFromFiles(Protocol):
    """A backend whose ``prepare`` and ``plan`` find the same in the same situation while these files stay the same.

    They look at nothing else: at no program that is installed, no environment, no clock. A file that an option names
    may be read: what was found then is not kept.
    """

    id: str

    def decided_from(self) -> Sequence[Path]:
        """The folders that hold every table and all code, beside the core's, from which what is found follows."""


@runtime_checkable
class FindsDevices(Protocol):
    """A backend with so many devices that one is better not looked for by reading them all."""

    def device_of_id(self, name: str) -> Device | None:
        """The device among ``devices()`` whose id this is, upper or lower case; None where no device has it."""


@runtime_checkable
class MixesPrecision(Protocol):
    """A backend for which deploykit may rewrite graphs and choose among ways to mix precisions."""

    def mixed_support(self, target: Target, options: Mapping[str, Any]) -> MixedSupport:
        """What there is for this target, under options of the backend's own, checked and by name."""


@runtime_checkable
class AuditsKernels(Protocol):
    """A backend that can run each kernel of a model by itself, over all that the kernel may be given."""

    id: str

    def audit(self, prepared: Any, *, level: str, progress: Progress, given: Situation | None = None) -> Audit:
        """The kernels of what ``prepare`` gave: those under suspicion (``quick``), soon done (``auto``), or all.

        With ``given`` it says of kernels of the model as it was given, too, where they are wrong and were mended.
        """


@runtime_checkable
class GivesSecondOpinion(Protocol):
    """A backend whose compiler can say what it makes of a model that another backend packages."""

    id: str

    def preflight(self, model: bytes, device: Device, progress: Progress) -> Mapping[str, Any]:
        """The verdict on a serialized model: ``available``, ``ok``, ``compiler``, ``note``, ``findings``."""


@runtime_checkable
class SettlesClaims(Protocol):
    """A backend whose compiler can be asked whether what a finding claims is so, whichever backend found it."""

    id: str

    def compilers(self, device: Device, sdk: str) -> Sequence[Compiler]:
        """Who would answer on this machine for a device, that of the release nearest to ``sdk`` first ("": the newest).

        There is at least one; the only one says what is missing where nobody can.
        """

    def settle(
        self,
        situation: Situation,
        findings: Sequence[Finding],
        *,
        compiler: Compiler,
        kept: Kept,
        seconds: float,
        progress: Progress,
    ) -> Sequence[Opinion]:
        """One of those compilers on each finding, in their order, within about so many seconds.

        What is not reached stays open.
        """


@runtime_checkable
class HasKnownErrors(Protocol):
    """A backend that knows failures of its tools."""

    def known_errors(self) -> Catalog:
        """The known errors of this backend's tools."""


@runtime_checkable
class HasProbes(Protocol):
    """A backend that can look for what its tools need."""

    def probes(self) -> Iterable[Probe]:
        """The probes of this backend, each for one area."""


@runtime_checkable
class HasToolchains(Protocol):
    """A backend that brings toolchains."""

    def toolchains(self) -> tuple[ToolchainSpec, ...]:
        """The environments this backend's tools need."""


@runtime_checkable
class WantsToolchains(Protocol):
    """A backend whose targets differ in the version of a tool that they want."""

    def wanted_toolchains(self, target: Target) -> tuple[str, ...]:
        """What a target wants, each as ``deploykit toolchain install`` takes it, with the version where it counts."""


@runtime_checkable
class HasQuantizers(Protocol):
    """A backend that takes encodings, and knows who makes them from a float model and calibration data."""

    def quantizers(self, target: Target) -> tuple[Quantizer, ...]:
        """The quantizers for a target, the best first; what the core has of its own is not among them."""

    def calibrates_itself(self, situation: Situation) -> bool:
        """Whether it was asked to leave the calibration to the backend's own tools."""


@runtime_checkable
class QuantizesWhilePackaging(Protocol):
    """A backend whose own recipe quantizes; ``quantizer`` is what that is called."""

    quantizer: str

    def quantized(self, package: Path, manifest: Mapping[str, Any]) -> Path | None:
        """The quantized model in a package, None where the recipe did not run."""


@runtime_checkable
class AnswersBinaries(Protocol):
    """A backend that knows which compiled binaries load where."""

    def binary_rows(self, built_with: str, built_for: str, runtime: str, arch: str) -> Iterable[CompatRow]:
        """Will a binary made by one release for one architecture load on another release and architecture?"""


@runtime_checkable
class DatesSources(Protocol):
    """A backend that knows when its tables were compared with their sources."""

    def source_dates(self) -> Mapping[str, str]:
        """By the beginning of a source the day it was compared ("2026-09-30"), under "" that of every other one."""


@runtime_checkable
class Inspects(Protocol):
    """A backend that reads compiled files."""

    def devices(self) -> tuple[Device, ...]:
        """The devices of the backend."""

    def inspect(self, path: Path) -> Mapping[str, Any]:
        """The metadata of a compiled file; InputError where it is none."""


@runtime_checkable
class RatesFindings(Protocol):
    """A backend on whose devices something that the core found weighs more, or less, than elsewhere."""

    def rated(self, finding: Finding) -> Finding:
        """The finding with the severity it has here, and with who says so; unchanged where nothing is known."""


@runtime_checkable
class ReservesCodes(Protocol):
    """A backend that had rules which other rules took over."""

    def reserved_codes(self) -> Mapping[str, str]:
        """Codes that are no longer given out, each with the code of the rule to read instead."""
