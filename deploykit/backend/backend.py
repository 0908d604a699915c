"""The contract between the core and a backend: one base class, and the values that go from stage to stage.

Stages, each a value that the next one takes: ``prepare`` may load weights, rewrite and look at calibration data;
``plan`` decides from that value alone; ``render`` writes text; ``execute`` runs what can run here; ``verify`` judges
what is on disk. An adapter package must be cheap to import: no onnx, no numpy at the top.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from deploykit.backend.requests import Request
from deploykit.backend.status import Compilation
from deploykit.errors import InputError
from deploykit.findings import Confidence, Finding, Findings
from deploykit.findings.records import Arrays, Json, Names, Published, Record, Tell, field
from deploykit.system.store import Kept

if TYPE_CHECKING:
    from deploykit.accuracy.latency import Estimate
    from deploykit.accuracy.samples.gathering import Samples
    from deploykit.accuracy.samples.sizes import PinnedInput
    from deploykit.accuracy.simulate.simulation import Original
    from deploykit.backend.on_device import DeviceJob, DeviceRequest, DeviceResults
    from deploykit.backend.opinions import Audit, Compiler, Opinion, Opinions
    from deploykit.backend.options import OptionSpec
    from deploykit.backend.plans import Plan
    from deploykit.backend.probes import Probe
    from deploykit.backend.quantizers import QuantizedModel, Quantizer
    from deploykit.backend.status import Correctness
    from deploykit.backend.targets import Target
    from deploykit.encodings.segments import Segment
    from deploykit.encodings.values import EncodingSet
    from deploykit.findings.rules import Registry
    from deploykit.model.facts import GraphFacts
    from deploykit.model.load import Model
    from deploykit.system.specs import ToolchainSpec
    from deploykit.tables.capabilities import CompatRow
    from deploykit.tables.devices import Device
    from deploykit.tables.known_errors import Catalog

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
    "Request",
    "Same",
    "Seen",
    "SharedWork",
    "Situation",
    "TextFile",
    "Verification",
    "copied_model",
]


class Situation(Record):
    """Everything known before anything is decided: the input of planning and of the rules."""

    request: Request
    model: Model
    facts: GraphFacts
    encodings: EncodingSet | None
    target: Target
    rewritten: bool = False
    """True when ``model`` is a rewritten form of the file that was asked for."""
    sizes: tuple[PinnedInput, ...] = ()
    """The inputs whose open dimensions were decided here, each with its reason."""
    choices: Mapping[str, int] = {}
    """Inputs that only chose a branch, with the value that is built in; the packaged model does not have them."""
    tail: bytes | None = None
    """The serialized model that the host runs after the device, when the end was cut off."""
    segments: tuple[Segment, ...] = ()
    """The parts in the order in which they run, when ``model`` is to be cut."""
    quantized: QuantizedModel | None = None
    """How the encodings came to be, where they were made here and not given."""
    ladder: Json | None = None
    """The candidates that the precision was chosen from, in the published shape; None where it was not chosen here."""
    unturned: Situation | None = None
    """The same before its inputs and outputs were turned to channels last; None where they were not."""
    opinions: Opinions | None = None
    """What a compiler said of findings about this situation, None where there was nothing to ask."""


class TextFile(Record, kw_only=False):
    """A text file of the package; ``executable`` scripts get mode 0755."""

    path: str
    text: str
    executable: bool = False


class JsonFile(Record, kw_only=False):
    """A JSON file of the package; serialised, never templated."""

    path: str
    value: Any


class BytesFile(Record, kw_only=False):
    """A binary file of the package that was made in memory."""

    path: str
    data: bytes


class CopiedFile(Record, kw_only=False):
    """A file streamed into the package from where the user keeps it, hashed while copied."""

    path: str
    source: Path


PackageFile: TypeAlias = TextFile | JsonFile | BytesFile | CopiedFile


class Check(Published, kw_only=False):
    """One thing that was verified."""

    id: str
    ok: bool
    detail: str


class Instead(Record):
    """Another request for the same model, seen to get over what an execution failed at, and how in words.

    ``findings`` are what there is to say about it in the package that it leads to. ``right`` is what a trial showed of
    its numbers, for a package whose own execution judges none. ``handles`` says how of single findings, by code and
    name of the subject, whether they block or not.
    """

    request: Request
    how: str
    handles: Mapping[tuple[str, str], str] = {}
    findings: Findings = ()
    right: Correctness | None = None

    def over(self, findings: Iterable[Finding]) -> Findings:
        """Of an execution's findings those that it gets over, as handled."""
        told = ((finding, self.handles.get(finding.about)) for finding in findings)
        return tuple(finding.with_handled(how or self.how) for finding, how in told if how or finding.blocks)


class Seen(Record, eq=False):
    """A few samples and the outputs that ``by`` gave for each; names and shapes are the graph's own."""

    by: str
    feeds: tuple[Arrays, ...]
    outputs: tuple[Arrays, ...]


class Execution(Record):
    """What really ran, with the files it left (package-relative), the facts to record, and what it found.

    ``right`` is None where nothing was run whose numbers could be judged. ``instead`` is what to start again with.
    ``audit`` is of the package's kernels, where one was asked for. ``seen`` are a few outputs, for the page to show.
    ``settled`` says of findings of the plan, by code and name of the subject, what was seen instead. ``estimate`` is
    the compiler's own word about time, None where it has none.
    """

    executed: Names = ()
    outputs: Names = ()
    record: Json = field(default_factory=dict)
    findings: Findings = ()
    compiled: Compilation = Compilation()
    right: Correctness | None = None
    instead: Instead | None = None
    audit: Audit | None = None
    seen: Seen | None = None
    settled: Mapping[tuple[str, str], str] = {}
    estimate: Estimate | None = None


class Verification(Record):
    """The adapter's judgement of a package: checks, intended against actual types, findings."""

    checks: tuple[Check, ...] = ()
    intended: Mapping[str, str] = {}
    actual: Mapping[str, str] = {}
    findings: Findings = ()


class Same:
    """A key that equals only the very same object, which it keeps alive: a model is not compared by its bytes."""

    __slots__ = ("_of",)

    def __init__(self, of: object) -> None:
        self._of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._of is other._of

    def __hash__(self) -> int:
        return id(self._of)


SharedWork: TypeAlias = Kept
"""What several targets of one run share: each thing is made once, under its key, and is gone with the run."""


class Aids(Record):
    """What the core hands an adapter for ``execute``: where news go, and inputs to judge on.

    ``samples`` gathers on the call; it raises InputError for calibration data that does not fit the inputs. ``shared``
    is what the targets of one run share.
    """

    progress: Tell
    samples: Callable[[], Samples]
    original: Callable[[], Original | None] = lambda: None
    """The judge of the model as it was handed in, with what its encodings lose; None where it does not run here."""
    shared: SharedWork = field(default_factory=SharedWork)


P = TypeVar("P")
D = TypeVar("D")


class Backend(ABC, Generic[P, D]):
    """One backend; subclass it and register an object under the entry point group ``deploykit.backends``.

    ``P`` is the adapter's own prepared value, ``D`` the decision data that its plans carry. What is abstract every
    backend must have; everything else has a default that offers nothing. The module of a subclass must be cheap to
    import: what needs onnx or numpy is imported when it is called.
    """

    id: str
    """The entry point's name."""
    summary: str
    quantizer: str = ""
    """Who quantizes while packaging, where the backend's own recipe does so; see ``quantized``."""

    # What every backend must have: its devices, its tables, and the stages in the order in which they are called.

    @abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """The devices this backend can package for."""

    @abstractmethod
    def resolve(self, device: Device, sdk: str | None) -> Target:
        """The target for a device and a version as typed; raises UnknownTargetError."""

    @abstractmethod
    def prepare(self, situation: Situation, shared: SharedWork) -> P:
        """Everything the decision needs: may load weights, rewrite, look at calibration data. Writes nothing.

        ``shared`` holds what requests of the same run share.
        """

    @abstractmethod
    def plan(self, prepared: P) -> Plan[D]:
        """Decide. Pure: reads the prepared value and the tables, opens nothing, runs nothing."""

    @abstractmethod
    def render(self, prepared: P, plan: Plan[D], templates: Path | None) -> Iterable[PackageFile]:
        """Every file of the package that the core does not write itself; ``templates`` is a folder of the user's."""

    def execute(self, package: Path, prepared: P, plan: Plan[D], aids: Aids) -> Execution:
        """Run what can be run here, inside the not yet published package folder."""
        del package, prepared, plan, aids
        return Execution()

    def verify(self, package: Path, manifest: Json) -> Verification:
        """Judge a package on disk."""
        del package, manifest
        return Verification()

    def device_job(self, package: Path, manifest: Json, request: DeviceRequest) -> DeviceJob | None:
        """What is pushed to a device and started there; None where nothing of this backend runs at such a place.

        Raises ToolError for what is missing there or here, or is of another release.
        """
        del package, manifest, request
        return None

    def device_results(self, package: Path, request: DeviceRequest, folder: Path) -> DeviceResults:
        """What the results of such a job say, which were pulled into ``folder``; ToolError for what cannot be read."""
        raise NotImplementedError

    # What is asked without a model.

    def options(self) -> tuple[OptionSpec, ...]:
        """The options of this backend's own, for command line, API and docs; cheap, as help asks all backends."""
        return ()

    def registries(self) -> tuple[Registry[Any], ...]:
        """The rules of this backend."""
        return ()

    def reserved_codes(self) -> Mapping[str, str]:
        """Codes of rules that are no longer given out, each with the code of the rule to read instead."""
        return {}

    def compat(self) -> Iterable[CompatRow]:
        """Every row of the capability tables, for ``deploykit compat``."""
        return ()

    def source_dates(self) -> Mapping[str, str]:
        """By the beginning of a source the day it was compared ("2026-09-30"), under "" that of every other one."""
        return {}

    def binary_rows(self, built_with: str, built_for: str, runtime: str, arch: str) -> Iterable[CompatRow]:
        """Will a binary made by one release for one architecture load on another release and architecture?"""
        del built_with, built_for, runtime, arch
        return ()

    def inspect(self, path: Path) -> Json:
        """The metadata of a compiled file; InputError where it is none."""
        raise InputError(f"{path}: {self.id} reads no compiled files")

    def block_weight_path(self, *, op_type: str, lpbq: bool, has_bias: bool, sdk: str) -> str:
        """In words what a layer with block-quantized weights becomes under that version, with or without LPBQ."""
        del op_type, lpbq, has_bias, sdk
        return "unknown"

    def device_of_id(self, name: str) -> Device | None:
        """The device whose id this is, upper or lower case; None where no device has it.

        A backend with many devices reads one file instead of all.
        """
        return next((device for device in self.devices() if device.id == name.lower()), None)

    def known_errors(self) -> Catalog:
        """The known errors of this backend's tools."""
        from deploykit.tables.known_errors import Catalog

        return Catalog()

    def probes(self) -> Iterable[Probe]:
        """What ``deploykit doctor`` looks for, each for one area."""
        return ()

    def toolchains(self) -> tuple[ToolchainSpec, ...]:
        """The environments this backend's tools need."""
        return ()

    def wanted_toolchains(self, target: Target) -> tuple[str, ...]:
        """What a target wants, each as ``deploykit toolchain install`` takes it, with the version where it counts."""
        del target
        return ()

    # What is asked while a model is decided on.

    def rated(self, finding: Finding) -> Finding:
        """A finding of the core with the severity it has on these devices, and with who says so."""
        return finding

    def mixed_support(self, target: Target, options: Json) -> MixedSupport | None:
        """The kinds of ways to mix precisions that there are for this target, under checked options of its own.

        Without this method no graph is rewritten for precision, and no way is chosen.
        """
        del target, options
        return None

    def quantizers(self, target: Target) -> tuple[Quantizer, ...]:
        """Who makes encodings for a target, the best first; what the core has of its own is not among them.

        Without this method the backend takes no encodings.
        """
        del target
        return ()

    def calibrates_itself(self, situation: Situation) -> bool:
        """Whether it was asked to leave the calibration to the backend's own tools."""
        del situation
        return False

    def quantized(self, package: Path, manifest: Json) -> Path | None:
        """The quantized model in a package, where the backend's own recipe quantizes; None where it did not run."""
        del package, manifest
        return None

    # What is asked of a compiler that runs on this machine.

    def audit(self, prepared: P, *, level: str, progress: Tell, given: Situation | None = None) -> Audit:
        """Each kernel of what ``prepare`` gave by itself: those under suspicion (``quick``), soon done (``auto``), all.

        With ``given`` it says of kernels of the model as it was given, too, where they are wrong and were mended.
        """
        raise NotImplementedError

    def compilers(self, device: Device, sdk: str) -> Sequence[Compiler]:
        """Who can be asked here about findings, that of the release nearest to ``sdk`` first ("": the newest).

        The only one says what is missing where nobody can; () is a backend that has no compiler here.
        """
        del device, sdk
        return ()

    def releases_here(self) -> Sequence[str]:
        """The releases whose compiler runs on this machine, by the names that ``--sdk`` takes, oldest first."""
        return ()

    def settle(
        self,
        situation: Situation,
        findings: Sequence[Finding],
        *,
        compiler: Compiler,
        shared: SharedWork,
        seconds: float,
        progress: Tell,
    ) -> Sequence[Opinion]:
        """One of ``compilers`` on what each finding claims, in their order, within about so many seconds.

        What is not reached stays open.
        """
        raise NotImplementedError

    def time_us(self, model: bytes, device: Device, progress: Tell) -> float | None:
        """Microseconds of one run of a serialized model by its compiler's cost model, None where that has none of this
        chip. Raises ToolError where no compiler runs here."""
        raise NotImplementedError

    def offers(self, method: str) -> bool:
        """Whether this backend has its own of a method that has a default here."""
        return getattr(type(self), method) is not getattr(Backend, method)


AnyBackend: TypeAlias = Backend[Any, Any]
"""A backend as the entry points give it: what it prepares is its own business."""


class MixedSupport(Record):
    """Which kinds of ways a backend has for a target: ``integer``, ``fallback``, ``segments``, ``direct``.

    ``safe`` says that its tools are known to mix float16 and integers well; ``without`` why a kind is missing;
    ``confidence`` how sure it is that a kind works here, where that is not what the way itself says. ``needs`` are
    options of the backend's own that a kind stands for: the request has them where a way of that kind wins.
    """

    kinds: frozenset[str]
    safe: bool = False
    without: Mapping[str, str] = {}
    confidence: Mapping[str, Confidence] = {}
    needs: Mapping[str, Json] = {}

    @property
    def has_float16(self) -> bool:
        """True where it mixes float16 with integers."""
        return self.kinds > {"integer"}


def copied_model(situation: Situation, path: str) -> tuple[PackageFile, ...]:
    """The model as files of the package: the user's with its external data in place, or the rewritten one, and a tail.

    The tail is called ``tail.onnx`` and lies beside the model. Raises InputError for external data of either's name.
    """
    folder = path.rpartition("/")[0]
    tail = () if situation.tail is None else (BytesFile(f"{folder}/tail.onnx", situation.tail),)
    # Two spellings of one place (``w.bin``, ``./w.bin``) are one file.
    external = {str(PurePosixPath(folder, file.location)): file.path for file in situation.model.external}
    for taken in {path, *(file.path for file in tail)} & external.keys():
        raise InputError(
            f"{situation.request.model}: its external data is called {PurePosixPath(taken).name}",
            why="a model has that name beside it in the package",
            next="save the model again, with another name for its data",
        )
    copies = (CopiedFile(place, source) for place, source in external.items())
    if situation.rewritten:
        from deploykit.model.weights import unmapped

        # One message; weights that were left in their files are found beside it.
        model = unmapped(situation.model.proto).SerializeToString(deterministic=True)
        return (BytesFile(path, bytes(model)), *copies, *tail)
    return (CopiedFile(path, situation.request.model), *copies, *tail)
