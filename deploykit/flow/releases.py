"""One model under every release: planned with the tables of each, or packaged by each compiler that runs here."""

from __future__ import annotations

from packaging.version import Version

from deploykit.accuracy.latency import Estimate
from deploykit.backend.backend import Request, SharedWork
from deploykit.backend.options import ESTIMATE, KERNELS
from deploykit.backend.plugins import load_backends
from deploykit.backend.status import Compiled, PackageStatus
from deploykit.errors import UnknownTargetError, UsageError
from deploykit.findings import Findings
from deploykit.findings.records import Names, Published, Tell, replace
from deploykit.flow.pipeline import make_package
from deploykit.flow.plan import plan_as_given
from deploykit.flow.read import read_situation
from deploykit.model.load import blaming
from deploykit.system.folders import scratch
from deploykit.tables.capabilities import Status

__all__ = ["lowest_sdk", "try_compilers"]

_YES = str(Status.SUPPORTED)


class SdkTrial(Published):
    """One SDK release, and the findings of a plan under it."""

    WITHOUT = ("findings",)
    ALSO = ("ok", "state", "blocking", "open")

    sdk: str
    findings: Findings

    @property
    def blocking(self) -> Names:
        """The codes of the findings that block."""
        return tuple(sorted({finding.code for finding in self.findings if finding.blocks}))

    @property
    def open(self) -> Names:
        """The codes of unhandled findings that do not block, but for which the release's table does not say yes.

        A rule that asked a table puts the answer into its evidence, as ``status``.
        """
        asked = (finding for finding in self.findings if not finding.blocks and finding.handled is None)
        return tuple(sorted({finding.code for finding in asked if finding.evidence.get("status", _YES) != _YES}))

    @property
    def ok(self) -> bool:
        """True if nothing blocks and nothing is open."""
        return self.state == "ok"

    @property
    def state(self) -> str:
        """``no``, ``unknown`` or ``ok``."""
        return "no" if self.blocking else "unknown" if self.open else "ok"


class SdkSearch(Published):
    """The trials of all releases, oldest first."""

    ALSO = ("lowest",)

    backend: str
    target: str
    trials: tuple[SdkTrial, ...]

    @property
    def lowest(self) -> str | None:
        """The lowest release under which nothing blocks and nothing is open, or None."""
        return next((trial.sdk for trial in self.trials if trial.ok), None)


class CompilerTrial(Published):
    """The result of one release's compiler for a model, with its estimate of the time."""

    sdk: str
    status: PackageStatus
    estimate: Estimate | None
    blocking: Names

    @property
    def is_compiled(self) -> bool:
        """True if the compiler takes the model."""
        return self.status.compiled.state is Compiled.YES


def try_compilers(request: Request, progress: Tell) -> tuple[CompilerTrial, ...]:
    """Packages a model with every compiler that runs here, oldest first, and collects the results.

    Raises UsageError for a backend without a compiler here.
    """
    known = [one for one in load_backends() if request.backend in (None, one.id)]
    backend = next((one for one in known if one.releases_here()), None)
    if backend is None:
        whose = f" of {request.backend}" if request.backend else ""
        raise UsageError(f"no compiler{whose} runs here", next="'deploykit toolchain list' names some")
    # One compilation each: kernels are not run one by one, and a time is requested if the backend can estimate it.
    has = {spec.name for spec in backend.options()}
    options = {name: value for name, value in ((KERNELS.name, "off"), (ESTIMATE.name, True)) if name in has}
    trials = []
    for sdk in backend.releases_here():
        asked = replace(
            request, backend=backend.id, sdk=sdk, compile=True, adapter_options={**request.adapter_options, **options}
        )
        progress(f"asking {backend.id} {sdk}")
        with scratch() as folder:
            made = make_package(asked, folder / "package", progress=progress)
        codes = sorted({finding.code for finding in made.findings if finding.blocks})
        trials.append(CompilerTrial(sdk=sdk, status=made.status, estimate=made.estimate, blocking=tuple(codes)))
    return tuple(trials)


def lowest_sdk(request: Request) -> SdkSearch:
    """Plans one request under every SDK release with tables, oldest first; the model is read once.

    Raises UsageError for a backend without tables per release.
    """
    with blaming(request.model):
        backend, situation = read_situation(replace(request, sdk=None))
        device = situation.target.device
        rows = backend.compat()
        releases = sorted({row.since for row in rows if row.feature == f"release {row.since}"}, key=Version)
        if not releases:
            raise UsageError(
                f"the tables of {backend.id} are not kept per SDK release", next="use deploykit check --plan"
            )
        trials, shared = [], SharedWork()
        for version in releases:
            try:
                target = backend.resolve(device, version)
            except UnknownTargetError:
                continue  # a release known by name only
            tried = replace(situation, request=replace(situation.request, sdk=version), target=target)
            trials.append(SdkTrial(sdk=version, findings=plan_as_given(backend, tried, shared).findings))
        return SdkSearch(backend=backend.id, target=device.id, trials=tuple(trials))
