"""A backend of a third party: it copies the model and writes the command that its compiler would be called with."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deploykit.contract.backend import (
    Aids,
    Check,
    Execution,
    PackageFile,
    Situation,
    TextFile,
    Verification,
    copied_model,
)
from deploykit.contract.kept import Kept
from deploykit.contract.options import OptionSpec
from deploykit.contract.plans import Plan, Rejected, Route, Step
from deploykit.contract.targets import Target
from deploykit.findings import Confidence, SubjectKind
from deploykit.findings.rules import Found, Registry
from deploykit.tables.capabilities import CompatRow
from deploykit.tables.devices import Device, Fact

__all__ = ["MyNpu", "backend"]

_MOST_NODES = 64
_SOURCE = ("data sheet of the chip",)

RULES: Registry[Situation] = Registry("my-npu")


@RULES.rule(
    "NPU001",
    "too-many-nodes",
    "error",
    what="A model with more nodes than the chip's program memory holds.",
    why="The compiler stops.",
    fix="split the model",
    sources=_SOURCE,
)
def check_nodes(situation: Situation) -> Iterator[Found]:
    """By their number."""
    count = len(situation.facts.nodes)
    if count > _MOST_NODES:
        message = f"{count} nodes, {_MOST_NODES} are possible"
        yield Found(kind=SubjectKind.MODEL, name=situation.request.model.name, message=message)


class MyNpu:
    """One made-up NPU."""

    id = "my-npu"
    summary = "a made-up NPU"

    def devices(self) -> tuple[Device, ...]:
        """One board."""
        cores = Fact(value=2, source=_SOURCE, confidence=Confidence.DOCUMENTED)
        return (
            Device(schema=1, id="my-board", name="My Board", vendor="Me", backends=(self.id,), facts={"cores": cores}),
        )

    def options(self) -> tuple[OptionSpec, ...]:
        """How hard the compiler tries."""
        return (OptionSpec(name="effort", kind="integer", low=1, high=9, default=3, help="How hard to try."),)

    def registries(self) -> tuple[Registry[Any], ...]:
        """One rule."""
        return (RULES,)

    def compat(self) -> Iterable[CompatRow]:
        """Nothing is known."""
        return ()

    def resolve(self, device: Device, sdk: str | None) -> Target:
        """Any version will do."""
        return Target(device=device, backend=self.id, requested=sdk or "", sdk=None)

    def prepare(self, situation: Situation, kept: Kept) -> Situation:
        """The model is packaged as it is."""
        del kept
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
        step = Step(id="compile", tool="npucc", argv=("npucc", "--effort", effort, "model/model.onnx"))
        return Plan(
            route=Route(id="compile", why="the only way", confidence=Confidence.INFERRED), steps=(step,), **common
        )

    def render(self, prepared: Situation, plan: Plan[None], templates: Path | None) -> Iterable[PackageFile]:
        """The model and the script."""
        del templates
        lines = [shlex.join(step.argv) for step in plan.steps]
        script = TextFile(path="scripts/build.sh", text="\n".join(["#!/bin/sh", *lines, ""]), executable=True)
        return (*copied_model(prepared, "model/model.onnx"), script)

    def execute(self, package: Path, prepared: Situation, plan: Plan[None], aids: Aids) -> Execution:
        """Nothing runs here."""
        del package, prepared, plan, aids
        return Execution()

    def verify(self, package: Path, manifest: Mapping[str, Any]) -> Verification:
        """The script is there."""
        del manifest
        there = (package / "scripts/build.sh").is_file()
        return Verification(checks=(Check(id="script", ok=there, detail="scripts/build.sh"),))


backend = MyNpu()
