"""Runs Quark as a child process in its own environment and judges it by its results, never by its exit status.

Quark takes over the root logger, shares presets between calls, and may report a failure only in its log. So each run is
a process with a time limit, and its log is kept. The result file, the model, and a log without errors are needed: Quark
continues after a failed fine-tuning, and leaves a model without it.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from deploykit.answers.diagnosis import diagnose
from deploykit.backend.toolchains import load_toolchains
from deploykit.errors import InputError, ToolError
from deploykit.findings.records import Json, Record, Tell
from deploykit.system.environments import Environment, environment_of
from deploykit.system.files import with_folder
from deploykit.system.folders import scratch
from deploykit.system.processes import ProgramEnd
from deploykit.system.specs import select
from deploykit.system.store import Store, key_of
from deploykit.tables.reading import read_json
from deploykit_vitis_ai.tables import DATA, known_errors

__all__ = ["RESULT", "EndlessError", "QuarkRun", "quark_environment", "run_quark"]

# The time limit of a run in seconds; fine-tuning a large net takes minutes, a hung compiler never ends.
TIMEOUT = 3600.0

RESULT = "logs/quantize.json"

_ERROR = re.compile(r"\[QUARK-(?:ERROR|CRITICAL)\]:?\s*([^\x1b]*)")
# Seen with Quark 0.12 on two trained models of PP-OCR with finite floats, on a model that slices a convolution's
# result, and on one-dimensional convolutions: all of them work without equalization.
_ENDLESS = re.compile(
    r"Unable to allocate \S+ [GTPE]iB for an array|array is too big|Maximum allowed size exceeded"
    r"|index out of range|out of bounds for array"
)


class EndlessError(ToolError):
    """Cross-layer equalization failed, or made infinite values, which no histogram holds."""


class QuarkRun(Record):
    """The results of one run: the model's package path, the script's result, the log and the seconds."""

    output: str
    result: Json
    log: Path
    seconds: float


def quark_environment(toolchain: str) -> Environment:
    """The environment of one toolchain, such as ``quark==0.13``; it need not be installed."""
    return environment_of(
        select(load_toolchains(DATA / "toolchains", backend="vitis-ai", files=DATA.parent), toolchain)
    )


def run_quark(
    environment: Environment,
    package: Path,
    *,
    recipe: str,
    compare: Path | None = None,
    progress: Tell,
    timeout: float = TIMEOUT,
    trial: bool = False,
) -> QuarkRun:
    """Runs the package's own ``scripts/quantize.py`` with one recipe file.

    ``compare`` is a folder for the outputs of both models. The results of a ``trial`` are kept for the
    next equal run. Raises ToolError, with the known cause if the log shows one, if the environment is
    not ready, the time is up, or there is no model.
    """
    environment.require()
    wanted = read_json(package / recipe)
    made = {"model": package / str(wanted["output"]), "result": package / RESULT}
    made |= {"compared": compare} if compare is not None else {}
    # The log stays in the toolchain: it holds paths and settings of this machine, which must not get into a package.
    digest = hashlib.sha256((package / recipe).read_bytes() + Path(str(wanted["source"])).name.encode()).hexdigest()
    log = with_folder(environment.path / "logs" / f"quantize-{digest[:12]}.log")
    log.unlink(missing_ok=True)
    key = run_key(environment.spec.id, package, wanted)
    if not trial and take_run(key, made):
        progress(f"{environment.spec.id}: taking over what the trial made")
        return QuarkRun(output=str(wanted["output"]), result=_result(package), log=log, seconds=0.0)
    (package / RESULT).unlink(missing_ok=True)
    arguments = ["scripts/quantize.py", "--recipe", recipe, "--result", RESULT]
    arguments += ["--compare", str(compare)] if compare is not None else []
    errors = list[str]()

    def follow(line: str) -> None:
        errors.extend(_ERROR.findall(line))
        if line.strip():
            progress(f"{environment.spec.id}: {line}")

    progress(f"{environment.spec.id}: quantizing")
    done = environment.run(
        arguments,
        cwd=package,
        timeout=timeout,
        log=log,
        on_line=follow,
    )
    result = _result(package)
    if done.timed_out or not result.get("ok") or not (package / str(wanted["output"])).is_file():
        raise _failure(environment, done, result, log)
    if errors:
        raise _failure(environment, done, {"error": errors[0], "logged": True}, log)
    if trial:
        keep_run(key, made)
    return QuarkRun(output=str(wanted["output"]), result=result, log=log, seconds=done.seconds)


def run_key(toolchain: str, package: Path, recipe: Json) -> str:
    """A hash of everything that a run reads; "" for a reader, whose data may come from anywhere."""
    if recipe.get("calibration", {}).get("kind") == "reader":
        return ""
    digests = {
        path.relative_to(package).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for name in ("model", "calibration")
        for path in (package / name).rglob("*")
        if path.is_file()
    }
    asked = {"deploykit": version("deploykit"), "toolchain": toolchain, "recipe": recipe, "files": digests}
    return key_of(b"", asked)


def keep_run(key: str, made: Mapping[str, Path]) -> None:
    """Keeps a trial's results, files or folders by the names in ``made``, for an equal run that is not a trial."""
    if not key:
        return
    with scratch() as folder:
        for name, path in made.items():
            _copy(path, folder / name)
        names = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
        Store("quark").keep(key, folder, names)


def take_run(key: str, wanted: Mapping[str, Path]) -> bool:
    """Copies kept results to their places; False if nothing was kept, or not all of them."""
    if not key:
        return False
    with scratch() as folder:
        if not Store("quark").take(key, folder) or not all((folder / name).exists() for name in wanted):
            return False
        for name, path in wanted.items():
            _copy(folder / name, path)
    return True


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, with_folder(target))


def _result(package: Path) -> Json:
    try:
        value = read_json(package / RESULT)
    except InputError:
        return {}
    return value if isinstance(value, dict) else {}


def _failure(environment: Environment, done: ProgramEnd, result: Json, log: Path) -> ToolError:
    how = "made a model and logged an error" if result.get("logged") else "made no model"
    how = "took longer than its time limit and was ended" if done.timed_out else how
    why = way_out = ""
    if log.is_file():
        with log.open("rb") as stream:
            known = diagnose(stream, known_errors(), tools=("quark",)).errors
        why, way_out = (known[0].error.cause, known[0].error.workaround) if known else ("", "")
    said = str(result.get("error", "")) or f"it ended with status {done.returncode} and left no result"
    endless = _ENDLESS.search(said) is not None
    if endless:
        why = "its cross-layer equalization fails, or made values without an end, whose histogram fits no memory"
        way_out = "quantize without it: --option include_cle=false"
    return (EndlessError if endless else ToolError)(
        f"{environment.spec.id} {how}",
        why=f"{why} ({said})" if why else said,
        next=f"{way_out}; the log is {log}" if way_out else f"read its log: {log}",
    )
