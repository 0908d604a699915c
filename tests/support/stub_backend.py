"""A backend that has nothing, a row of a table and a toolchain, for tests to add to."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deploykit.backend.backend import Backend, PackageFile, SharedWork, Situation
from deploykit.backend.plans import Plan
from deploykit.backend.targets import Target
from deploykit.findings import Confidence
from deploykit.system.specs import Stage, ToolchainSpec
from deploykit.tables.capabilities import CompatRow, Status
from deploykit.tables.devices import Device

_WORDS: dict[str, Any] = dict.fromkeys(("feature", "backend", "tool", "sdk", "since", "until", "note"), "")
ROW = CompatRow(**_WORDS, status=Status.SUPPORTED, source=("a test",), confidence=Confidence.REPORTED)
NO_PACKAGES = (Stage(id="probe", run=("-c", "pass")),)


def a_toolchain(stages: tuple[Stage, ...] = NO_PACKAGES, **changes: Any) -> ToolchainSpec:
    """One of 1 MB and a minute that installs nothing."""
    told: dict[str, Any] = {"name": "tiny", "version": "1.0", "summary": "a test", "python": ">=3.11", **changes}
    sizes: dict[str, Any] = {"schema": 1, "disk_mb": 1, "minutes": 1, "source": ("a test",)}
    return ToolchainSpec(**{**sizes, "confidence": Confidence.OBSERVED, "stages": stages, **told})


class StubBackend(Backend[Situation, None]):
    """No devices, no tables, no rules, no plan."""

    id = "stub"
    summary = "a stub"

    def devices(self) -> tuple[Device, ...]:
        return ()

    def resolve(self, device: Device, sdk: str | None) -> Target:
        return Target(device=device, backend=self.id, requested=sdk or "", sdk=None)

    def prepare(self, situation: Situation, shared: SharedWork) -> Situation:
        return situation

    def plan(self, prepared: Situation) -> Plan[None]:
        return Plan(backend=self.id, target={}, sdk={}, route=None)

    def render(self, prepared: Situation, plan: Plan[None], templates: Path | None) -> Iterable[PackageFile]:
        return ()
