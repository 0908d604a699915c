"""One toolchain's environment on disk: its state, size and lock, and running programs in it. It installs nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import asdict
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploykit.errors import ToolError
from deploykit.findings.records import Json, Published, Record, Tell, published
from deploykit.system.files import with_folder
from deploykit.system.folders import is_locked, waiting_for
from deploykit.system.processes import ONLY_INSTALLED, ProgramEnd, run
from deploykit.system.specs import Stage, ToolchainSpec
from deploykit.system.store import user_cache

__all__ = ["Environment", "ToolchainState", "environment_of", "locked", "toolchains_root"]

# Fields that stages did not have at first: if they are not set, markers of earlier installations stay valid.
_LATER = frozenset({"inputs", "lock", "lock_python", "else_index", "hashes"})


class ToolchainState(Published):
    """What is on disk for one toolchain. ``state``: absent, installing, incomplete, broken or ready."""

    spec: ToolchainSpec
    path: Path
    state: str
    detail: str
    size_mb: int

    def as_published(self) -> Json:
        """The published JSON, with facts about the toolchain itself."""
        about = ("name", "version", "summary", "disk_mb", "minutes", "verified", "licence", "source", "confidence")
        return {**{name: getattr(self.spec, name) for name in about}, **published(self, without=("spec",))}


def toolchains_root() -> Path:
    """The folder of all environments: ``DEPLOYKIT_TOOLCHAINS``, else deploykit's part of the user's cache folder."""
    chosen = os.environ.get("DEPLOYKIT_TOOLCHAINS")
    return Path(chosen) if chosen else user_cache() / "deploykit" / "toolchains"


class Environment(Record):
    """One environment, whether or not it is installed."""

    spec: ToolchainSpec
    path: Path

    @property
    def python(self) -> Path:
        """The path of its Python interpreter."""
        return self.path / "venv" / "bin" / "python"

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables for every program in it; they hide the caller's own Python packages."""
        own = {name: value.replace("{root}", str(self.path)) for name, value in self.spec.environment.items()}
        return {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1", "PYTHONUTF8": "1", "VIRTUAL_ENV": "", **own}

    def program(self, name: str) -> str:
        """Return the path of a required system program. Raises ToolError, with advice, if it is missing."""
        need = next(need for need in self.spec.needs if need.name == name)
        found = need.find()
        if found is None:
            raise ToolError(f"{self.spec.id} needs {need.name}, which is not installed", next=need.install)
        return found

    def arguments(self, stage: Stage) -> tuple[str, ...]:
        """Return the arguments of a stage with the paths on this machine filled in."""
        places = {"root": str(self.path), "files": self.spec.files}
        places |= {need.name: self.program(need.name) for need in self.spec.needs}
        filled = list(stage.run)
        for name, value in places.items():
            filled = [argument.replace(f"{{{name}}}", value) for argument in filled]
        return tuple(filled)

    def finished(self, stage: Stage) -> bool:
        """Whether exactly this stage, including its pins, has finished."""
        marker = self._marker(stage)
        return marker.is_file() and marker.read_text("utf-8").strip() == self._digest(stage)

    def mark(self, stage: Stage) -> None:
        """Record that a stage has finished."""
        with_folder(self._marker(stage)).write_text(self._digest(stage) + "\n", "utf-8")

    def trouble(self) -> str:
        """Explain why the environment cannot be used, "" if it can; checks only files."""
        if not self.python.exists():
            return "its interpreter is gone"
        unfinished = [stage.id for stage in self.spec.stages if not self.finished(stage)]
        if unfinished:
            return f"unfinished: {', '.join(unfinished)}"
        named = (Requirement(name).name for stage in self.spec.stages for name in stage.packages)
        from importlib.metadata import distributions

        sites = [str(path) for path in (self.path / "venv" / "lib").glob("python3*/site-packages")]
        here = {canonicalize_name(found.name) for found in distributions(path=sites)}
        lost = sorted(set(map(canonicalize_name, named)) - here)
        return f"packages are gone: {', '.join(lost)}" if lost else ""

    def state(self, *, with_size: bool = True) -> ToolchainState:
        """Return the state on disk, with the size in MiB, or 0 without ``with_size``."""
        word, detail = self._judge()
        size = _size_mb(self.path) if with_size else 0
        return ToolchainState(spec=self.spec, path=self.path, state=word, detail=detail, size_mb=size)

    def require(self) -> None:
        """Raise ToolError unless the environment is ready."""
        word, detail = self._judge()
        if word != "ready":
            raise ToolError(
                f"the toolchain {self.spec.id} is {word}",
                why=detail or str(self.path),
                next=f"run 'deploykit toolchain install {self.spec.id}'",
            )

    def run(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path | None = None,
        timeout: float | None = None,
        log: Path | None = None,
        on_line: Tell | None = None,
    ) -> ProgramEnd:
        """Run the environment's Python with these arguments; see ``deploykit.system.processes.run``.

        Without ``cwd`` it runs in the environment's own folder, because older
        Pythons import modules from the current folder.
        """
        argv = [str(self.python), *arguments]
        own = self.path if self.path.is_dir() else None
        variables = {**self.variables, **ONLY_INSTALLED}
        return run(argv, cwd=cwd or own, env=variables, timeout=timeout, log=log, on_line=on_line)

    def _judge(self) -> tuple[str, str]:
        if is_locked(self.path):
            return "installing", "another process is at work on it"
        try:
            if not self.path.exists():
                return "absent", ""
        except PermissionError:  # another user's home
            return "absent", "the folder that it would lie in may not be looked into"
        trouble = self.trouble()
        if not trouble:
            return "ready", ""
        return ("incomplete" if trouble.startswith("unfinished") else "broken"), trouble

    def _marker(self, stage: Stage) -> Path:
        return self.path / "stages" / f"{stage.id}.done"

    def _digest(self, stage: Stage) -> str:
        stated = {name: value for name, value in asdict(stage).items() if value or name not in _LATER}
        content = json.dumps([stated, self.spec.constraints, self.spec.python], sort_keys=True)
        files = [Path(self.spec.files, name) for name in (*stage.inputs, *filter(None, (stage.lock,)))]
        return hashlib.sha256(b"\0".join((content.encode(), *(path.read_bytes() for path in files)))).hexdigest()


def environment_of(spec: ToolchainSpec) -> Environment:
    """Return the environment of a toolchain on this machine; it need not exist."""
    return Environment(spec=spec, path=toolchains_root() / f"{spec.name}-{spec.version}")


@contextlib.contextmanager
def locked(path: Path, spec: ToolchainSpec, *, waiting: Tell | None = None) -> Iterator[None]:
    """Hold the lock of one environment.

    If another process holds it, ``waiting`` is told and this one waits; without ``waiting`` raises ToolError.
    """

    def busy() -> None:
        if waiting is None:
            raise ToolError(f"{spec.id} is being installed or removed by another process", next="wait for it")
        waiting(f"{spec.id}: another process is installing or removing it; waiting for it to end")

    with waiting_for(path, waiting=busy):
        yield


def _size_mb(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512  # noqa: PTH118 (tens of thousands of files)
    return total // 2**20
