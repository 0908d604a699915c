"""A device for the real adb client: the documented protocol over TCP, with programs of this machine as its own.

What it speaks is described in AOSP (packages/modules/adb: protocol.txt, shell_protocol.h). It is none of
Google's software, and no Android: ``/data/local/tmp`` is a folder, ``getprop`` a script in it. As with adbd, a program
whose client has gone finds its input at an end and is not killed. Faults are asked for by its fields.
"""

from __future__ import annotations

import os
import queue
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

CNXN, OPEN, OKAY, WRTE, CLSE = (int.from_bytes(one, "little") for one in (b"CNXN", b"OPEN", b"OKAY", b"WRTE", b"CLSE"))
HEADER = struct.Struct("<6I")
VERSION, MOST = 0x01000001, 1 << 18  # since this version no check sum is looked at
STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)
CHUNK = 1 << 16
HOME = "/data/local/tmp"


class GoneError(Exception):
    """The client closed this stream, or the connection is no more."""


@dataclass
class AdbDevice:
    """Listens on a port of its own. ``programs`` are scripts by name, found before those of this machine.

    ``cut_after``: how many bytes may pass, in both directions together, before the cable is pulled, once.
    ``file_limit``: the largest file in bytes that can be written, as on a full disk. ``spoil`` changes what shells
    answer, the frames of the protocol included. ``started`` are the commands that were given.
    """

    folder: Path
    programs: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    file_limit: int | None = None
    spoil: Callable[[bytes], bytes] | None = None
    started: list[str] = field(default_factory=list)
    passed: int = 0
    cuts: int = 0
    groups: list[int] = field(default_factory=list)

    def __enter__(self) -> AdbDevice:
        (self.folder / "bin").mkdir(parents=True, exist_ok=True)
        for name, text in self.programs.items():
            (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n", "utf-8")
            (self.folder / "bin" / name).chmod(0o755)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.links: list[Link] = []
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # A thread that waits in accept() is woken by a shutdown, not by a close.
        with suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.cut()

    @property
    def serial(self) -> str:
        """What the client calls it."""
        return f"127.0.0.1:{self.listening.getsockname()[1]}"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                link = Link(self, connection)
                self.links.append(link)
                threading.Thread(target=link.serve, daemon=True).start()

    def cut(self) -> None:
        """Pull the cable."""
        for link in self.links:
            link.close()

    def count(self, size: int) -> None:
        """So many bytes want to pass."""
        self.passed += size
        if self.cut_after is not None and self.passed > self.cut_after:
            self.cut_after = None
            self.cuts += 1
            self.cut()

    def running(self) -> list[int]:
        """The process groups of programs that have not ended, with all that these started."""
        alive = []
        for group in self.groups:
            with suppress(ProcessLookupError):
                os.killpg(group, 0)
                alive.append(group)
        return alive


class Link:
    """One connection: reads its messages and gives each to its stream."""

    def __init__(self, device: AdbDevice, connection: socket.socket) -> None:
        self.device, self.connection = device, connection
        self.sending = threading.Lock()
        self.streams: dict[int, Stream] = {}
        self.opened = 0

    def close(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def send(self, command: int, first: int, second: int, data: bytes = b"") -> None:
        self.device.count(len(data))
        head = HEADER.pack(command, first, second, len(data), sum(data) & 0xFFFFFFFF, command ^ 0xFFFFFFFF)
        try:
            with self.sending:
                self.connection.sendall(head + data)
        except OSError as error:
            raise GoneError from error

    def receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.connection.recv(size - len(data))
            if not piece:
                raise GoneError
            data += piece
        return bytes(data)

    def serve(self) -> None:
        with suppress(OSError, GoneError), self.connection:
            while True:
                command, theirs, ours, size, _, _ = HEADER.unpack(self.receive(HEADER.size))
                data = self.receive(size)
                self.device.count(size)
                stream = self.streams.get(ours)
                if command == CNXN:
                    properties = "ro.product.name=standin;ro.product.model=standin;ro.product.device=standin"
                    self.send(CNXN, VERSION, MOST, f"device::{properties};features=shell_v2,cmd".encode())
                elif command == OPEN:
                    self.opened += 1
                    stream = self.streams[self.opened] = Stream(self, self.opened, theirs)
                    service = data.rstrip(b"\0").decode()
                    threading.Thread(target=stream.serve, args=(service,), daemon=True).start()
                elif stream is not None and command == WRTE:
                    stream.received.put(data)
                elif stream is not None and command == OKAY:
                    stream.ready.set()
                elif stream is not None and command == CLSE:
                    stream.end()
        for stream in list(self.streams.values()):
            stream.end()


class Stream:
    """One service that the client opened. One message at a time is on its way in each direction."""

    def __init__(self, link: Link, ours: int, theirs: int) -> None:
        self.link, self.ours, self.theirs = link, ours, theirs
        self.received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.ready, self.writing = threading.Event(), threading.Lock()
        self.rest, self.gone = b"", False
        self.ready.set()

    def end(self) -> None:
        self.gone = True
        self.received.put(b"")
        self.ready.set()

    def read(self, size: int) -> bytes:
        """So many bytes of what the client sent."""
        while len(self.rest) < size:
            data = self.received.get()
            if not data:
                raise GoneError
            self.link.send(OKAY, self.ours, self.theirs)
            self.rest += data
        data, self.rest = self.rest[:size], self.rest[size:]
        return data

    def write(self, data: bytes) -> None:
        with self.writing:
            for at in range(0, len(data), MOST):
                self.ready.wait()
                if self.gone:
                    raise GoneError
                self.ready.clear()
                self.link.send(WRTE, self.ours, self.theirs, data[at : at + MOST])

    def serve(self, service: str) -> None:
        name, _, rest = service.partition(":")
        kind, *options = name.split(",")
        with suppress(GoneError):
            if kind == "shell" and "v2" in options:
                self.link.send(OKAY, self.ours, self.theirs)
                self.shell(rest)
        with suppress(GoneError):
            self.ready.wait(5)  # what was sent last is taken before the end is told
            self.link.send(CLSE, self.ours if kind == "shell" else 0, self.theirs)
        self.link.streams.pop(self.ours, None)

    def shell(self, command: str) -> None:
        """One program: its input, output and error output in frames of their own, then its exit status."""
        device = self.link.device
        device.started.append(command)
        limit = "" if device.file_limit is None else f"trap '' XFSZ; ulimit -f {device.file_limit // 512}; "
        environment = {**os.environ, "PATH": f"{device.folder / 'bin'}:{os.environ['PATH']}"}
        pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        words = ["sh", "-c", limit + command.replace(HOME, str(device.folder))]
        program = subprocess.Popen(words, cwd=device.folder, env=environment, start_new_session=True, **pipes)
        device.groups.append(program.pid)
        pipes = ((STDOUT, program.stdout), (STDERR, program.stderr))
        pumps = [threading.Thread(target=self._pump, args=pair, daemon=True) for pair in pipes]
        threading.Thread(target=self._feed, args=(program,), daemon=True).start()
        for pump in pumps:
            pump.start()
        for pump in pumps:
            pump.join()
        status = program.wait()
        self._frame(EXIT, bytes([status if status >= 0 else 128 - status]))

    def _frame(self, kind: int, data: bytes) -> None:
        spoil, frame = self.link.device.spoil, struct.pack("<BI", kind, len(data)) + data
        self.write(frame if spoil is None else spoil(frame))

    def _pump(self, kind: int, pipe: object) -> None:
        """What the program writes, until it ends or the client has gone: then its next write fails."""
        assert hasattr(pipe, "fileno") and hasattr(pipe, "close")
        with suppress(GoneError):
            while data := os.read(pipe.fileno(), CHUNK):
                self._frame(kind, data)
        pipe.close()

    def _feed(self, program: subprocess.Popen[bytes]) -> None:
        """What the client writes to the program, which finds an end where the client told one or is gone."""
        assert program.stdin is not None
        with suppress(GoneError, OSError):
            while True:
                kind, size = struct.unpack("<BI", self.read(5))
                data = self.read(size)
                if kind == CLOSE_STDIN:
                    break
                if kind == STDIN:
                    program.stdin.write(data)
                    program.stdin.flush()
        with suppress(OSError):
            program.stdin.close()
        with suppress(GoneError):  # what comes later is taken and dropped
            while True:
                self.read(1)


@contextmanager
def attached(device: AdbDevice, home: Path) -> Iterator[dict[str, str]]:
    """The environment in which the real client sees this device, by a server of its own that ends afterwards."""
    adb = shutil.which("adb")
    assert adb is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    home.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "HOME": str(home), "TMPDIR": str(home), "ANDROID_ADB_SERVER_PORT": str(port)}
    for name in ("ANDROID_SERIAL", "ADB_SERVER_SOCKET", "ANDROID_ADB_SERVER_ADDRESS", "ADB_VENDOR_KEYS"):
        environment.pop(name, None)

    def call(*words: str) -> str:
        done = subprocess.run([adb, *words], env=environment, capture_output=True, timeout=60, check=False)
        return done.stdout.decode() + done.stderr.decode()

    call("start-server")
    try:
        told = call("connect", device.serial)
        assert "connected to" in told, told
        yield environment
    finally:
        call("kill-server")


def is_there(device: AdbDevice, environment: Mapping[str, str]) -> bool:
    """Whether a program runs there. The client's server names a device for a while after its cable was pulled."""
    asked = ["adb", "-s", device.serial, "shell", "-T", "exit 7"]
    done = subprocess.run(asked, env=environment, capture_output=True, timeout=60, check=False)
    return done.returncode == 7


def reattach(device: AdbDevice, environment: Mapping[str, str]) -> None:
    """Plug the cable in again: the client's server notices, or is told, and the device is there."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for words in (["disconnect", device.serial], ["connect", device.serial]):
            subprocess.run(["adb", *words], env=environment, capture_output=True, timeout=60, check=False)
        if is_there(device, environment):
            return
        time.sleep(0.05)
