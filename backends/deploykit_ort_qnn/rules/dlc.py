"""Rules about a DLC that the provider's IR backend wrote without a converter. Code QNN299."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deploykit.findings import Severity, SubjectKind, listed
from deploykit.findings.rules import Found, Registry
from deploykit_ort_qnn.dlc import DLC

if TYPE_CHECKING:
    from deploykit_ort_qnn.dlc_types import Compared

__all__ = ["RULES", "DlcScope"]

_LAB = "onnxruntime-qnn 2.3.0 (metadata 2.2.0) and 2.7.0 (metadata 2.3.0) run on Linux x86-64 without hardware"
_CONVERTER = "user script for DLC files of qairt-converter 2.48 (metadata 2.3.0, no check sums), public repository"


@dataclass(frozen=True, slots=True, kw_only=True)
class DlcScope:
    """A DLC as it was read back: the release that wrote it, its metadata's version, and what was compared.

    ``why`` is why there is none, "" where there is one.
    """

    qairt: str = ""
    metadata: str = ""
    compared: tuple[Compared, ...] = ()
    why: str = ""

    @property
    def wrong(self) -> tuple[str, ...]:
        """The tensors with another type or grid than was meant."""
        return tuple(row.tensor for row in self.compared if not row.ok)


RULES: Registry[DlcScope] = Registry("dlc")


@RULES.rule(
    "QNN299",
    "dlc-without-converter",
    "info",
    what="A DLC was written from the Q/DQ model by the provider, without a converter.",
    why="Each release writes metadata of its own version, and which releases read it is not documented. What a release "
    "writes its own tools and later ones should read (inferred); nobody tried it here.",
    fix="list it with qairt-dlc-info of the SDK that will read it before anything is built on it",
    sources=[_LAB, _CONVERTER],
)
def check_dlc(scope: DlcScope) -> Iterator[Found]:
    """No DLC or another one than was meant is an error; a right one is told with its limits."""
    if scope.why:
        yield _found(Severity.ERROR, f"no DLC was written: {scope.why}")
    elif scope.wrong:
        text = f"{len(scope.wrong)} of {len(scope.compared)} tensors have another type or grid: {listed(scope.wrong)}"
        yield _found(Severity.ERROR, text)
    elif scope.metadata:
        yield _found(
            Severity.INFO,
            f"written by QAIRT {scope.qairt or '(it does not say which)'} with metadata {scope.metadata}; "
            f"{len(scope.compared)} tensors have the types and grids that were meant; tools of the release that wrote "
            "it and later ones should read it (inferred)",
        )


def _found(severity: Severity, message: str) -> Found:
    return Found(kind=SubjectKind.FILE, name=DLC, severity=severity, message=message)
