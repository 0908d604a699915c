"""Writes the locks of toolchains: every file, by its SHA-256, that their pins come as on Linux x86-64.

    python tests/lab/locks.py quark==0.13 htp==2.47.0        with pip, for each Python from 3.11 to 3.14 on the PATH

pip resolves what a stage asks for under the toolchain's own pins, with each of these Pythons that it allows, and
downloads nothing. Builds of another index (``torch==2.13.0+cpu``) are kept as the lock has them: they are compared with
what is installed, by whoever writes them there. What only the large build of torch asks for is left out.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from deploykit.cli.toolchain import known_toolchains
from deploykit.system.specs import Stage, ToolchainSpec, select

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TAGS = ("manylinux2014_x86_64", *(f"manylinux_2_{glibc}_x86_64" for glibc in (17, 24, 27, 28, 31, 34, 35)))
OF_CUDA = re.compile(r"torch|torchvision|triton|nvidia-.*|cuda-.*")
Hashes = dict[str, set[str]]
"""The hashes of each pin, ``name==version``."""


def pins_of(text: str) -> Hashes:
    """What a lock says."""
    found: Hashes = {}
    for entry in text.replace("\\\n", " ").splitlines():
        if entry and not entry.startswith("#"):
            pin, *hashes = entry.split()
            found[pin] = {value.removeprefix("--hash=sha256:") for value in hashes}
    return found


def resolved(minor: str, spec: ToolchainSpec, stages: list[Stage]) -> dict[str, tuple[str, str]]:
    """Version and hash of each package that this Python installs for these stages, by its name.

    For a Python that is not here the newest one answers; what it installs by conditions on the Python is its own then.
    """
    python = shutil.which(f"python{minor}")
    abroad = ["--python-version", minor, *(word for tag in TAGS for word in ("--platform", tag))]
    with tempfile.TemporaryDirectory() as folder:
        constraints, report = Path(folder, "constraints.txt"), Path(folder, "report.json")
        constraints.write_text("\n".join(spec.constraints), "utf-8")
        pip = [python or newest(), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        wanted = [name for stage in stages for name in stage.packages]
        asked = ["--dry-run", "--ignore-installed", "--only-binary=:all:", "--report", str(report)]
        asked += ["--constraint", str(constraints)]
        asked += [] if python else [*abroad, "--target", f"{folder}/none"]
        subprocess.run([*pip, *asked, *wanted], check=True)
        found = json.loads(report.read_text("utf-8"))["install"]
    return {
        canonicalize_name(one["metadata"]["name"]): (
            one["metadata"]["version"],
            one["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for one in found
    }


def newest() -> str:
    """The newest Python that is here."""
    return next(filter(None, (shutil.which(f"python{minor}") for minor in reversed(PYTHONS))))


def locked(spec: ToolchainSpec, stages: list[Stage], before: Hashes) -> Hashes:
    """All pins of these stages with the hashes of all Pythons; what another index has is as it was."""
    elsewhere = {pin: hashes for pin, hashes in before.items() if "+" in pin}
    names = {canonicalize_name(pin.partition("==")[0]) for pin in elsewhere}
    pinned = {str(canonicalize_name(pin.partition("==")[0])): pin for pin in spec.constraints}
    made: Hashes = defaultdict(set)
    for minor in PYTHONS:
        if not SpecifierSet(spec.python).contains(f"{minor}.0"):
            continue
        for name, (version, digest) in resolved(minor, spec, stages).items():
            if name in pinned and name not in names:
                assert pinned[name].endswith(f"=={version}"), (name, version)
                made[pinned[name]].add(digest)
            elif not OF_CUDA.fullmatch(name):
                sys.exit(f"{spec.id}: with Python {minor} it installs {name}=={version}, which is not pinned")
    return {**elsewhere, **{pin: made[pin] for pin in sorted(made, key=str.lower)}}


def written(hashes: Hashes) -> str:
    """The text of a lock, without its head."""
    entries = (" \\\n    ".join([pin, *(f"--hash=sha256:{one}" for one in sorted(hashes[pin]))]) for pin in hashes)
    return "".join(f"{entry}\n" for entry in entries)


def main(words: list[str]) -> None:
    """Write the locks that the stages of these toolchains name."""
    for word in words:
        spec = select(known_toolchains(), word)
        for lock in dict.fromkeys(stage.lock for stage in spec.stages if stage.lock):
            path = Path(spec.files, lock)
            before = path.read_text("utf-8") if path.exists() else ""
            head = "".join(line for line in before.splitlines(keepends=True) if line.startswith("#"))
            stages = [stage for stage in spec.stages if stage.lock == lock]
            path.write_text(head + written(locked(spec, stages, pins_of(before))), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
