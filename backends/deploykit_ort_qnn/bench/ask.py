"""Asks one release's compiler about pieces of a model: whether it takes them, and what they compute on the emulator.

Answers are kept in one store, under a key of all that they depend on. Questions that ran out of time are asked again
the next time. Nothing here cuts a model or chooses between ways.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct, to_builtins
from msgspec.structs import asdict
from onnx import ModelProto

from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.qdq import extract_qdq
from deploykit.findings.records import Json, Pairs, Record, Tell, field, replace
from deploykit.system.folders import scratch
from deploykit.system.store import Store, code_digest, key_of
from deploykit_ort_qnn.bench.kernels import Kernel, within_grids
from deploykit_ort_qnn.bench.together import BenchGraph, Deviation, Outputs, Ran, deviation, run_together
from deploykit_ort_qnn.compiler.hosts import Host, who_compiles
from deploykit_ort_qnn.compiler.jobs import CompileJob, CompileOutcome, compile_model
from deploykit_qualcomm.atlas.rows import KernelVerdict, limits_of, verdict_of

__all__ = ["Bench", "KernelAnswer", "TimedBench", "bench_of", "judged", "verdict_on"]

# With less time left no worker is started: it would not even begin to compile.
_LEAST_SECONDS = 2.0
# Kernels in one compilation: with more a crash costs more, with fewer the compiler is started more often.
_TOGETHER = 48
# The answers about a kernel that are kept: a crash or a timeout may have another cause.
_LASTING = ("taken", "refused")
_LASTING_WAYS = (*_LASTING, "failed", "invalid", "none")


class Memory:
    """The answers that one asker (a compiler, a chip, its options) got before.

    A question is the ``content`` of a piece, which is equal for pieces that differ in names only, and what is asked
    about it: ``taken``, ``types``, ``numbers``, or ``numbers`` of a repair way.
    """

    def __init__(self, who: Json) -> None:
        # A change of the code that asks or that builds ways makes old answers invalid.
        self._store, self._who = Store("asked"), {**who, "code": code_digest(Path(__file__).parent)}

    def get(self, content: bytes, want: str) -> Json | None:
        """The kept answer to a question, None if there is none."""
        return self._store.get(key_of(content, {**self._who, "want": want}))

    def put(self, content: bytes, want: str, answer: Json) -> None:
        """Keeps the answer to a question in the store."""
        self._store.put(key_of(content, {**self._who, "want": want}), dict(answer))


class CompileAnswer(Record):
    """The result of one compilation: ``refused`` holds (node, type), ``changes`` (node, compiled type)."""

    status: str
    message: str
    refused: Pairs = ()
    changes: Pairs = ()

    @property
    def taken(self) -> bool:
        """True if the piece was compiled."""
        return self.status == "compiled"

    @property
    def no(self) -> str:
        """Why the compiler does not take the piece; "" if it does, or if something else stopped the compilation."""
        if self.status == "crashed":
            return self.message
        if self.status == "refused" or "default CPU EP" in self.message:
            return "it is not taken"
        _, found, cause = self.message.partition("EP_FAIL : ")
        return cause if self.status == "failed" and found else ""


class TimedBench(Struct, kw_only=True):
    """Compiles pieces with one set of provider options until ``deadline``
    (``time.monotonic``), ``longest`` seconds each.

    ``host`` runs the compiler; None means the provider installed beside this Python.
    """

    options: Mapping[str, str]
    entries: Mapping[str, str] = {}
    deadline: float
    longest: float
    progress: Tell
    host: Host | None = None

    @property
    def is_over(self) -> bool:
        """True if no time is left for another question."""
        return self.deadline - time.monotonic() < _LEAST_SECONDS

    def ask(
        self,
        model: ModelProto,
        content: bytes,
        types: Callable[[CompileOutcome], Iterable[tuple[str, str]]] | None = None,
    ) -> CompileAnswer:
        """Compiles a model, or gives the kept answer. ``types`` lists nodes with unintended compiled types."""
        who = who_compiles(self.host) or {}
        memory = Memory({**who, "options": dict(self.options), "entries": dict(self.entries)})
        want = "taken" if types is None else "types"
        known = memory.get(content, want)
        if known is not None:
            return msgspec.convert(known, CompileAnswer)
        if self.is_over:
            return CompileAnswer(status="timed-out", message="the time for questions is over")
        with scratch() as folder:
            (folder / "model.onnx").write_bytes(model.SerializeToString())
            job = CompileJob(
                folder,
                "model.onnx",
                context="context.onnx",
                options=self.options,
                entries=self.entries,
                timeout=min(self.longest, self.deadline - time.monotonic()),
                host=self.host,
            )
            outcome = compile_model(job, self.progress)
        answer = CompileAnswer(
            status=outcome.status,
            message=outcome.message,
            refused=tuple((node.name, node.type) for node in outcome.refused),
            changes=tuple(types(outcome)) if outcome.ok and types is not None else (),
        )
        if outcome.status != "timed-out":
            memory.put(content, want, to_builtins(answer))
        return answer


class KernelAnswer(Record):
    """The result of a kernel: ``answer`` as in ``Ran``, or "none" if its way does not apply; the deviation if it ran.

    ``from_float`` is the largest deviation of the file and of the kernel from
    the float model in steps, if steps grew inside.
    """

    answer: str
    why: str = ""
    deviation: Deviation | None = None
    from_float: tuple[float, float] | None = None

    @property
    def most(self) -> float:
        """The largest deviation in steps, 0 if nothing ran."""
        return 0.0 if self.deviation is None else self.deviation.most


Runner: TypeAlias = "Callable[[Sequence[BenchGraph]], Iterator[Ran]]"
"""Runs graphs on an emulator and yields the result of each, in any order."""


class Bench(Record):
    """Asks one compiler and emulator about kernels. ``seen`` holds the answers of this bench: it runs a kernel once."""

    run: Runner
    memory: Memory
    seen: dict[str, KernelAnswer] = field(default_factory=dict)

    def known(self, kernel: Kernel) -> KernelAnswer | None:
        """The earlier measurement of a kernel, unchanged or with a repair way, None if there is none."""
        if not kernel.way and kernel.key in self.seen:
            return self.seen[kernel.key]
        kept = self.memory.get(kernel.key.encode(), f"numbers {kernel.way}".strip())
        return None if kept is None else msgspec.convert(kept, KernelAnswer)

    def keep(self, kernel: Kernel, answer: KernelAnswer) -> None:
        """Keeps an answer that lasts; that a way does not apply or does not compile lasts, too."""
        if answer.answer in (_LASTING_WAYS if kernel.way else _LASTING):
            self.memory.put(kernel.key.encode(), f"numbers {kernel.way}".strip(), to_builtins(answer))

    def ask(self, kernels: Sequence[Kernel]) -> list[tuple[Kernel, KernelAnswer | None]]:
        """Pairs each kernel with its known or new answer; None if it cannot be asked."""
        found = {one.prefix: known for one in kernels if (known := self.known(one)) is not None}
        asked = [kernel if kernel.prefix in found or kernel.why else within_grids(kernel) for kernel in kernels]
        new = {kernel.prefix: kernel for kernel in asked if kernel.prefix not in found and not kernel.why}
        for ran in self.run([*new.values()]) if new else ():
            kernel = new[ran.probe.prefix]
            answer = answer_of(ran, ran.wanted, ran.got, kernel)
            # With neighbours around it, the file may be as far off the float model as the kernel, in another direction.
            off = answer.deviation if kernel.place == "inside" and kernel.steps else None
            if off is not None and _by_limits(kernel, off) is not KernelVerdict.RIGHT:
                answer = replace(answer, from_float=_from_float(kernel, ran))
            found[kernel.prefix] = self.seen[kernel.key] = answer
            self.keep(kernel, answer)
        return [(kernel, found.get(kernel.prefix)) for kernel in asked]


def bench_of(wheel: Mapping[str, str], host: Host | None, soc_model: int, progress: Tell, what: str) -> Bench:
    """The bench of one compiler and chip, with the answers kept for them; progress lines begin with ``what``."""

    def run(probes: Sequence[BenchGraph]) -> Iterator[Ran]:
        def tell(line: str) -> None:
            progress(f"{what}: {line}")

        return run_together(probes, host=host, soc_model=soc_model, progress=tell, together=_TOGETHER)

    return Bench(run=run, memory=Memory({**wheel, "soc_model": soc_model}))


def answer_of(ran: Ran, wanted: Outputs, got: Outputs, kernel: Kernel) -> KernelAnswer:
    """The answer about a kernel, with the deviation of its outputs from the wanted ones."""
    off = deviation(wanted, got, kernel.steps) if ran.ran else None
    return KernelAnswer(answer=ran.answer, why=ran.why, deviation=off)


def _from_float(kernel: Kernel, ran: Ran) -> tuple[float, float] | None:
    """How many steps the file and the kernel are at most off the model without Q/DQ pairs; None if some pairs stay."""
    taken = extract_qdq(kernel.model, saturate=True)
    if taken.kept:
        return None
    made = Session(taken.model).runs(kernel.samples)
    meant = {name: [one[name] for one in made] for name in ran.wanted}
    return deviation(meant, ran.wanted, kernel.steps).most, deviation(meant, ran.got, kernel.steps).most


def verdict_on(kernel: Kernel, answer: KernelAnswer | None) -> KernelVerdict:
    """The verdict on a kernel, unchanged or with a repair way, from its answer."""
    return judged(kernel, answer)[0]


def judged(kernel: Kernel, answer: KernelAnswer | None) -> tuple[KernelVerdict, str, Json]:
    """The verdict, the reason if it is not right (else ""), and the measured numbers."""
    if answer is None or kernel.why:
        return KernelVerdict.UNJUDGED, kernel.why or "it was not reached", {}
    off = answer.deviation
    if answer.answer == "refused":
        return KernelVerdict.REFUSED, answer.why, {}
    if answer.answer == "failed":
        return KernelVerdict.REFUSED, f"not finalized: {answer.why}", {}
    if off is None:
        return KernelVerdict.UNJUDGED, f"{answer.answer}: {answer.why}", {}
    verdict = _by_limits(kernel, off)
    if kernel.place == "inside" and verdict is not KernelVerdict.RIGHT:
        # An operator's deviation grows in the next one: only one that is large in many places is the kernels' fault.
        far = off.usual > off.span / 20 and off.share > 0.05
        verdict = KernelVerdict.WRONG if far or off.odd else KernelVerdict.RIGHT
    told = {**asdict(off), "unit": "steps", "limit": limits_of(kernel.operators, kernel.type)[1]}
    if answer.from_float is not None:
        told |= {"file_from_float": answer.from_float[0], "from_float": answer.from_float[1]}
    if verdict is KernelVerdict.RIGHT:
        return verdict, "", told
    if off.odd:
        return verdict, f"{off.odd} values are not finite", told
    times = off.factor is not None and abs(off.factor - 1) > 0.02
    factor = f"about {off.factor:.3g} times what it should be, " if times else ""
    how = f"up to {off.most:.4g} of {off.span:.4g} steps off, {100 * off.share:.3g} % of values far, {factor}"
    return verdict, f"{how}most in input set {off.set}", told


def _by_limits(kernel: Kernel, off: Deviation) -> KernelVerdict:
    numbers = {name: getattr(off, name) for name in ("most", "usual", "span", "share", "odd")}
    return verdict_of(kernel.operators, kernel.type, **numbers)
