"""Runs kernels, as they are and done in other ways, on the emulator of one chip; what each came to is remembered.

It says how far off each is and what that means. It chooses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.qdq import extract_qdq
from deploykit.errors import DeploykitError
from deploykit.rewrites.contract import NoMatchError
from deploykit.system.store import Store, code_digest, key_of
from deploykit_ort_qnn.audit_units import Kernel, within_grids
from deploykit_ort_qnn.bench.deviations import Deviation, deviation
from deploykit_ort_qnn.bench.together import run_together
from deploykit_ort_qnn.repairs.trying import Trial, trial_of
from deploykit_qualcomm.atlas.verdicts import Verdict, limits_of, verdict_of

if TYPE_CHECKING:
    from deploykit_ort_qnn.bench.together import Outputs, Probe, Ran
    from deploykit_ort_qnn.hosts import Host

__all__ = ["Answer", "Bench", "Memory", "Runner", "Seat", "bench_of", "judged", "verdict_on"]

Runner: TypeAlias = "Callable[[Sequence[Probe]], Iterator[Ran]]"
"""Runs graphs on an emulator and gives what became of each, in any order."""
SeatedWay: TypeAlias = tuple[str, int, str]
"""The prefix of a kernel, which of its operators, and a way: each once in one request."""

_FORM = 7
"""Of what is remembered of kernels: another number forgets everything that was measured in another way."""
_TOGETHER = 48
_RAN = ("taken", "refused")
"""What is remembered of a kernel: a death or a time that ran out may have had another reason."""
_NONE = "none"
_TRIED = (*_RAN, "failed", "invalid", _NONE)
"""What is remembered of a way: that it is none for an operator, or does not compile, is an answer too."""
_WAYS = Path(__file__).parent / "repairs"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seat:
    """Where an operator sits in a kernel: which one of its operators it is."""

    kernel: Kernel
    at: int

    def by(self, way: str) -> SeatedWay:
        """What a way there is found under."""
        return self.kernel.prefix, self.at, way


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a kernel: ``answer`` as in ``Ran``, or "none" where a way is none; the deviation where it ran.

    ``from_float`` are the most steps that the file and the kernel are off the float model, where steps grew inside.
    """

    answer: str
    why: str = ""
    deviation: Deviation | None = None
    from_float: tuple[float, float] | None = None

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> Answer:
        """Back from plain values."""
        off, apart = kept["deviation"], kept.get("from_float")
        return cls(
            answer=kept["answer"],
            why=kept["why"],
            deviation=None if off is None else Deviation(**off),
            from_float=None if apart is None else (apart[0], apart[1]),
        )


class Memory(Protocol):
    """What was found before, by a text that names it."""

    def get(self, key: str) -> dict[str, Any] | None:
        """What was put under a key."""

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Keep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Whose compiler and emulator run here; ``kernels`` and ``ways`` keep what was found of either for other benches.

    ``seen`` are the kernels that this one ran, which it does once.
    """

    run: Runner
    kernels: Memory
    ways: Memory
    seen: dict[str, Answer] = field(default_factory=dict)

    def known(self, kernels: Iterable[Kernel]) -> dict[str, Answer]:
        """What was measured before, by prefix."""
        found = {}
        for kernel in kernels:
            if kernel.key in self.seen:
                found[kernel.prefix] = self.seen[kernel.key]
            elif (kept := self.kernels.get(kernel.key)) is not None:
                found[kernel.prefix] = Answer.read(kept)
        return found

    def as_they_are(
        self, kernels: Sequence[Kernel], known: Mapping[str, Answer] | None = None
    ) -> list[tuple[Kernel, Answer | None]]:
        """Each kernel with what is known or found of it now; None where it cannot be asked."""
        found = dict(self.known(kernels) if known is None else known)
        asked = [kernel if kernel.prefix in found or kernel.why else within_grids(kernel) for kernel in kernels]
        new = {kernel.prefix: kernel for kernel in asked if kernel.prefix not in found and not kernel.why}
        for ran in self.run([*new.values()]) if new else ():
            kernel = new[ran.probe.prefix]
            answer = _answer(ran, ran.wanted, ran.got, kernel)
            if _has_grown(kernel, answer.deviation):
                answer = replace(answer, from_float=_from_float(kernel, ran))
            found[kernel.prefix] = self.seen[kernel.key] = answer
            if answer.answer in _RAN:
                self.kernels.put(kernel.key, asdict(answer))
        return [(kernel, found.get(kernel.prefix)) for kernel in asked]

    def otherwise(self, asked: Sequence[tuple[Seat, str]]) -> dict[SeatedWay, Answer]:
        """What each way comes to in each place, held against the kernel as it is on the CPU."""
        found: dict[SeatedWay, Answer] = {}
        new: list[tuple[Seat, str]] = []
        for seat, way in asked:
            kept = self.ways.get(_key(seat, way))
            if kept is None:
                new.append((seat, way))
            else:
                found[seat.by(way)] = Answer.read(kept)
        for (seat, way), answer in self._tried(new):
            found[seat.by(way)] = answer
            if answer.answer in _TRIED:
                self.ways.put(_key(seat, way), asdict(answer))
        return found

    def _tried(self, asked: Sequence[tuple[Seat, str]]) -> Iterator[tuple[tuple[Seat, str], Answer]]:
        kernels = {seat.kernel.prefix: seat.kernel for seat, _ in asked}
        kernels = {prefix: within_grids(kernel) for prefix, kernel in kernels.items()}
        trials: dict[str, tuple[tuple[Seat, str], Trial]] = {}
        for seat, way in asked:
            kernel = kernels[seat.kernel.prefix]
            try:
                if kernel.why:
                    raise NoMatchError(kernel.why)
                trial = trial_of(kernel, seat.at, way, len(trials))
            except NoMatchError as error:
                yield (seat, way), Answer(answer=_NONE, why=error.reason)
            except DeploykitError as error:
                yield (seat, way), Answer(answer=_NONE, why=str(error))
            else:
                trials[trial.prefix] = (seat, way), trial
        wanted: dict[str, Outputs] = {}
        for ran in self.run([trial for _, trial in trials.values()]) if trials else ():
            place, trial = trials[ran.probe.prefix]
            kernel = trial.kernel
            if kernel.prefix not in wanted:
                wanted[kernel.prefix] = _on_the_cpu(kernel)
            got = {trial.of_kernel(name): values for name, values in ran.got.items()}
            yield place, _answer(ran, wanted[kernel.prefix], got, kernel)


def bench_of(
    wheel: Mapping[str, str], host: Host | None, soc_model: int, progress: Callable[[str], None], what: str
) -> Bench:
    """The bench of one compiler and chip, with what is remembered of these; ``what`` is told while it runs."""

    def tell(line: str) -> None:
        progress(f"{what}: {line}")

    def run(probes: Sequence[Probe]) -> Iterator[Ran]:
        return run_together(probes, host=host, soc_model=soc_model, progress=tell, together=_TOGETHER)

    asked = {**wheel, "soc_model": soc_model, "form": _FORM}
    # What a way comes to follows from the code that builds it, too.
    return Bench(
        run=run, kernels=_Measured("audited", asked), ways=_Measured("tried", {**asked, "code": code_digest(_WAYS)})
    )


class _Measured:
    """What is remembered of kernels, by what they are and who ran them."""

    def __init__(self, kind: str, asked: Mapping[str, Any]) -> None:
        self._entries, self._asked = Store(kind), asked

    def get(self, key: str) -> dict[str, Any] | None:
        return self._entries.get(key_of(key.encode(), self._asked))

    def put(self, key: str, value: dict[str, Any]) -> None:
        self._entries.put(key_of(key.encode(), self._asked), value)


def _key(seat: Seat, way: str) -> str:
    return f"{seat.kernel.key} {seat.at} {way}"


def _answer(ran: Ran, wanted: Outputs, got: Outputs, kernel: Kernel) -> Answer:
    off = deviation(wanted, got, kernel.steps) if ran.ran else None
    return Answer(answer=ran.answer, why=ran.why, deviation=off)


def _on_the_cpu(kernel: Kernel) -> Outputs:
    session = Session(kernel.model)
    made = session.runs(kernel.samples)
    return {name: [one[name] for one in made] for name in session.outputs}


def verdict_on(kernel: Kernel, answer: Answer | None) -> Verdict:
    """What an answer means, for the kernel as it is or done in another way."""
    return judged(kernel, answer)[0]


def judged(kernel: Kernel, answer: Answer | None) -> tuple[Verdict, str, Mapping[str, Any]]:
    """The verdict, why it is not right ("" where it is), and what was measured."""
    if answer is None or kernel.why:
        return Verdict.UNJUDGED, kernel.why or "it was not reached", {}
    off = answer.deviation
    if answer.answer == "refused":
        return Verdict.REFUSED, answer.why, {}
    if off is None:
        said = "not finalized" if answer.answer == "failed" else answer.answer
        return (Verdict.REFUSED if answer.answer == "failed" else Verdict.UNJUDGED), f"{said}: {answer.why}", {}
    verdict = _by_its_limits(kernel, off)
    if kernel.place == "inside" and verdict is not Verdict.RIGHT:
        # Steps of one operator grow in the next one: only what is far off in most places is laid to the kernels.
        far = off.usual > off.span / 20 and off.share > 0.05
        verdict = Verdict.WRONG if far or off.odd else Verdict.RIGHT
    limits = limits_of(kernel.operators, kernel.type)
    told = {**asdict(off), "unit": "steps", "limit": limits.most}
    if answer.from_float is not None:
        told |= {"file_from_float": answer.from_float[0], "from_float": answer.from_float[1]}
    return verdict, "" if verdict is Verdict.RIGHT else _told(off), told


def _by_its_limits(kernel: Kernel, off: Deviation) -> Verdict:
    numbers = {name: getattr(off, name) for name in ("most", "usual", "span", "share")}
    return verdict_of(kernel.operators, kernel.type, odd=off.odd, **numbers)


def _has_grown(kernel: Kernel, off: Deviation | None) -> bool:
    """True among neighbours for what is beyond the limits of its operators: the file may be as far off, in its way."""
    return kernel.place == "inside" and off is not None and _by_its_limits(kernel, off) is not Verdict.RIGHT


def _from_float(kernel: Kernel, ran: Ran) -> tuple[float, float] | None:
    """The most steps that the file and the kernel are off the model without its pairs; None where these stay."""
    taken = extract_qdq(kernel.model)
    if taken.kept or not kernel.steps:
        return None
    session = Session(taken.model)
    made = session.runs(kernel.samples)
    meant = {name: [one[name] for one in made] for name in ran.wanted}
    return deviation(meant, ran.wanted, kernel.steps).most, deviation(meant, ran.got, kernel.steps).most


def _told(off: Deviation) -> str:
    """In words: how far, of what, where, and by which factor."""
    if off.odd:
        return f"{off.odd} values are not finite"
    parts = [f"up to {off.most:.4g} of {off.span:.4g} steps off", f"{100 * off.share:.3g} % of values far"]
    if off.factor is not None and abs(off.factor - 1) > 0.02:
        parts.append(f"about {off.factor:.3g} times what it should be")
    return f"{', '.join(parts)}, most in input set {off.set}"
