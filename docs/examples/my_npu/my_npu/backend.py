"""The stages of a made-up NPU: the model is copied, and a script calls its compiler. Nothing runs while packaging."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from deploykit.backend.backend import (
    Backend,
    Check,
    PackageFile,
    SharedWork,
    Situation,
    TextFile,
    Verification,
    copied_model,
)
from deploykit.backend.options import OptionSpec
from deploykit.backend.plans import Plan, Rejected, Route, Step
from deploykit.backend.probes import Probe
from deploykit.backend.targets import Target
from deploykit.findings import Confidence
from deploykit.findings.rules import Registry
from deploykit.tables.capabilities import CompatRow, Status
from deploykit.tables.devices import Device, load_devices
from deploykit.tables.known_errors import Catalog, load_catalog
from my_npu.probes import look_for_compiler
from my_npu.rules import RULES

__all__ = ["MyNpu", "backend"]

_HERE = Path(__file__).parent
_SCRIPT = "scripts/build.sh"


class MyNpu(Backend[Situation, None]):
    """One made-up NPU."""

    id = "my-npu"
    summary = "a made-up NPU"

    def devices(self) -> tuple[Device, ...]:
        """One file each."""
        return load_devices(_HERE / "data/devices")

    def options(self) -> tuple[OptionSpec, ...]:
        """How hard the compiler tries."""
        return (OptionSpec(name="effort", kind="integer", low=1, high=9, default=3, help="How hard to try."),)

    def registries(self) -> tuple[Registry[Any], ...]:
        """One rule."""
        return (RULES,)

    def compat(self) -> Iterable[CompatRow]:
        """What the compiler can do; what has no row is unknown."""
        yield CompatRow(
            feature="npu-effort",
            backend=self.id,
            tool="npucc",
            sdk="",
            status=Status.SUPPORTED,
            since="",
            until="",
            note="--effort 1 to 9",
            source=("manual of npucc",),
            confidence=Confidence.DOCUMENTED,
        )

    def known_errors(self) -> Catalog:
        """What npucc is known to fail with, for ``diagnose`` and ``build``."""
        return load_catalog([_HERE / "data/known_errors.toml"])

    def probes(self) -> Iterable[Probe]:
        """What ``doctor`` looks for."""
        return (look_for_compiler,)

    def resolve(self, device: Device, sdk: str | None) -> Target:
        """Any version will do."""
        return Target(device=device, backend=self.id, requested=sdk or "", sdk=None)

    def prepare(self, situation: Situation, shared: SharedWork) -> Situation:
        """The model is packaged as it is."""
        del shared
        return situation

    def plan(self, prepared: Situation) -> Plan[None]:
        """One command, unless the rule says no."""
        findings = RULES.run(prepared)
        common: dict[str, Any] = {
            "backend": self.id,
            "target": prepared.target.device.to_json(),
            "sdk": prepared.target.sdk_json(),
            "findings": findings,
        }
        if findings:
            return Plan(route=None, rejected=(Rejected(id="compile", because=("NPU001",)),), **common)
        effort = str(prepared.request.adapter_options["effort"])
        argv = ("npucc", "--effort", effort, "model/model.onnx", "-o", "artifacts/model.npu")
        step = Step(id="compile", tool="npucc", argv=argv, outputs=("artifacts/model.npu",))
        route = Route(id="compile", why="the only way", confidence=Confidence.INFERRED)
        return Plan(route=route, steps=(step,), **common)

    def render(self, prepared: Situation, plan: Plan[None], templates: Path | None) -> Iterable[PackageFile]:
        """The model and the script; a template of the user's wins over the one here."""
        from deploykit.report.rendering import render  # on use: queries and help do not need Jinja

        values = {"device": prepared.target.device.name, "steps": plan.steps}
        text = render(f"my_npu/{_SCRIPT}.j2", values, templates=templates, own=_HERE / "templates")
        return (*copied_model(prepared, "model/model.onnx"), TextFile(path=_SCRIPT, text=text, executable=True))

    def verify(self, package: Path, manifest: Mapping[str, Any]) -> Verification:
        """The script is there."""
        del manifest
        there = (package / _SCRIPT).is_file()
        return Verification(checks=(Check(id="script", ok=there, detail=_SCRIPT),))


backend = MyNpu()
