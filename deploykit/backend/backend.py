"""The contract between the core and a backend: small Protocols, found through the entry point ``deploykit.backends``.

Stages, each a value that the next one takes: ``prepare`` may load weights, rewrite and look at calibration data;
``plan`` decides from that value alone; ``render`` writes text; ``execute`` runs what can run here; ``verify`` judges
what is on disk. An adapter package must be cheap to import: no onnx, no numpy at the top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from deploykit.backend.audits import Audit, settled_findings
from deploykit.backend.kept import Kept
from deploykit.backend.opinions import Opinions
from deploykit.backend.options import OptionSpec
from deploykit.backend.plans import Plan
from deploykit.backend.requests import Request
from deploykit.backend.status import Compilation, Correctness
from deploykit.backend.targets import Target
from deploykit.errors import InputError
from deploykit.findings import Confidence, Finding
from deploykit.findings.rules import Registry
from deploykit.model.weights import unmapped
from deploykit.tables.capabilities import CompatRow
from deploykit.tables.devices import Device

if TYPE_CHECKING:
    import numpy.typing as npt
    from onnx import ModelProto

    from deploykit.accuracy.samples.gathering import Samples
    from deploykit.backend.optional import GivesSecondOpinion
    from deploykit.backend.quantizers import QuantizedModel
    from deploykit.encodings.segments import Segment
    from deploykit.encodings.values import EncodingSet
    from deploykit.model import Model
    from deploykit.model.facts import GraphFacts

__all__ = [
    "Aids",
    "AnyBackend",
    "Backend",
    "BytesFile",
    "Check",
    "CopiedFile",
    "Execution",
    "Instead",
    "JsonFile",
    "MixedSupport",
    "PackageFile",
    "Progress",
    "Request",
    "Seen",
    "Situation",
    "TextFile",
    "Verification",
    "copied_model",
]

Progress: TypeAlias = Callable[[str], None]
"""Called with one line of news during long work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything known before anything is decided: the input of planning and of the rules."""

    request: Request
    model: Model
    facts: GraphFacts
    encodings: EncodingSet | None
    target: Target
    rewritten: bool = False
    """True when ``model`` is a rewritten form of the file that was asked for."""
    tail: bytes | None = None
    """The serialized model that the host runs after the device, when the end was cut off."""
    segments: tuple[Segment, ...] = ()
    """The parts in the order in which they run, when ``model`` is to be cut."""
    quantized: QuantizedModel | None = None
    """How the encodings came to be, where they were made here and not given."""
    ladder: Mapping[str, Any] | None = None
    """The candidates that the precision was chosen from, in the published shape; None where it was not chosen here."""
    opinions: Opinions | None = None
    """What a compiler said of findings about this situation, None where there was nothing to ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """A text file of the package; ``executable`` scripts get mode 0755."""

    path: str
    text: str
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFile:
    """A JSON file of the package; serialised, never templated."""

    path: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesFile:
    """A binary file of the package that was made in memory."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedFile:
    """A file streamed into the package from where the user keeps it, hashed while copied."""

    path: str
    source: Path


PackageFile: TypeAlias = TextFile | JsonFile | BytesFile | CopiedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was verified."""

    id: str
    ok: bool
    detail: str

    def to_json(self) -> dict[str, Any]:
        """The published shape."""
        return {"id": self.id, "ok": self.ok, "detail": self.detail}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """Another request for the same model, seen to get over what an execution failed at, and how in words.

    ``findings`` are what there is to say about it in the package that it leads to. ``right`` is what a trial showed of
    its numbers, for a package whose own execution judges none. ``handles`` says how of single findings, by code and
    name of the subject, whether they block or not.
    """

    request: Request
    how: str
    handles: Mapping[tuple[str, str], str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    right: Correctness | None = None

    def over(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """Of an execution's findings those that it gets over, as handled."""
        told = ((finding, self.handles.get((finding.code, finding.subject.name))) for finding in findings)
        return tuple(finding.with_handled(how or self.how) for finding, how in told if how or finding.blocks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """A few samples and the outputs that ``by`` gave for each; names and shapes are the graph's own."""

    by: str
    feeds: tuple[Mapping[str, npt.NDArray[Any]], ...]
    outputs: tuple[Mapping[str, npt.NDArray[Any]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What really ran, with the files it left (package-relative), the facts to record, and what it found.

    ``right`` is None where nothing was run whose numbers could be judged. ``instead`` is what to start again with.
    ``audit`` is of the package's kernels, where one was asked for. ``seen`` are a few outputs, for the page to show.
    ``settled`` says of findings of the plan, by code and name of the subject, what was seen instead.
    """

    executed: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    record: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    compiled: Compilation = field(default_factory=Compilation)
    right: Correctness | None = None
    instead: Instead | None = None
    audit: Audit | None = None
    seen: Seen | None = None
    settled: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def settle(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """The plan's findings, those marked as handled that running showed to be about nothing here."""
        return settled_findings(findings, self.settled)

    def with_avoided(self, avoided: Iterable[Finding]) -> tuple[Finding, ...]:
        """Its findings, and those of an earlier try that it got over: what was found again it did not get over."""
        found = {(finding.code, finding.subject.name) for finding in self.findings}
        gone = (finding for finding in avoided if (finding.code, finding.subject.name) not in found)
        return (*self.findings, *gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The adapter's judgement of a package: checks, intended against actual types, findings."""

    checks: tuple[Check, ...] = ()
    intended: Mapping[str, str] = field(default_factory=dict)
    actual: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Aids:
    """What the core hands an adapter for ``execute``: where news go, inputs to judge on, whose compiler may be asked.

    ``samples`` gathers on the call; it raises InputError for calibration data that does not fit the inputs.
    """

    progress: Progress
    samples: Callable[[], Samples]
    opinion: GivesSecondOpinion | None = None


P = TypeVar("P")
D = TypeVar("D")


@runtime_checkable
class Backend(Protocol[P, D]):
    """One backend. ``id`` is the entry point's name.

    ``P`` is the adapter's own prepared value, ``D`` the decision data that its plans carry.
    """

    id: str
    summary: str

    def devices(self) -> tuple[Device, ...]:
        """The devices this backend can package for."""

    def options(self) -> tuple[OptionSpec, ...]:
        """The options of this backend's own, for command line, API and docs; cheap, as help asks all backends."""

    def registries(self) -> tuple[Registry[Any], ...]:
        """The rules of this backend."""

    def compat(self) -> Iterable[CompatRow]:
        """Every row of the capability tables, for ``deploykit compat``."""

    def resolve(self, device: Device, sdk: str | None) -> Target:
        """The target for a device and a version as typed; raises UnknownTargetError."""

    def prepare(self, situation: Situation, kept: Kept) -> P:
        """Everything the decision needs: may load weights, rewrite, look at calibration data. Writes nothing.

        ``kept`` holds what requests of the same run share.
        """

    def plan(self, prepared: P) -> Plan[D]:
        """Decide. Pure: reads the prepared value and the tables, opens nothing, runs nothing."""

    def render(self, prepared: P, plan: Plan[D], templates: Path | None) -> Iterable[PackageFile]:
        """Every file of the package that the core does not write itself; ``templates`` is a folder of the user's."""

    def execute(self, package: Path, prepared: P, plan: Plan[D], aids: Aids) -> Execution:
        """Run what can be run here, inside the not yet published package folder."""

    def verify(self, package: Path, manifest: Mapping[str, Any]) -> Verification:
        """Judge a package on disk."""


AnyBackend: TypeAlias = Backend[Any, Any]
"""A backend as the entry points give it: what it prepares is its own business."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSupport:
    """Which kinds of ways a backend has for a target: ``integer``, ``fallback``, ``segments``, ``direct``.

    ``safe`` says that its tools are known to mix float16 and integers well; ``without`` why a kind is missing;
    ``confidence`` how sure it is that a kind works here, where that is not what the way itself says. ``needs`` are
    options of the backend's own that a kind stands for: the request has them where a way of that kind wins.
    """

    kinds: frozenset[str]
    safe: bool = False
    without: Mapping[str, str] = field(default_factory=dict)
    confidence: Mapping[str, Confidence] = field(default_factory=dict)
    needs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def copied_model(situation: Situation, path: str) -> tuple[PackageFile, ...]:
    """The model as files of the package: the user's with its external data in place, or the rewritten one, and a tail.

    The tail is called ``tail.onnx`` and lies beside the model. Raises InputError for external data of either's name.
    """
    folder = path.rpartition("/")[0]
    tail = () if situation.tail is None else (BytesFile(path=f"{folder}/tail.onnx", data=situation.tail),)
    # Two spellings of one place (``w.bin``, ``./w.bin``) are one file.
    external = {str(PurePosixPath(folder, file.location)): file.path for file in situation.model.external}
    for taken in {path, *(file.path for file in tail)} & external.keys():
        raise InputError(
            f"{situation.request.model}: its external data is called {PurePosixPath(taken).name}",
            why="a model has that name beside it in the package",
            next="save the model again, with another name for its data",
        )
    copies = (CopiedFile(path=place, source=source) for place, source in external.items())
    if situation.rewritten:
        return (BytesFile(path=path, data=_as_stored(situation.model.proto)), *copies, *tail)
    return (CopiedFile(path=path, source=situation.request.model), *copies, *tail)


def _as_stored(model: ModelProto) -> bytes:
    """A model of ours as one message; weights that were left in their files are found beside it."""
    return bytes(unmapped(model).SerializeToString(deterministic=True))
