"""The contract between the core and a backend: one base class, and the values that pass from stage to stage.

Each stage gives a value to the next: ``prepare`` may load weights, rewrite and look at calibration data; ``plan``
decides from that value only; ``render`` makes the files; ``execute`` runs what can run here; ``verify`` judges a
package on disk. An adapter package must be cheap to import: no onnx, no numpy at the top.
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
    """True if ``model`` is a rewritten form of the requested file."""
    sizes: tuple[PinnedInput, ...] = ()
    """The inputs whose open dimensions were fixed here, each with the reason."""
    choices: Mapping[str, int] = {}
    """Inputs that only chose a branch, with their fixed values; the packaged model does not have these inputs."""
    tail: bytes | None = None
    """The serialized model that the host runs after the device, if the end was cut off."""
    segments: tuple[Segment, ...] = ()
    """The parts in the order in which they run, if ``model`` is to be cut."""
    quantized: QuantizedModel | None = None
    """The origin of encodings that were made here; None if they were given."""
    ladder: Json | None = None
    """The candidates for the precision, as published; None if the precision was not chosen here."""
    unturned: Situation | None = None
    """The situation before its inputs and outputs were turned to channels last; None if they were not."""
    opinions: Opinions | None = None
    """A compiler's opinions on findings about this situation, None if there was nothing to ask."""


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
    """A binary file of the package, made in memory."""

    path: str
    data: bytes


class CopiedFile(Record, kw_only=False):
    """A file that is copied into the package from the user's place, and hashed while copied."""

    path: str
    source: Path


PackageFile: TypeAlias = TextFile | JsonFile | BytesFile | CopiedFile


class Check(Published, kw_only=False):
    """One verified property of a package."""

    id: str
    ok: bool
    detail: str


class Instead(Record, kw_only=False):
    """Another request for the same model, which avoids what an execution failed at, with the reason in words.

    ``findings`` are added to the package that it leads to. ``right`` is a trial's verdict, for a
    package whose own execution judges none. ``handles`` gives the way out of single findings, by
    code and subject name, whether they block or not.
    """

    request: Request
    how: str
    handles: Mapping[tuple[str, str], str] = {}
    findings: Findings = ()
    right: Correctness | None = None

    def over(self, findings: Iterable[Finding]) -> Findings:
        """Those of an execution's findings that the request avoids, as handled."""
        told = ((finding, self.handles.get(finding.about)) for finding in findings)
        return tuple(finding.with_handled(how or self.how) for finding, how in told if how or finding.blocks)


class Seen(Record, eq=False, kw_only=False):
    """A few samples with the outputs of ``by`` for each; names and shapes are the graph's own."""

    by: str
    feeds: tuple[Arrays, ...]
    outputs: tuple[Arrays, ...]


class Execution(Record):
    """The result of a run: its steps, the files it left (package-relative), the facts to record, and its findings.

    ``right`` is None if nothing with judgeable numbers ran. ``instead`` is the request to start again with.
    ``audit`` covers the package's kernels, if requested. ``seen`` are a few outputs, for the page to show.
    ``settled`` holds, by code and subject name, what was seen instead of a plan's finding. ``estimate`` is the
    compiler's own estimate of the time, None if it gives none.
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


class Verification(Record, kw_only=False):
    """The adapter's verdict on a package: checks, intended and actual types, findings."""

    checks: tuple[Check, ...] = ()
    intended: Mapping[str, str] = {}
    actual: Mapping[str, str] = {}
    findings: Findings = ()


class Same:
    """A key that equals only the same object, and keeps it alive: models are not compared by their bytes."""

    __slots__ = ("_of",)

    def __init__(self, of: object) -> None:
        self._of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._of is other._of

    def __hash__(self) -> int:
        return id(self._of)


SharedWork: TypeAlias = Kept
"""Work shared by several targets of one run: each value is made once, under its key, and dropped after the run."""


class Aids(Record):
    """The core's help for ``execute``: where to tell news, and the inputs to judge on.

    ``samples`` gathers samples when called; it raises InputError for calibration data that does not fit the inputs.
    ``shared`` is the work shared by the targets of one run.
    """

    progress: Tell
    samples: Callable[[], Samples]
    original: Callable[[], Original | None] = lambda: None
    """Gives the judge of the model as given, with the loss of its encodings; None if the model does not run here."""
    shared: SharedWork = field(default_factory=SharedWork)


P = TypeVar("P")
D = TypeVar("D")


class Backend(ABC, Generic[P, D]):
    """One backend; subclass it and register an object under the entry point group ``deploykit.backends``.

    ``P`` is the adapter's own prepared value, ``D`` the decision data in its plans. A backend must have the abstract
    methods; all others have a default that offers nothing. The module of a subclass must be cheap to import: import
    modules that need onnx or numpy inside the methods.
    """

    id: str
    """The entry point's name."""
    summary: str
    quantizer: str = ""
    """The quantizer's id, if the backend's own recipe quantizes while packaging; see ``quantized``."""

    # Required: the devices, the tables, and the stages in the order in which they are called.

    @abstractmethod
    def devices(self) -> tuple[Device, ...]:
        """The devices this backend can package for."""

    @abstractmethod
    def resolve(self, device: Device, sdk: str | None) -> Target:
        """The target for a device and a version as typed. Raises UnknownTargetError."""

    @abstractmethod
    def prepare(self, situation: Situation, shared: SharedWork) -> P:
        """Works out all that the plan needs. It may load weights, rewrite,
        and look at calibration data. It writes nothing.

        ``shared`` holds the work shared by requests of the same run.
        """

    @abstractmethod
    def plan(self, prepared: P) -> Plan[D]:
        """Decides, from the prepared value and the tables only. It opens nothing and runs nothing."""

    @abstractmethod
    def render(self, prepared: P, plan: Plan[D], templates: Path | None) -> Iterable[PackageFile]:
        """Gives every file of the package that the core does not write;
        ``templates`` is a folder of the user's templates.
        """

    def execute(self, package: Path, prepared: P, plan: Plan[D], aids: Aids) -> Execution:
        """Runs what can run here, inside the unpublished package folder."""
        del package, prepared, plan, aids
        return Execution()

    def verify(self, package: Path, manifest: Json) -> Verification:
        """Judges a package on disk."""
        del package, manifest
        return Verification()

    def device_job(self, package: Path, manifest: Json, request: DeviceRequest) -> DeviceJob | None:
        """The files and the command for a device; None if nothing of this backend can run at such a place.

        Raises ToolError if something is missing there or here, or is of another release.
        """
        del package, manifest, request
        return None

    def device_results(self, package: Path, request: DeviceRequest, folder: Path) -> DeviceResults:
        """The results of such a job, read from ``folder``. Raises ToolError for files that cannot be read."""
        raise NotImplementedError

    # Questions without a model.

    def options(self) -> tuple[OptionSpec, ...]:
        """The backend's own options, for command line, API and docs; this must be cheap, as help asks all backends."""
        return ()

    def registries(self) -> tuple[Registry[Any], ...]:
        """The rules of this backend."""
        return ()

    def reserved_codes(self) -> Mapping[str, str]:
        """Codes of rules that are no longer used, each with the code of the rule to read instead."""
        return {}

    def compat(self) -> Iterable[CompatRow]:
        """Every row of the capability tables, for ``deploykit compat``."""
        return ()

    def source_dates(self) -> Mapping[str, str]:
        """The day on which a source was compared ("2026-09-30"), by the
        beginning of its name; under "" that of all others.
        """
        return {}

    def binary_rows(self, built_with: str, built_for: str, runtime: str, arch: str) -> Iterable[CompatRow]:
        """Rows on whether a binary for one release and architecture loads on another release and architecture."""
        del built_with, built_for, runtime, arch
        return ()

    def inspect(self, path: Path) -> Json:
        """The metadata of a compiled file. Raises InputError for any other file."""
        raise InputError(f"{path}: {self.id} reads no compiled files")

    def block_weight_path(self, *, op_type: str, lpbq: bool, has_bias: bool, sdk: str) -> str:
        """Describes what a layer with block-quantized weights becomes under an SDK version, with or without LPBQ."""
        del op_type, lpbq, has_bias, sdk
        return "unknown"

    def device_of_id(self, name: str) -> Device | None:
        """The device with this id, in upper or lower case; None if there is none.

        A backend with many devices overrides it to read one file instead of all.
        """
        return next((device for device in self.devices() if device.id == name.lower()), None)

    def known_errors(self) -> Catalog:
        """The known errors of this backend's tools."""
        from deploykit.tables.known_errors import Catalog

        return Catalog()

    def probes(self) -> Iterable[Probe]:
        """The probes for ``deploykit doctor``, each for one area."""
        return ()

    def toolchains(self) -> tuple[ToolchainSpec, ...]:
        """The environments this backend's tools need."""
        return ()

    def wanted_toolchains(self, target: Target) -> Names:
        """The toolchains that a target needs, each as ``deploykit toolchain
        install`` takes it, with a version if it matters.
        """
        del target
        return ()

    # Questions while a model is decided on.

    def rated(self, finding: Finding) -> Finding:
        """The core's finding with its severity on these devices, and with the source for it."""
        return finding

    def mixed_support(self, target: Target, options: Json) -> MixedSupport | None:
        """The kinds of ways to mix precisions for this target, given the backend's checked options.

        A backend without this method gets no rewrites for precision, and no choice of a way.
        """
        del target, options
        return None

    def quantizers(self, target: Target) -> tuple[Quantizer, ...]:
        """The quantizers that make encodings for a target, the best first; the core's own is not among them.

        A backend without this method takes no encodings.
        """
        del target
        return ()

    def calibrates_itself(self, situation: Situation) -> bool:
        """True if the request leaves calibration to the backend's own tools."""
        del situation
        return False

    def quantized(self, package: Path, manifest: Json) -> Path | None:
        """The quantized model in a package, if the backend's own recipe quantizes; None if it did not run."""
        del package, manifest
        return None

    # Questions to a compiler that runs on this machine.

    def audit(self, prepared: P, *, level: str, progress: Tell, given: Situation | None = None) -> Audit:
        """Runs kernels of a prepared model one by one: suspects
        (``quick``), as many as are soon done (``auto``), or all.

        With ``given`` it also tells of kernels of the given model that were wrong and were mended.
        """
        raise NotImplementedError

    def compilers(self, device: Device, sdk: str) -> Sequence[Compiler]:
        """The compilers that can be asked here about findings, that of the
        release nearest to ``sdk`` ("": the newest) first.

        If none can be asked, one entry says what is missing; empty means that the backend has no compiler.
        """
        del device, sdk
        return ()

    def releases_here(self) -> Sequence[str]:
        """The releases whose compiler runs on this machine, by their names for ``--sdk``, oldest first."""
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
        """The opinions of one of ``compilers`` on each finding, in order, within about ``seconds``.

        Findings that are not reached stay open.
        """
        raise NotImplementedError

    def time_us(self, model: bytes, device: Device, progress: Tell) -> float | None:
        """The microseconds of one run of a serialized model by the compiler's cost model; None without one for this
        chip. Raises ToolError if no compiler runs here.
        """
        raise NotImplementedError

    def offers(self, method: str) -> bool:
        """True if this backend overrides a method that has a default here."""
        return getattr(type(self), method) is not getattr(Backend, method)


AnyBackend: TypeAlias = Backend[Any, Any]
"""A backend as the entry points give it, with any type of prepared value."""


class MixedSupport(Record):
    """The kinds of ways that a backend has for a target: ``integer``, ``fallback``, ``segments``, ``direct``.

    ``safe`` is True if its tools are known to mix float16 and integers well. ``without`` says why a kind is missing.
    ``confidence`` tells how surely a kind works here, if that differs from the way's own. ``needs`` are the backend's
    options that a kind requires: they are set in the request if a way of that kind wins.
    """

    kinds: frozenset[str]
    safe: bool = False
    without: Mapping[str, str] = {}
    confidence: Mapping[str, Confidence] = {}
    needs: Mapping[str, Json] = {}

    @property
    def has_float16(self) -> bool:
        """True if the backend mixes float16 with integers."""
        return self.kinds > {"integer"}


def copied_model(situation: Situation, path: str) -> tuple[PackageFile, ...]:
    """The model as files of the package: the user's file with its external data, or the rewritten model; and a tail.

    The tail is ``tail.onnx`` beside the model. Raises InputError for external data with the name of either.
    """
    folder = path.rpartition("/")[0]
    tail = () if situation.tail is None else (BytesFile(f"{folder}/tail.onnx", situation.tail),)
    # Two spellings of one place (``w.bin``, ``./w.bin``) mean one file.
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

        # One message; weights left in their files are beside it.
        model = unmapped(situation.model.proto).SerializeToString(deterministic=True)
        return (BytesFile(path, bytes(model)), *copies, *tail)
    return (CopiedFile(path, situation.request.model), *copies, *tail)
