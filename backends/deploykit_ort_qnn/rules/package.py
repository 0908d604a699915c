"""Rules about what a package says of its chip, and what its context binary says. Codes ORT130 to ORT132."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from deploykit.findings import Severity, SubjectKind
from deploykit.findings.rules import Found, Registry

__all__ = ["RULES", "PackageScope"]

_LAB = "onnxruntime-qnn 2.7.0 (QAIRT 2.51) with ONNX Runtime 1.31.1, run on Linux x86-64 without hardware"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageScope:
    """What is written in a package about one chip, and what its context binary says."""

    provider_options: Mapping[str, str]
    soc_model: int | None
    context: Mapping[str, Any] = field(default_factory=dict)
    own_chip: int | None = None
    """The chip that the compiler of this release stands on and compiles for, None where it does as it is told."""
    unknown_options: tuple[str, ...] = ()


RULES: Registry[PackageScope] = Registry("package")


@RULES.rule(
    "ORT130",
    "soc-model-unset",
    "error",
    what="The provider options name no chip.",
    why="Without soc_model the result is a v68-like or FP32 build, with no message.",
    fix="Set soc_model; deploykit writes it for every target.",
    sources=[_LAB],
)
def check_soc_model(scope: PackageScope) -> Iterator[Found]:
    """Options without a chip."""
    if not scope.provider_options.get("soc_model"):
        yield Found(kind=SubjectKind.FILE, name="provider options", message="soc_model is not set")


@RULES.rule(
    "ORT131",
    "option-unknown",
    "error",
    what="The provider options hold a name that the provider does not know.",
    why="The provider ignores it without a word, so what was wanted does not happen.",
    fix="Correct the spelling; 'deploykit compat provider-option' lists all.",
    sources=[_LAB],
)
def check_unknown_options(scope: PackageScope) -> Iterator[Found]:
    """Names outside of the table."""
    for name in scope.unknown_options:
        yield Found(kind=SubjectKind.FILE, name=name, message=f"{name}: the provider has no such option")


@RULES.rule(
    "ORT132",
    "context-for-another-chip",
    "error",
    what="The context binary was compiled for another chip than the package says.",
    why="A binary may load elsewhere, or not, and its graph is another one.",
    fix="Compile again with compile.py of this package.",
    sources=[_LAB],
)
def check_context_chip(scope: PackageScope) -> Iterator[Found]:
    """soc_model inside the binary against the target's."""
    found = scope.context.get("soc_model")
    if found is not None and scope.soc_model is not None and found != scope.soc_model:
        message = f"the binary is for soc_model {found}, the package for {scope.soc_model}"
        if found != scope.own_chip:
            yield Found(kind=SubjectKind.FILE, name="context binary", message=message)
            return
        yield Found(
            kind=SubjectKind.FILE,
            name="context binary",
            severity=Severity.WARNING,
            message=f"{message}: the compiler of this release knows no other (QNN295)",
            hint="try it on the device, or take a release whose compiler obeys soc_model",
        )
