"""The decision, as data: route, steps, configurations, precision, findings. It decides nothing itself.

A plan depends on no clock, disk or environment. Commands are argv tuples; they are quoted once, when rendered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Generic, TypeVar

from deploykit.backend.status import Correctness
from deploykit.findings import Confidence, Findings, sort_findings
from deploykit.findings.records import Json, Names, Published, field, published

__all__ = ["Alternative", "Plan", "PlannedPrecision", "Rejected", "Route", "Step"]

D = TypeVar("D")


class Route(Published, kw_only=False):
    """The chosen way through the vendor's tools, the reason, and how surely it works."""

    id: str
    why: str
    confidence: Confidence
    sources: tuple[str, ...] = ()


class Rejected(Published, kw_only=False):
    """A route that was not taken, with the codes of the rules that rejected it."""

    id: str
    because: Names
    why: str = ""


class Alternative(Published):
    """A route that was not tried, as a preferred one works, with the codes that would speak against it.

    ``ask`` is the option that insists on it.
    """

    id: str
    why: str
    confidence: Confidence
    because: Names
    ask: str


class Step(Published, kw_only=False):
    """One command. ``argv`` is literal, paths are relative to the package; ``where`` is ``host`` or ``device``."""

    id: str
    tool: str
    argv: tuple[str, ...]
    inputs: Names = ()
    outputs: Names = ()
    where: str = "host"
    note: str = ""


class PlannedPrecision(Published, kw_only=False):
    """The intended type of each tensor by the encodings, and the type expected from the tool chain.

    Types have ONNX-like names (``uint8``, ``float16`` …). A tensor in neither map has no stated type.
    """

    intended: Mapping[str, str] = {}
    expected: Mapping[str, str] = {}

    @property
    def differences(self) -> dict[str, tuple[str, str]]:
        """The tensors whose expected type is not the intended one, as (intended, expected)."""
        return {
            name: (wanted, self.expected[name])
            for name, wanted in self.intended.items()
            if name in self.expected and self.expected[name] != wanted
        }

    def as_published(self) -> Json:
        """The counts per type, and every difference by name."""
        return {
            "intended": _count(self.intended),
            "expected": _count(self.expected),
            "float": sorted(name for name, kind in self.expected.items() if kind.startswith(("float", "bfloat"))),
            "differences": [
                {"tensor": name, "intended": wanted, "expected": got}
                for name, (wanted, got) in sorted(self.differences.items())
            ],
        }


def _count(types: Mapping[str, str]) -> dict[str, int]:
    return dict(sorted(Counter(types.values()).items()))


class Plan(Published, Generic[D]):
    """What will be packaged for one target. ``route`` is None if every route was rejected: a precise no.

    ``target`` and ``sdk`` are JSON values that describe them; ``configs`` maps a package path to a JSON value.
    ``right`` is the verdict from simulating the chosen way. ``assumed`` describes a precision that was not requested,
    "" if it was. ``details`` is the adapter's own decision data for its ``render`` and ``execute``; it is not
    published, and None without a route or if the adapter needs none.
    """

    backend: str
    target: Json
    sdk: Json
    route: Route | None
    rejected: tuple[Rejected, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    steps: tuple[Step, ...] = ()
    configs: Json = field(default_factory=dict)
    precision: PlannedPrecision = PlannedPrecision()
    findings: Findings = ()
    candidates: tuple[Json, ...] = ()
    right: Correctness = Correctness()
    assumed: str = ""
    details: D | None = None

    @property
    def feasible(self) -> bool:
        """True if there is a route and no unhandled error."""
        return self.route is not None and not any(finding.blocks for finding in self.findings)

    def as_published(self) -> Json:
        """The JSON of ``deploykit check --plan``."""
        return (
            {"schema": 1}
            | published(self, without=("details",))
            | {
                "right": {"state": self.right.state, "words": str(self.right)},
                "findings": sort_findings(self.findings),
            }
        )
