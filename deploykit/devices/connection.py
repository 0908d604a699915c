"""Connects to a device: this machine, ssh or adb. A connection defines only how to start a shell on the device.

Everything else is shared: the remote side is a POSIX shell, files travel as one archive, and
every script ends by printing a line with its status. If that line is missing, the connection was
cut. A remote program ends with its connection.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from deploykit.errors import ToolError, UsageError
from deploykit.findings.records import Record
from deploykit.system.files import with_folder
from deploykit.system.processes import run

__all__ = ["Connection", "connection_to"]

_ADB_FOLDER = "/data/local/tmp/deploykit"
_SSH_FOLDER = ".deploykit"  # below the user's home, the working folder of a new shell
_SSH_ADDRESS = re.compile(r"ssh://(?:[A-Za-z0-9_][\w.+-]*@)?(?:[A-Za-z0-9][\w.-]*|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
_SERIAL = re.compile(r"[A-Za-z0-9][\w.:-]*")
# Keys and jump hosts come from the user's configuration; these options only prevent prompts, hangs and unasked trust.
_SSH_OPTIONS = (
    *("BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=15", "ServerAliveInterval=5"),
    *("ServerAliveCountMax=3", "LogLevel=ERROR", "ClearAllForwardings=yes", "ForwardAgent=no", "RemoteCommand=none"),
)
_QUESTION_SECONDS = 120.0
_TRANSFER_SECONDS = 3600.0
_LATE = 15.0  # seconds of grace before this side ends a script whose own time limit failed
_MOST_LINES = 20_000
_LONGEST = 4096
_LAST_WORDS = 4
# Standard output and standard error travel separately, so the end line could land in the middle of another line.
_ONE_STREAM = "exec >&2"
# What the clients print when they could not reach a device, what that means, and what to do.
_CLIENT_SAYS = (
    ("adb", "no devices/emulators found", "no device is attached", "adb devices lists them; adb connect HOST adds one"),
    ("adb", "device '", "no such device is attached", "adb devices lists those that are"),
    ("adb", "more than one device", "several devices are attached", "name one of adb devices: --on adb:SERIAL"),
    ("adb", "unauthorized", "the device does not trust this computer yet", "unlock it and confirm what it asks"),
    ("ssh", "Host key verification failed", "its key is not the one that is known", "ask its owner before you take it"),
)


class Connection(Record, kw_only=False):
    """One connection to a device. ``words`` is the command that starts a shell
    there; ``folder`` is deploykit's folder there.
    """

    kind: str
    where: str
    words: tuple[str, ...]
    folder: str

    def ask(self, script: str, *, timeout: float = _QUESTION_SECONDS) -> list[str]:
        """Return the lines that a short script prints. Raises ToolError if it
        fails, runs too long or the connection is cut.
        """
        lines = list[str]()

        def keep(line: str) -> None:
            if len(lines) >= _MOST_LINES or len(line) > _LONGEST:
                raise ToolError(f"{self.where}: answers garbage", why=f"it begins with {lines[:1] or line[:60]!r}")
            lines.append(line)

        status, told = self._call(f"{_ONE_STREAM}\n{script}", timeout, lines=lines, on_line=keep)
        if status:
            raise ToolError(f"{self.where}: a step on the device failed (status {status})", why=_last(told))
        return told

    def push(self, files: Mapping[str, Path], folder: str, archive: Path, then: str) -> list[str]:
        """Copy files, by name, to a folder on the device, packed into one archive
        at ``archive``, then run the script ``then``.

        Returns the lines that the script prints. Raises ToolError if the files cannot be stored or the script fails.
        """
        with tarfile.open(archive, "w") as packed:
            for name, path in files.items():
                entry = tarfile.TarInfo(name)
                with path.open("rb") as stream:
                    entry.size, entry.mode = os.fstat(stream.fileno()).st_size, 0o600
                    packed.addfile(entry, stream)
        place = quote(folder)
        script = f"{_ONE_STREAM}; mkdir -p {place} && cd {place} && tar -xf - && {{ {then}\n}}"
        status, told = self._call(script, _TRANSFER_SECONDS, given=archive)
        if status:
            raise ToolError(f"{self.where}: the files cannot be stored there", why=_last(told), next="make room there")
        return told

    def pull(self, names: Sequence[str], folder: str, target: Path, archive: Path, also: str) -> list[str]:
        """Copy those of the files ``names`` that exist in a remote folder, and no others, below ``target``.

        Returns the lines that the script ``also`` prints. Raises ToolError for a failure or an unreadable archive.
        """
        asked = "".join(f'[ -f {quote(name)} ] && set -- "$@" {quote(name)}\n' for name in names)
        script = f'cd {quote(folder)} || exit 1\n{{ {also}\n}} >&2\nset --\n{asked}[ $# = 0 ] || tar -cf - "$@"'
        status, told = self._call(script, _TRANSFER_SECONDS, output=archive)
        if status:
            raise ToolError(f"{self.where}: the outputs cannot be read there", why=_last(told))
        if archive.stat().st_size:
            try:
                with tarfile.open(archive) as packed:
                    for entry in packed:
                        # Extract only what was asked for, by name, as a
                        # plain file: a device may send anything. Done by
                        stream = packed.extractfile(entry) if entry.isreg() and entry.name in names else None
                        if stream is not None:
                            with with_folder(target / entry.name).open("wb") as sink:
                                shutil.copyfileobj(stream, sink)
            except (tarfile.TarError, EOFError, ValueError) as error:
                raise ToolError(f"{self.where}: sends outputs that cannot be read", why=str(error)) from None
        return told

    def run(
        self, argv: Iterable[str], *, folder: str, environment: Mapping[str, str], timeout: float, log: Path
    ) -> int:
        """Run a program in a remote folder to its end and return its exit status; its output is written to ``log``.

        The program ends with the connection, or after ``timeout`` seconds. Raises ToolError if the connection is cut.
        """
        exports = "".join(f"export {name}={quote(value)}\n" for name, value in environment.items())
        script = f"{_ONE_STREAM}; cd {quote(folder)} || exit 1\n{exports}{' '.join(map(quote, argv))}"
        status, told = self._call(script, timeout, log=log)
        log.write_text("".join(f"{line}\n" for line in told), "utf-8")
        return status

    def _call(
        self, script: str, limit: float, *, lines: Sequence[str] = (), given: Path | None = None, **how: Any
    ) -> tuple[int, list[str]]:
        """Return a remote script's status and output. Raises ToolError if the script did not reach its end.

        Unless its input is ``given``, its processes end with the connection and after ``limit`` seconds. A shell
        started without a terminal leads its own process group. One guard process waits for the end of its input, which
        stays open as long as the connection does; another waits for the time limit. Either kills the whole group.
        """
        token, kill = f"deploykit-end-{secrets.token_hex(8)}", "kill -s KILL 0"
        # Printed on standard error, so that it stays separate from an archive on standard output.
        whole = f"( {script}\n)\nprintf '\\n{token} %s\\n' \"$?\" >&2\n"
        if given is None:
            whole = (
                "exec 3<&0 </dev/null\n"  # a shell takes the input away from its background processes
                f"{{ cat <&3; {kill}; }} >/dev/null 2>&1 &\n"
                f"{{ exec 3<&-; sleep {limit:.0f}; {kill}; }} >/dev/null 2>&1 &\n"
                f"exec 3<&-\n{whole}{kill}"
            )
        argv = (*self.words, whole if self.kind == "local" else f"exec sh -c {quote(whole)}")
        end = run(argv, held=given is None, given=given, timeout=limit + _LATE, **how)
        lines = lines or end.tail
        for number in range(len(lines) - 1, -1, -1):
            word, _, status = lines[number].strip().partition(" ")
            if word == token and status.isdigit():
                return int(status), [line for line in lines[:number] if line]
        said = _last(lines)
        # The adb client exits with status 0 when the cable is pulled (seen with 29.0.6).
        if end.timed_out or (end.returncode == 0 and self.kind != "adb"):
            why = said or "its shell gave no answer that can be read"
            raise ToolError(f"{self.where}: took too long, or answers garbage", why=why)
        for client, words, what, advice in _CLIENT_SAYS:
            if client == self.kind and words in said:
                raise ToolError(f"{self.where}: {what}", why=said, next=advice)
        by_hand = {"ssh": f"see that this works and asks nothing: ssh {self.where} true", "adb": "see: adb devices"}
        raise ToolError(
            f"{self.where}: the connection was cut or refused",
            why=said,
            next=f"{by_hand.get(self.kind, 'try again')}; then run it again: what was pushed is still there",
        )


def connection_to(where: str, *, folder: str) -> Connection:
    """Return the connection for ``--on``: ``local``, ``ssh://[user@]host[:port]``, ``adb`` or ``adb:SERIAL``.

    ``folder`` replaces the default remote folder; "" keeps it. Raises UsageError for anything else.
    """
    folder = os.environ.get("DEPLOYKIT_DEVICE_FOLDER", folder) if where != "local" else folder
    if where == "local":
        return Connection("local", where, words=("/bin/sh", "-c"), folder=folder)
    kind, _, rest = where.partition(":")
    if kind == "ssh" and _SSH_ADDRESS.fullmatch(where):
        configured = os.environ.get("DEPLOYKIT_SSH_CONFIG", "")
        options = [word for option in _SSH_OPTIONS for word in ("-o", option)]
        words = ("ssh", *(("-F", configured) if configured else ()), "-T", "-e", "none", *options, where)
        return Connection("ssh", where, words=words, folder=folder or _SSH_FOLDER)
    if kind == "adb" and (not rest or _SERIAL.fullmatch(rest)) and where != "adb:":
        words = ("adb", *(("-s", rest) if rest else ()), "shell", "-T")
        return Connection("adb", where, words=words, folder=folder or _ADB_FOLDER)
    raise UsageError(
        f"--on {where}: is no place",
        next="local, adb, adb:SERIAL, ssh://user@host[:port], or a name under [devices] in deploykit.toml",
    )


def _last(lines: Iterable[str]) -> str:
    return " | ".join([line.strip() for line in lines if line.strip()][-_LAST_WORDS:])[:1000]
