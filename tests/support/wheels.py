"""Wheels of this checkout in a fresh environment, as their users have them; only their dependencies are lent."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment with wheels in it; ``run`` starts a program of its ``bin``, away from the checkout."""

    root: Path

    def run(self, program: str, *argv: str) -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        env["PATH"] = f"{self.root / 'bin'}{os.pathsep}{env['PATH']}"
        command = [str(self.root / "bin" / program), *argv]
        return subprocess.run(command, cwd=self.root, env=env, capture_output=True, encoding="utf-8", check=False)

    def ask(self, *argv: str, status: int = 0) -> str:
        """What deploykit answers, which must end so."""
        done = self.run("deploykit", *argv)
        assert done.returncode == status, done.stderr + done.stdout
        return done.stdout

    def python(self, code: str) -> str:
        """What a program prints that must end well."""
        done = self.run("python", "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def wheel_of(source: Path, into: Path) -> Path:
    """The wheel of a folder with a pyproject.toml, by the build backend at hand where there is one."""
    isolation = ["--no-isolation"] if find_spec("hatchling") else []
    command = [sys.executable, "-m", "build", "--wheel", *isolation, "--outdir", str(into), str(source)]
    built = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(into.glob("*.whl"))


def installed_wheels(sources: Iterable[Path], folder: Path) -> Installed:
    """A new environment with a wheel of each source in it; what they depend on is lent by this Python."""
    root = folder / "environment"
    wheels = [wheel_of(source, folder / f"wheel{number}") for number, source in enumerate(sources)]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(root / "bin/python")]
    install = ["install", "-q", "--no-deps", "--no-index", *map(str, wheels)]
    subprocess.run([*pip, *install], check=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    (own,) = root.glob("lib/python*/site-packages")
    (own / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return Installed(root=root)
