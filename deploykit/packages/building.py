"""Runs a package's own build script, keeps the log, diagnoses a failure, records the artifacts in the manifest.

The script is the package's; this module adds nothing to what it does.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from deploykit.answers.diagnosis import Diagnosis, Names, diagnose
from deploykit.backend.plugins import catalog_of, load_backends
from deploykit.errors import PackageError
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from deploykit.packages.manifests import BUILD_FOLDERS, MANIFEST, hash_file, read_manifest
from deploykit.packages.verifying import verify_integrity
from deploykit.packages.writing import clear_runs, record_build
from deploykit.system.aliases import Json, Tell
from deploykit.system.files import open_regular
from deploykit.system.folders import abandoned, holding, workspace
from deploykit.system.processes import run
from deploykit.system.published import Published, published

__all__ = ["SCRIPT", "BuildReport", "build_package", "names_of_models"]

SCRIPT = "scripts/build.sh"
_ARTIFACTS, _LOGS = (folder.strip("/") for folder in BUILD_FOLDERS)
_LOG = f"{_LOGS}/build.log"
_STAMPS = f"{_ARTIFACTS}/.stamps"
_PLACE = "build"
_PRECISION_LOST = 1
_LAST_WORDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport(Published):
    """How a build ended: the script's exit status, the steps that are done, and what its logs say on failure.

    ``said`` are the script's own last words where it ended before any tool wrote a log; there is no diagnosis then.
    ``digest`` is that of the manifest with what the build made, for ``deploykit verify --expect-digest``.
    """

    package: Path
    status: int
    done: tuple[str, ...]
    log: Path
    diagnosis: Diagnosis | None
    said: tuple[str, ...] = ()
    digest: str = ""

    @property
    def exit_status(self) -> int:
        """0 built; 1 the converter changed the precision; 5 a tool or its environment failed."""
        if self.status == 0:
            return 0
        return 1 if self.status == _PRECISION_LOST else 5

    def as_published(self) -> Json:
        """What ``deploykit build --json`` prints."""
        return {"ok": self.status == 0, **published(self)}


def build_package(package: Path, *, on_line: Tell | None = None) -> BuildReport:
    """Run ``scripts/build.sh`` of a package; raises PackageError when the package has none or is not as recorded.

    What the script skips as done before is what an earlier build left and the manifest vouches for, stamps included:
    a file under artifacts/ or logs/ that the manifest does not know is named, and nothing is run.
    """
    if not package.is_dir():
        raise PackageError(f"{package}: no such package folder", next="name the folder that 'deploykit package' wrote")
    with holding(package) as alone:
        if not alone:
            raise PackageError(f"{package}: is being built by another process", next="wait for it")
        for stem in (MANIFEST, _PLACE):
            for left in abandoned(package / _LOGS, stem):
                _take_over(left, package, died=True)
                shutil.rmtree(left, ignore_errors=True)
        clear_runs(package, read_manifest(package))
        bad = [check for check in verify_integrity(package) if not check.ok]
        if bad:
            raise PackageError(
                f"{package}: is not as it was made",
                why="; ".join(f"{check.id}: {check.detail}" for check in bad),
                next="make the package again, or remove what was added; a script you edited can be run by hand",
            )
        if not (package / SCRIPT).is_file():
            raise PackageError(
                f"{package}: has no {SCRIPT}", why="nothing of this package is built by a vendor's tool here"
            )
        return _build(package, on_line)


def _build(package: Path, on_line: Tell | None) -> BuildReport:
    """Run the script in a folder of its own and take over what it made: a killed one leaves the package as it was."""
    log = package / _LOG
    log.parent.mkdir(exist_ok=True)
    with workspace(package / _LOGS, _PLACE) as place:
        (place / _LOGS).mkdir()
        before = read_manifest(package)["files"].keys()
        for path in before - {_LOG}:
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            # What the script may write to is copied, anything else is the same file.
            if path.startswith(BUILD_FOLDERS):
                shutil.copy2(package / path, place / path)
            else:
                _same_file(package / path, place / path)
        older = {path.stat().st_mtime_ns for path in (place / _LOGS).glob("*.log")}
        try:
            whole = {"DEPLOYKIT_PACKAGE": str(package)}  # what advice names: the script runs in a folder beside it
            completed = run(("bash", SCRIPT), cwd=place, env=whole, log=place / _LOG, on_line=on_line)
        finally:
            # However it ends: what is not recorded is not gone on from. A process that is killed while files are moved
            # leaves the others here, and the manifest tells the next build that they are the package's.
            stamps = (place / _STAMPS).glob("*")
            done = tuple(path.name for path in sorted(stamps, key=lambda path: path.stat().st_mtime_ns))
            manifest = record_build(package, done, place)
            _take_over(place, package)
            for path in before - manifest["files"].keys():
                (package / path).unlink(missing_ok=True)
    diagnosis = None if completed.ok else _diagnosis(package, log, older)
    said: list[str] = []
    if not completed.ok and diagnosis is None and log.is_file():
        said = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()[-_LAST_WORDS:]]
    return BuildReport(
        package=package,
        status=completed.returncode,
        done=done,
        log=log,
        diagnosis=diagnosis,
        said=tuple(filter(None, said)),
        digest=manifest["digest"],
    )


def _same_file(source: Path, place: Path) -> None:
    """A second name, or a copy where the disk has none."""
    try:
        place.hardlink_to(source)
    except OSError:
        shutil.copy2(source, place)


def _take_over(place: Path, package: Path, *, died: bool = False) -> None:
    """Move the artifacts and logs of a build that the manifest knows; nothing through links, or out of a folder.

    A build that ``died`` may have done so before the manifest knew of them: then their contents tell.
    """
    for path, row in read_manifest(package)["files"].items():
        here = [base / path for base in (place, package) if (base / path).resolve() == base.resolve() / path]
        ours = path.startswith(BUILD_FOLDERS) and len(here) > 1 and here[0].is_file()
        if ours and not (died and hash_file(here[0])[1] != row["sha256"]):
            here[1].parent.mkdir(parents=True, exist_ok=True)
            here[0].replace(here[1])


def _diagnosis(package: Path, whole: Path, older: set[int]) -> Diagnosis | None:
    """What the failed tool's log says; the whole build's only where it shows a cause, since the script speaks there."""
    # The log that a tool wrote last during this build; the script may have ended before it started any.
    times = {path.stat().st_mtime_ns: path for path in whole.parent.glob("*.log") if path != whole}
    failed = times.get(max(times.keys() - older, default=0))
    if failed is not None:
        return _diagnose(failed, package)
    found = _diagnose(whole, package)
    return found if found.errors else None


def _diagnose(log: Path, package: Path) -> Diagnosis:
    models = sorted((package / "model").glob("*.onnx"))
    with open_regular(log) as stream:
        return diagnose(stream, catalog_of(load_backends()), names_of_models(models))


def names_of_models(models: Iterable[Path]) -> Names:
    """The node and tensor names of model files, to map a log's mangled names back."""
    facts = [collect_facts(load_model(model)) for model in models]
    return Names(
        nodes=(node.name for known in facts for node in known.nodes),
        tensors=(name for known in facts for name in known.tensors),
    )
