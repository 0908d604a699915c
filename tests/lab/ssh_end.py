"""An OpenSSH server on loopback, with keys, port and configuration of its own; the user's files are not touched."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

SERVER = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
WANTED = "needs OpenSSH's server and client (Debian: openssh-server)"


def is_here() -> bool:
    """Whether a server can be started."""
    return SERVER is not None and shutil.which("ssh") is not None and shutil.which("ssh-keygen") is not None


@dataclass
class SshEnd:
    """One server. ``where`` is what ``--on`` takes, ``home`` the folder that runs may use."""

    folder: Path
    port: int
    server: subprocess.Popen[bytes] | None = None
    extra: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        """The address."""
        import getpass

        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}"

    @property
    def home(self) -> Path:
        """Its name holds what shells trip over."""
        return self.folder / 'a device\'s "own" $folder'

    @property
    def client(self) -> Path:
        """The client's configuration."""
        return self.folder / "ssh_config"

    def start(self) -> None:
        """Start the server; its children are killed with it by ``cut``."""
        plain = ("ListenAddress 127.0.0.1", "PidFile none", "StrictModes no", "UsePAM no", "PasswordAuthentication no")
        keys = (f"HostKey {self.folder}/host", f"AuthorizedKeysFile {self.folder}/user.pub", "MaxStartups 100")
        lines = (f"Port {self.port}", *plain, *keys, *self.extra)
        (self.folder / "sshd_config").write_text("\n".join(lines) + "\n", "utf-8")
        argv = [str(SERVER), "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.folder / "sshd.log")]
        self.server = subprocess.Popen(argv, start_new_session=True)
        for _ in range(100):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.05)
        raise AssertionError((self.folder / "sshd.log").read_text("utf-8"))

    def new_host_key(self) -> None:
        """Another key, as of somebody else's machine; the next start takes it."""
        for path in self.folder.glob("host*"):
            path.unlink()
        _key(self.folder / "host")

    def sessions(self) -> list[int]:
        """The processes of the server that serve a connection."""
        return [pid for pid, parent, name in _processes() if name.startswith("sshd") and self._is_below(parent)]

    def _is_below(self, pid: int) -> bool:
        parents = {child: parent for child, parent, _ in _processes()}
        while pid > 1:
            if self.server is not None and pid == self.server.pid:
                return True
            pid = parents.get(pid, 0)
        return False

    def cut(self) -> None:
        """End every connection at once, as a cable that is pulled does; what runs there is not asked."""
        for pid in self.sessions():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the server and its connections."""
        self.cut()
        if self.server is not None:
            self.server.kill()
            self.server.wait()


@contextmanager
def ssh_end(folder: Path) -> Iterator[SshEnd]:
    """A running server with its files in a folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        end = SshEnd(folder=folder, port=free.getsockname()[1])
    for name in ("host", "user"):
        _key(folder / name)
    Path("/run/sshd").mkdir(exist_ok=True) if os.getuid() == 0 else None
    kind, key = (folder / "host.pub").read_text("ascii").split()[:2]
    (folder / "known").write_text(f"[127.0.0.1]:{end.port} {kind} {key}\n", "ascii")
    lines = (
        "Host *",
        f"IdentityFile {folder}/user",
        "IdentitiesOnly yes",
        f"UserKnownHostsFile {folder}/known",
        "GlobalKnownHostsFile /dev/null",
    )
    end.client.write_text("\n".join(lines) + "\n", "utf-8")
    end.start()
    try:
        yield end
    finally:
        end.stop()


def processes_in(folder: Path) -> list[str]:
    """The command lines of programs whose working folder or command lies below a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                if str((entry / "cwd").readlink()).startswith(str(folder)):
                    found.append(command)
    return found


def _key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _processes() -> list[tuple[int, int, str]]:
    rows = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError):
                name, _, rest = (entry / "stat").read_text("utf-8", "replace").partition("(")[2].rpartition(")")
                rows.append((int(entry.name), int(rest.split()[1]), name))
    return rows
