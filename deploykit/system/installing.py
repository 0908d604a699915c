"""Installs an environment in resumable stages, or removes it; the spec defines its content."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from packaging.specifiers import SpecifierSet

from deploykit.errors import ToolError
from deploykit.findings.records import Tell
from deploykit.system.environments import Environment, ToolchainState, environment_of, locked
from deploykit.system.jobs import Begun
from deploykit.system.processes import ONLY_INSTALLED, ProgramEnd, run
from deploykit.system.specs import Stage, ToolchainSpec

__all__ = ["install", "remove"]

_STAGE_TIMEOUT = 3600.0
# The platform that the locks are for, in the notation of ``sysconfig``.
_LOCKED_ON = "linux-x86_64"


def install(
    spec: ToolchainSpec,
    progress: Tell,
    *,
    anew: bool = False,
    waiting: Tell | None = None,
) -> ToolchainState:
    """Bring one environment to the state ready, continuing an earlier attempt; ``anew`` deletes that first.

    If another process is installing the same environment, ``waiting`` (default: ``progress``) is told and this one
    waits. Raises ToolError if a suitable Python, a C++ compiler or another required program is missing, the disk is too
    full, or a stage fails; the log is ``install.log`` in the environment's folder.
    """
    environment = environment_of(spec)
    _check_machine(spec, environment.path)
    if spec.licence:
        progress(f"{spec.id}: under {spec.licence}")
    with locked(environment.path, spec, waiting=waiting or progress):
        if anew or (environment.path.exists() and not environment.python.exists()):
            _delete(environment.path)
        _make_venv(environment, progress)
        for number, stage in enumerate(spec.stages, 1):
            if not environment.finished(stage):
                _run_stage(environment, stage, f"{spec.id} [{number}/{len(spec.stages)}] {stage.id}", progress)
        lost = environment.trouble()
        if lost.startswith("packages"):
            raise ToolError(f"{spec.id}: {lost}", next=f"deploykit toolchain install --anew {spec.id}")
    return environment.state()


def remove(spec: ToolchainSpec) -> bool:
    """Delete one environment; False if there was none. Raises ToolError while it is being installed."""
    environment = environment_of(spec)
    if not environment.path.exists():
        return False
    with locked(environment.path, spec):
        _delete(environment.path)
    return True


def _check_machine(spec: ToolchainSpec, path: Path) -> None:
    if spec.needs_cxx and not has_cxx():
        raise ToolError(
            f"{spec.id} needs a C++ compiler and none is on the PATH",
            why="it compiles an extension the first time it is imported",
            next="install g++ (Debian, Ubuntu: apt install g++), or set CXX",
        )
    for need in spec.needs:
        environment_of(spec).program(need.name)
    find_python(spec)
    # A folder that cannot be opened counts as absent, and its parent as the one to write to.
    existing = next(folder for folder in (path, *path.parents) if os.path.exists(folder))  # noqa: PTH110
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ToolError(
            f"{spec.id}: {existing} may not be written to", next="set DEPLOYKIT_TOOLCHAINS to a folder of your own"
        )
    free = shutil.disk_usage(existing).free // 2**20
    if free < spec.disk_mb and existing != path:
        raise ToolError(
            f"{spec.id} needs {spec.disk_mb} MiB and {existing} has {free}",
            next="free some space, or set DEPLOYKIT_TOOLCHAINS to a folder on another disk",
        )


def has_cxx() -> bool:
    """Whether torch would find a C++ compiler: ``CXX``, c++, g++ or clang++ on the PATH."""
    return any(map(shutil.which, filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++"))))


def find_python(spec: ToolchainSpec) -> str:
    """Return a Python that the toolchain supports: this one if suitable, else one on the PATH. Raises ToolError."""
    wanted = SpecifierSet(spec.python)
    here = ".".join(map(str, sys.version_info[:2]))
    if wanted.contains(f"{here}.{sys.version_info[2]}"):
        return sys.executable
    for minor in range(20, 8, -1):
        found = shutil.which(f"python3.{minor}") if wanted.contains(f"3.{minor}.0") else None
        if found:
            return found
    raise ToolError(
        f"{spec.id} needs Python {spec.python}",
        why=f"this is Python {here}, and no other on the PATH fits",
        next="install a fitting Python and put it on the PATH",
    )


def _make_venv(environment: Environment, progress: Tell) -> None:
    """Make the virtual environment unless it is complete: an interrupted one has an interpreter but no pip."""
    made = environment.path / "stages" / "venv.done"
    if environment.python.exists() and (made.exists() or any(map(environment.finished, environment.spec.stages))):
        return
    progress(f"{environment.spec.id}: making the environment")
    environment.path.mkdir(parents=True, exist_ok=True)
    argv = [find_python(environment.spec), "-m", "venv", "--clear", str(environment.path / "venv")]
    done = run(argv, cwd=environment.path, env=ONLY_INSTALLED, log=environment.path / "install.log")
    _expect_success(done, environment, "making the environment")
    made.parent.mkdir(exist_ok=True)
    made.touch()


def _run_stage(environment: Environment, stage: Stage, title: str, progress: Tell) -> None:
    def started(arguments: Sequence[str]) -> ProgramEnd:
        return environment.run(
            arguments,
            timeout=_STAGE_TIMEOUT,
            log=environment.path / "install.log",
            cwd=environment.path,
            on_line=lambda line: progress(line.strip()) if line.strip() else None,
        )

    progress(Begun(title))
    if stage.packages:
        _expect_success(_pip_install(environment, stage, started, progress), environment, title)
    if stage.run:
        _expect_success(started(environment.arguments(stage)), environment, title)
    environment.mark(stage)


def _pip_install(
    environment: Environment,
    stage: Stage,
    started: Callable[[Sequence[str]], ProgramEnd],
    progress: Tell,
) -> ProgramEnd:
    """Install the packages of a stage: only those in its lock, with hashes; without a usable lock, by the pins."""
    pip = ["-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
    other_index = not os.environ.get("DEPLOYKIT_NO_EXTRA_INDEX")
    if stage.lock:
        # The folder of the installed packages has the interpreter's version in its name.
        found = {path.name.removeprefix("python") for path in (environment.path / "venv" / "lib").glob("python3*")}
        if found & set(stage.lock_python) and sysconfig.get_platform() == _LOCKED_ON:
            lock = str(Path(environment.spec.files, stage.lock))
            wanted = ["--no-compile", "--require-hashes", "--no-deps", "--requirement", lock]
            done = started([*pip, *wanted])
            if not done.ok and stage.else_index and other_index:
                progress(f"the usual index has not all of it; {stage.else_index} is asked as well")
                done = started([*pip, *wanted, "--extra-index-url", stage.else_index])
            return done
        known = f"Python {', '.join(stage.lock_python)} on {_LOCKED_ON}"
        progress(f"hashes are known for {known} only; here the pins decide, without hashes")
    constraints = environment.path / "constraints.txt"
    constraints.write_text("\n".join(environment.spec.constraints) + "\n", "utf-8")
    if stage.prefer_index and other_index:
        first = ["--no-deps", "--retries", "0", "--timeout", "15", "--index-url", stage.prefer_index]
        if not started([*pip, *first, *stage.packages]).ok:
            progress(f"{stage.prefer_index} did not deliver; the usual index follows and may bring a larger build")
    if not stage.hashes:
        return started([*pip, "--constraint", str(constraints), *stage.packages])
    exact = environment.path / "exact.txt"
    exact.write_text(" ".join([*stage.packages, *(f"--hash=sha256:{value}" for value in stage.hashes)]), "utf-8")
    # pip requires hashes for everything or nothing; dependencies are another stage.
    return started([*pip, "--no-deps", "--require-hashes", "--only-binary=:all:", "--requirement", str(exact)])


def _expect_success(done: ProgramEnd, environment: Environment, title: str) -> None:
    if done.ok:
        return
    how = "took too long" if done.timed_out else f"ended with status {done.returncode}"
    errors = [line.strip() for line in done.tail if "error" in line.lower()] or [line.strip() for line in done.tail]
    raise ToolError(
        f"{title}: {how}",
        why=" | ".join(errors[-3:]) or "it printed nothing",
        next=f"read {environment.path / 'install.log'}; the same command goes on where this one stopped",
    )


def _delete(path: Path) -> None:
    """Delete a folder, moving it away first so that a half-deleted environment never looks usable."""
    if not path.exists():
        return
    doomed = path.with_name(f".{path.name}.removing.{os.getpid()}")
    path.rename(doomed)
    shutil.rmtree(doomed)
