"""One visit to a device: query it, push files by their hash, run in a separate folder, clean up.

It knows no backend and judges nothing. The remote folder holds
``files/<sha256>``, kept between runs, and ``runs/<name>``.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from deploykit.backend.on_device import DeviceJob, Place
from deploykit.devices.connection import Connection, connection_to
from deploykit.devices.places import DeviceRow
from deploykit.errors import DeploykitError, ToolError
from deploykit.findings.records import Record, Tell
from deploykit.packages.manifests import hash_file

__all__ = ["Visit", "VisitEnd", "visiting"]

_ROOM = 64 << 20  # bytes for outputs, profiles and logs, in addition to the pushed files
_KEPT_DAYS = 30
_HOTTEST = "cat /sys/class/thermal/thermal_zone*/temp 2>/dev/null | sort -n | tail -n 1"
_LOOK = """
mkdir -p {folder}/files {folder}/runs && cd {folder} || exit 1
say() {{ printf 'deploykit-%s=%s\\n' "$1" "$2"; }}
say folder "$(pwd -P)"
say system "$(uname -s)"
say machine "$(uname -m)"
if command -v getprop >/dev/null 2>&1; then
  say system Android
  say soc "$(getprop ro.soc.model)"
  say abi "$(getprop ro.product.cpu.abi)"
  say serial "$(getprop ro.serialno)"
  say release "$(getprop ro.build.version.release)"
else
  say soc "$(cat /sys/devices/soc0/machine 2>/dev/null)"
  say serial "$(cat /etc/machine-id 2>/dev/null || hostname)"
  say release "$(uname -r)"
fi
say python "$(command -v {python} 2>/dev/null)"
say free "$(df -Pk . | tail -n 1)"
say temperature "$({hottest})"
find files -type f -mtime +{days} -exec rm -f {{}} + 2>/dev/null
for name in files/*; do [ -f "$name" ] && sha256sum "$name"; done
for name in runs/*; do [ -d "$name" ] && say run "$name"; done
say end yes
"""


class VisitEnd(NamedTuple):
    """How the program on the device ended: its log, its files, and how long this side waited for it.

    ``temperature`` is in degrees Celsius, None if unknown.
    """

    status: int
    log: Path
    pulled: Path
    took_s: float
    temperature: float | None


class Visit(Record):
    """An open connection to a device, a description of the device, and the hashes of the files it already holds."""

    connection: Connection
    place: Place
    held: frozenset[str]
    tell: Tell

    def run(self, job: DeviceJob, scratch: Path) -> VisitEnd:
        """Push the missing files, run the job and pull the results. Raises
        ToolError if the connection or the device fails.
        """
        digests, missing = dict[str, str](), dict[str, Path]()
        for file in job.files:
            if isinstance(file.source, Path):
                source, digest = file.source, hash_file(file.source)[1]
            else:
                digest = hashlib.sha256(file.source).hexdigest()
                source = scratch / f"push-{digest}"
                source.write_bytes(file.source)
            digests[file.path] = digest
            if digest not in self.held:
                missing[digest] = source
        size, free = sum(source.stat().st_size for source in missing.values()), self.place.free_bytes
        if free is not None and free < size + _ROOM:
            raise ToolError(
                f"{self.place.name}: has {free / 2**20:,.0f} MiB free, {(size + _ROOM) / 2**20:,.0f} are needed",
                next="make room there",
            )
        self.tell(f"pushing {len(missing)} of {len(job.files)} files, {size / 2**20:.1f} MiB")
        folder, connection = self.place.folder, self.connection
        script = self._assembling(job, digests)
        if missing:
            lines = connection.push(missing, f"{folder}/.pushed", scratch / "push.tar", script)
        else:
            lines = connection.ask(script)
        found = {line.split(" ", 1)[0].lstrip("\\") for line in lines}
        for path, digest in digests.items():
            if digest not in found:
                connection.ask(f"rm -f {quote(folder)}/../../files/{digest}")
                raise ToolError(f"{connection.where}: {path} did not arrive as it is here", next="run it again")
        self.tell("running")
        log, pulled = scratch / "run.log", scratch / "pulled"
        pulled.mkdir()
        began, environment = time.monotonic(), job.environment
        status = connection.run(job.argv, folder=folder, environment=environment, timeout=job.timeout, log=log)
        took_s = time.monotonic() - began
        temperature = None
        if status == 0:
            self.tell("pulling the outputs")
            names, also = (*job.results, *job.optional), f'echo "deploykit-temperature=$({_HOTTEST})"'
            temperature = _celsius(_words(connection.pull(names, folder, pulled, scratch / "pull.tar", also)))
            for name in job.results:
                if not (pulled / name).is_file():
                    why = f"its program ended well, but left no {name}"
                    raise ToolError(f"{connection.where}: gave no outputs", why=why)
        return VisitEnd(status=status, log=log, pulled=pulled, took_s=took_s, temperature=temperature)

    def _assembling(self, job: DeviceJob, digests: Mapping[str, str]) -> str:
        """Return a script that fills the run's folder from stored and pushed files and prints the hash of each file."""
        folder = quote(self.place.folder)
        lines = [f"mkdir -p {folder} && cd {folder} || exit 1"]
        lines.append("for f in .pushed/*; do [ -f $f ] && mv $f ../../files/; done")
        lines += [f"mkdir -p {quote(parent)}" for parent in sorted({str(Path(f.path).parent) for f in job.files})]
        for file in job.files:
            stored, name = f"../../files/{digests[file.path]}", quote(file.path)
            # Some systems allow no hard links; a library must be a real file in any case.
            lines.append(f"ln {stored} {name} 2>/dev/null || cp {stored} {name} || exit 1; touch -c {stored}")
            lines += [f"chmod 700 {name}"] if file.executable else []
        return "\n".join([*lines, *(f"sha256sum {quote(file.path)}" for file in job.files)])


@contextmanager
def visiting(row: DeviceRow, scratch: Path, *, keep: bool = False, tell: Tell) -> Iterator[Visit]:
    """Query a device and open a folder for one run, which is removed at the end unless ``keep`` is set.

    Folders that killed runs of this machine left there are also removed. With ``local`` the folder is in ``scratch``.
    Raises ToolError for a device that cannot be reached or gives unreadable answers.
    """
    here = row.at == "local"
    connection = connection_to(row.at, folder=str(scratch / "device") if here else row.folder)
    tell(f"looking at {connection.where}")
    python = quote(row.python or (sys.executable if here else "python3"))
    script = _LOOK.format(folder=quote(connection.folder), python=python, hottest=_HOTTEST, days=_KEPT_DAYS)
    lines = connection.ask(script)
    told = _words(lines)
    said = {key: values[-1].strip() for key, values in told.items()}
    root = said.get("folder", "")
    if said.get("end") != "yes" or not root.startswith("/") or not said.get("machine"):
        raise ToolError(
            f"{connection.where}: answers what cannot be read",
            why=" | ".join(lines[:3])[:300] or "nothing at all",
            next="its login shell must be that of a POSIX system (on Windows: OpenSSH with bash as its DefaultShell)",
        )
    mine = f"{hashlib.sha256(f'{socket.gethostname()}:{os.getuid()}'.encode()).hexdigest()[:8]}-"
    dead = [name for name in told.get("run", []) if _is_dead(name.removeprefix("runs/"), mine)]
    # A folder to keep has another prefix, so that later runs do not remove it.
    folder = f"{root}/runs/{'kept-' if keep else mine}{os.getpid()}-{secrets.token_hex(4)}"
    free = said.get("free", "").split()
    names = ("system", "machine", "abi", "soc", "release", "python")
    place = Place(
        kind=connection.kind,
        folder=folder,
        serial=hashlib.sha256(f"deploykit:{said.get('serial')}".encode()).hexdigest()[:12],
        free_bytes=int(free[3]) * 1024 if len(free) > 3 and free[3].isdigit() else None,
        temperature=_celsius(told),
        **{name: said.get(name, "") for name in names},
    )
    pairs = [line.split() for line in lines]
    held = frozenset(pair[0] for pair in pairs if len(pair) == 2 and pair[1] == f"files/{pair[0]}")
    try:
        yield Visit(connection=connection, place=place, held=held, tell=tell)
    finally:
        gone = [*(f"{root}/{name}" for name in dead), *([] if keep else [folder])]
        if keep:
            tell(f"kept on the device: {folder}")
        if gone:
            with suppress(DeploykitError):  # if the device is gone, the next run cleans up
                connection.ask(f"rm -rf {' '.join(map(quote, gone))}", timeout=30.0)


def _is_dead(name: str, mine: str) -> bool:
    """Whether a run's folder was left by a process of this machine that no longer exists."""
    number = name.removeprefix(mine).partition("-")[0]
    try:
        if name.startswith(mine) and number.isdigit():
            os.kill(int(number), 0)
    except (OSError, OverflowError) as error:  # not a process number, or the process of another user
        return isinstance(error, ProcessLookupError)
    return False


def _words(lines: list[str]) -> dict[str, list[str]]:
    """Return the values that our script printed, by key; all other lines are ignored."""
    said = dict[str, list[str]]()
    for line in lines:
        key, equals, value = line.removeprefix("deploykit-").partition("=")
        if line.startswith("deploykit-") and equals:
            said.setdefault(key, []).append(value)
    return said


def _celsius(told: Mapping[str, list[str]]) -> float | None:
    """The reported temperature in degrees Celsius, None if unknown; the system reports thousandths."""
    word = (told.get("temperature") or [""])[-1].strip()
    return int(word) / 1000 if word.isdigit() else None
