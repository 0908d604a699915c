"""A backend that has nothing, for tests to add to."""

from collections.abc import Iterable
from pathlib import Path

from deploykit.backend.backend import Backend, PackageFile, SharedWork, Situation
from deploykit.backend.plans import Plan
from deploykit.backend.targets import Target
from deploykit.tables.devices import Device


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
