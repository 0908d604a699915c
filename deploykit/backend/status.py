"""The three facts about a package, never merged into one: is it intact, was it compiled, is it right? Values only."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from deploykit.findings.records import Json, Pairs, Published, Record, replace

__all__ = [
    "Compilation",
    "Compiled",
    "Correctness",
    "PackageStatus",
    "Right",
    "correctness_of",
    "status_from_json",
    "status_of",
]

if TYPE_CHECKING:
    from deploykit.accuracy.judge.verdict import Verdict


T = TypeVar("T", bound=StrEnum)


class Compiled(StrEnum):
    """Whether a compiler took the model; ``NOT_RUN`` leaves it open."""

    YES = "yes"
    REFUSED = "refused"
    NOT_RUN = "not run"


class Right(StrEnum):
    """Whether the numbers are right; ``NOT_JUDGED`` does not mean yes."""

    YES = "yes"
    NO = "no"
    NOT_JUDGED = "not judged"


class Compilation(Record, kw_only=False):
    """Whether a compiler took the model, which one, and why not."""

    state: Compiled = Compiled.NOT_RUN
    by: str = ""
    why: str = ""

    def __str__(self) -> str:
        comma = "," if self.state is Compiled.YES else ""
        by = f"{comma} by {self.by}" if self.by else ""
        return f"{self.state}{by}{f': {self.why}' if self.why else ''}"


class Correctness(Published):
    """The verdict on the numbers, its samples, its reference, and every judged number as published.

    ``label`` and ``count`` are those of the samples; ``against`` is float, quantized or device; ``where`` is
    the source of the outputs: simulated, emulator or device. ``broken`` is True if judging itself crashed or
    ran out of time, so that nobody should go on.
    """

    state: Right = Right.NOT_JUDGED
    label: str = ""
    count: int = 0
    against: str = ""
    why: str = ""
    broken: bool = False
    where: str = ""
    numbers: tuple[Json, ...] = ()

    def as_published(self) -> Json:
        """The verdict in one word, with what it is based on."""
        return {
            "right": self.state,
            "right_why": self.why,
            "right_broken": self.broken,
            "samples": {"label": self.label, "count": self.count},
            "against": self.against,
            "where": self.where,
            "numbers": self.numbers,
        }

    def __str__(self) -> str:
        on = f", on {self.count} {self.label} sample{'s' if self.count != 1 else ''}" if self.label else ""
        against = f" against {self.against}" if self.against and self.label else ""
        why = self.why.removeprefix(f"{self.state}: ")
        return f"{self.state}{on}{against}{f': {why}' if why else ''}"


def correctness_of(verdict: Verdict, *, where: str, label: str = "", count: int = 0) -> Correctness:
    """The fact about a package from a verdict: the loss in words, with the cost of the encodings themselves."""
    first = next(iter(verdict.numbers), None)
    right, reason = verdict.answer
    why = reason or (f"{verdict.words}; {verdict.cost}" if verdict.cost else verdict.words)
    return Correctness(
        state={True: Right.YES, False: Right.NO, None: Right.NOT_JUDGED}[right],
        label=label or ("" if first is None else str(first.label)),
        count=count or (0 if first is None else first.count),
        against="" if first is None else str(first.against),
        why=why,
        where=where,
        numbers=tuple(number.to_json() for number in verdict.numbers),
    )


class PackageStatus(Published):
    """The three facts; ``intact`` is True if hashes and schemas are valid. The defaults are those before any run."""

    intact: bool = True
    compiled: Compilation = Compilation()
    right: Correctness = Correctness()

    @property
    def good(self) -> bool:
        """False for a damaged package, a refused compilation, a wrong result, and judging that died on the way."""
        refused = self.compiled.state is Compiled.REFUSED
        return self.intact and not refused and self.right.state is not Right.NO and not self.right.broken

    def damaged(self) -> PackageStatus:
        """The status of the package with changed files: earlier verdicts no longer count."""
        return replace(self, intact=False, right=Correctness(why="its files are not those that were judged"))

    def lines(self) -> Pairs:
        """The three facts for people, as (key, words)."""
        intact = "yes: every file has its recorded hash" if self.intact else "no"
        return (("intact", intact), ("compiled", str(self.compiled)), ("right", str(self.right)))

    def as_published(self) -> Json:
        """One word per fact, with what it is based on."""
        return {
            "intact": "yes" if self.intact else "no",
            "compiled": self.compiled.state,
            "compiled_by": self.compiled.by,
            "compiled_why": self.compiled.why,
            **self.right.to_json(),
        }


def status_from_json(value: Json) -> PackageStatus:
    """The facts recorded in a manifest; missing ones count as not run and not judged."""
    samples = value.get("samples")
    on = samples if isinstance(samples, Mapping) else {}
    numbers = value.get("numbers")
    return PackageStatus(
        intact=value.get("intact") != "no",
        compiled=Compilation(
            _word(Compiled, value.get("compiled"), Compiled.NOT_RUN),
            str(value.get("compiled_by", "")),
            str(value.get("compiled_why", "")),
        ),
        right=Correctness(
            state=_word(Right, value.get("right"), Right.NOT_JUDGED),
            label=str(on.get("label", "")),
            count=on["count"] if isinstance(on.get("count"), int) else 0,
            against=str(value.get("against", "")),
            why=str(value.get("right_why", "")),
            broken=value.get("right_broken") is True,
            where=str(value.get("where", "")),
            numbers=tuple(n for n in numbers if isinstance(n, Mapping)) if isinstance(numbers, list) else (),
        ),
    )


def status_of(manifest: Json, content: str) -> PackageStatus:
    """The facts about a package with the hash ``content``: a device's verdict on these files outranks the recorded one.

    Of several runs on devices the last judged one counts.
    """
    recorded, runs = manifest.get("status"), manifest.get("runs") or ()
    status = status_from_json(recorded if isinstance(recorded, Mapping) else {})
    for run in reversed(runs):
        if run.get("where") == "device" and run.get("content") == content:
            right = status_from_json(run).right
            if right.state is not Right.NOT_JUDGED or right.broken:
                return replace(status, right=right)
    return status


def _word(kind: type[T], word: object, otherwise: T) -> T:
    return next((member for member in kind if member.value == word), otherwise)
