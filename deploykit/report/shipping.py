"""The one sentence that heads a package: can it be shipped, on what evidence, and else what comes next.

It weighs what was found and judged; it judges no number itself. A yes needs all of it: files as recorded, compiled,
right against the float model on samples that mean something.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from deploykit.backend.status import Compiled, Right, Status
from deploykit.findings import Finding
from deploykit.system.published import Published

__all__ = ["Shipping", "Word", "shipping"]

_FROM_USER = frozenset({"given", "recorded"})
_DATA = "make the package again with --calibration and samples of the field, or --input NAME=VALUE"
_COMPARE = (
    "build it, run it with samples of the field, and hold its outputs to the float model's: "
    "'deploykit accuracy compare'"
)


class Word(StrEnum):
    """The answer in a word."""

    SHIP = "ship it"
    NO = "do not ship it"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipping(Published):
    """The answer, why in one sentence, what the sentence rests on ("" where on nothing), and what to do next."""

    word: Word
    why: str
    evidence: str = ""
    next: str = ""


def shipping(status: Status, findings: Iterable[Finding]) -> Shipping:
    """The answer for a package with these facts and findings; what speaks against it comes first."""
    blocking = [finding for finding in findings if finding.blocks]
    if not status.intact:
        return Shipping(word=Word.NO, why="its files are not as they were recorded", next="make the package again")
    if status.compiled.state is Compiled.REFUSED:
        why = f"the compiler refuses it: {status.compiled.why or 'the findings say what'}"
        return Shipping(word=Word.NO, why=why, evidence=_compiler(status), next=_hint(blocking))
    if status.right.state is Right.NO:
        return Shipping(word=Word.NO, why=_wrong(status), evidence=_numbers(status), next=_hint(blocking) or _LOCATE)
    if blocking:
        first = blocking[0]
        return Shipping(word=Word.NO, why=f"{first.code} {first.slug}: {first.message}", next=first.hint)
    return _without_objection(status)


_LOCATE = (
    "'deploykit accuracy locate' names the first operator that is off, 'deploykit accuracy layers' what costs most"
)


def _without_objection(status: Status) -> Shipping:
    """Nothing speaks against it: is there enough that speaks for it?"""
    judged = status.right.state is Right.YES
    if not judged:
        why = f"its numbers were not judged: {status.right.why}" if status.right.why else "its numbers were not judged"
        wants_data = bool(status.right.label) or "--calibration" in status.right.why
        return Shipping(
            word=Word.NOT_JUDGED, why=why, evidence=_compiler(status), next=_DATA if wants_data else _COMPARE
        )
    if status.compiled.state is not Compiled.YES:
        why = "its numbers are right in simulation, but no compiler has seen it"
        step = "'deploykit build' where the tools are installed, or scripts/build.sh"
        return Shipping(word=Word.NOT_JUDGED, why=why, evidence=_numbers(status), next=step)
    if not _against_float(status):
        why = "the device computes what the encodings say, but whether they are good enough was not judged"
        return Shipping(word=Word.NOT_JUDGED, why=why, evidence=_numbers(status), next=_DATA)
    if status.right.label not in _FROM_USER:
        why = "it is compiled and right, but on inputs that were made up from what is known of them"
        return Shipping(word=Word.NOT_JUDGED, why=why, evidence=_numbers(status), next=_DATA)
    why = "it is compiled, and its outputs are right against the float model"
    return Shipping(word=Word.SHIP, why=why, evidence=f"{_compiler(status)}; {_numbers(status)}")


def _against_float(status: Status) -> bool:
    """Whether a number was held against the float model, and passed; one without a limit judges nothing."""
    judged = any(number.get("against") == "float" and number.get("passes") for number in status.right.numbers)
    return status.right.against == "float" or judged


def _wrong(status: Status) -> str:
    return f"its numbers are wrong: {status.right.why}" if status.right.why else "its numbers are wrong"


def _compiler(status: Status) -> str:
    return f"compiled by {status.compiled.by}" if status.compiled.by else ""


def _numbers(status: Status) -> str:
    """How many numbers were held to limits, on which samples, against what."""
    judged = [number for number in status.right.numbers if number.get("passes") is not None]
    count, references = len(judged), dict.fromkeys(str(number.get("against")) for number in judged)
    against = " and ".join(references) or status.right.against
    against = f" against {against}" if against else ""
    held = f"{count} number{'s' if count != 1 else ''} held to limits, " if count else ""
    some = "sample" if status.right.count == 1 else "samples"
    return f"{held}on {status.right.count} {status.right.label} {some}{against}" if status.right.label else ""


def _hint(blocking: list[Finding]) -> str:
    return next((finding.hint for finding in blocking if finding.hint), "")
