"""Runs a package's own build script, keeps its log, diagnoses failures and records artifacts in the manifest.

The script belongs to the package; this module adds nothing to what it does.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from deploykit.answers.diagnosis import Diagnosis, Names, diagnose
from deploykit.backend.plugins import catalog_of, load_backends
from deploykit.errors import PackageError
from deploykit.findings.records import Json, Published, Tell, published
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from deploykit.packages.manifests import BUILD_FOLDERS, read_manifest
from deploykit.packages.verifying import require_integrity
from deploykit.packages.writing import BUILD, clear_left, record_build, same_file
from deploykit.system.files import open_regular, with_folder
from deploykit.system.folders import holding, workspace
from deploykit.system.processes import run

__all__ = ["BuildReport", "build_package", "diagnosis_of", "names_of_models"]

SCRIPT = "scripts/build.sh"
_ARTIFACTS, _LOGS = (folder.strip("/") for folder in BUILD_FOLDERS)
_LOG = f"{_LOGS}/build.log"
_PRECISION_LOST = 1
_LAST_WORDS = 4


class BuildReport(Published):
    """How a build ended: the script's exit status, the finished steps, and the diagnosis of a failure.

    ``said`` holds the last lines of the script if it ended before any tool wrote a log; ``diagnosis`` is then None.
    ``digest`` is that of the manifest including the build's files, for ``deploykit verify --expect-digest``.
    """

    package: Path
    status: int
    done: tuple[str, ...]
    log: Path
    diagnosis: Diagnosis | None
    said: tuple[str, ...]
    digest: str

    @property
    def exit_status(self) -> int:
        """0 if built, 1 if the converter changed the precision, 5 if a tool or its environment failed."""
        if self.status == 0:
            return 0
        return 1 if self.status == _PRECISION_LOST else 5

    def as_published(self) -> Json:
        """The JSON that ``deploykit build --json`` prints."""
        return {"ok": self.status == 0, **published(self)}


def build_package(package: Path, *, on_line: Tell | None = None) -> BuildReport:
    """Run ``scripts/build.sh`` of a package.

    The script skips steps whose files and stamps an earlier build left and the manifest records. If artifacts/ or logs/
    hold a file that the manifest does not record, nothing is run. Raises PackageError for that, for a package without a
    script or with changed files, and while another process builds it.
    """
    if not package.is_dir():
        raise PackageError(f"{package}: no such package folder", next="name the folder that 'deploykit package' wrote")
    with holding(package) as alone:
        if not alone:
            raise PackageError(f"{package}: is being built by another process", next="wait for it")
        clear_left(package)
        advice = "make the package again, or remove what was added; a script you edited can be run by hand"
        require_integrity(package, advice)
        if not (package / SCRIPT).is_file():
            raise PackageError(
                f"{package}: has no {SCRIPT}", why="nothing of this package is built by a vendor's tool here"
            )
        return _build(package, on_line)


def _build(package: Path, on_line: Tell | None) -> BuildReport:
    """Run the script in a separate folder, then copy its files in: a killed build leaves the package unchanged."""
    log = package / _LOG
    log.parent.mkdir(exist_ok=True)
    with workspace(package / _LOGS, BUILD) as place:
        (place / _LOGS).mkdir()
        for path in read_manifest(package)["files"].keys() - {_LOG}:
            # Files that the script may write to are copied; all others are linked.
            if path.startswith(BUILD_FOLDERS):
                shutil.copy2(package / path, with_folder(place / path))
            else:
                same_file(package / path, place / path, place)
        older = {path.stat().st_mtime_ns for path in (place / _LOGS).glob("*.log")}
        try:
            whole = {"DEPLOYKIT_PACKAGE": str(package)}  # for advice messages: the script runs in another folder
            completed = run(("bash", SCRIPT), cwd=place, env=whole, log=place / _LOG, on_line=on_line)
        finally:
            # Record in any case: files that are not recorded cannot be continued from.
            stamps = (place / _ARTIFACTS / ".stamps").glob("*")
            done = tuple(path.name for path in sorted(stamps, key=lambda path: path.stat().st_mtime_ns))
            manifest = record_build(package, done, place)
    diagnosis = None if completed.ok else _diagnosis(package, log, older)
    silent = completed.ok or diagnosis is not None or not log.is_file()
    said = [] if silent else log.read_text("utf-8", "replace").splitlines()[-_LAST_WORDS:]
    return BuildReport(
        package=package,
        status=completed.returncode,
        done=done,
        log=log,
        diagnosis=diagnosis,
        said=tuple(filter(None, map(str.strip, said))),
        digest=manifest["digest"],
    )


def _diagnosis(package: Path, whole: Path, older: set[int]) -> Diagnosis | None:
    """Diagnose the log of the failed tool, or the whole build's log if that shows a cause; None if neither does."""
    # The log that a tool wrote last in this build; the script may have ended before it started any tool.
    times = {path.stat().st_mtime_ns: path for path in whole.parent.glob("*.log") if path != whole}
    failed = times.get(max(times.keys() - older, default=0))
    if failed is not None:
        return diagnosis_of(failed, package)
    found = diagnosis_of(whole, package)
    return found if found.errors else None


def diagnosis_of(log: Path, package: Path) -> Diagnosis:
    """Diagnose the log of a tool that worked on a package, with the names in the package's models."""
    models = sorted((package / "model").glob("*.onnx"))
    with open_regular(log) as stream:
        return diagnose(stream, catalog_of(load_backends()), names_of_models(models))


def names_of_models(models: Iterable[Path]) -> Names:
    """Return the node and tensor names in model files, used to map mangled names in a log back."""
    facts = [collect_facts(load_model(model)) for model in models]
    return Names(
        nodes=(node.name for known in facts for node in known.nodes),
        tensors=(name for known in facts for name in known.tensors),
    )
