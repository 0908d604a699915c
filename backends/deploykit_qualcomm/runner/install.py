"""Brings a Windows wheel's libraries and the runner for them into a folder, and tries both; a program of its own.

    python install.py libraries WHEEL FOLDER      the libraries, by pip, with the hash of the table
    python install.py runner ZIGLANG FOLDER       the runner and what Wine lacks, compiled by that version of ziglang
    python install.py relay ZIGLANG FOLDER        those, and the recorder in the place of the backend
    python install.py wine WINE FOLDER            Wine's own folder, and one start of the runner in it

It runs in an environment that has nothing but pip, so it imports nothing of deploykit. Exit status 1 says why.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

__all__ = ["main"]

HERE = Path(__file__).resolve().parent
TABLE = HERE.parent / "data" / "wheels.toml"
LOCKS = HERE.parent / "data" / "toolchains"
WANTED = re.compile(r"onnxruntime/(capi/)?([^/]+\.dll|[^/]*(?i:license)[^/]*\.pdf)")
PROGRAMS = {"runner.exe": ("runner.c", "json.c", "npy.c"), "dxcore.dll": ("dxcore.c",)}
RELAY = {**PROGRAMS, "QnnHtp.dll": ("recorder.c", "record_writing.c", "json.c", "platform.c")}
TARGET = "x86_64-windows-gnu"
FLAGS = ("-O2", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror", "-s")
DEADLINE = 1200.0  # seconds for downloading the compiler, or for running it
START = 180.0  # seconds: Wine makes its folder when it first starts


def pip(*words: str) -> None:
    """Calls pip."""
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *words], check=True, timeout=DEADLINE)


def libraries(version: str, folder: Path) -> None:
    """Downloads the file that the table names, with its hash checked, and unpacks its libraries and licences."""
    row = next(row for row in tomllib.loads(TABLE.read_text("utf-8"))["wheel"] if row["version"] == version)
    host = next(host for host in row["host"] if "wine-x86-64" in host["runs"])
    _, _, python, _, platform = host["file"].removesuffix(".whl").split("-")
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        wanted = Path(place, "wanted.txt")
        wanted.write_text(f"onnxruntime-qnn=={version} --hash=sha256:{host['sha256']}\n", "utf-8")
        choice = ("--platform", platform, "--python-version", python.removeprefix("cp"), "--only-binary=:all:")
        pip("download", "--no-deps", "--require-hashes", *choice, "-d", place, "-r", str(wanted))
        folder.mkdir(exist_ok=True)
        with zipfile.ZipFile(Path(place, host["file"])) as wheel:
            for name in filter(WANTED.fullmatch, wheel.namelist()):
                Path(folder, Path(name).name).write_bytes(wheel.read(name))


def runner(ziglang: str, folder: Path) -> None:
    """Compiles the runner and the library it needs for Windows x86-64."""
    compiled(ziglang, folder, PROGRAMS)


def relay(ziglang: str, folder: Path) -> None:
    """Compiles these, and the recorder under the backend's name: it passes calls on to the backend in ``target``."""
    compiled(ziglang, folder, RELAY)


def compiled(ziglang: str, folder: Path, sources: dict[str, tuple[str, ...]]) -> None:
    """Compiles programs into a folder; the compiler, half a gigabyte, is removed afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        compiler(ziglang, Path(place))
        caches = {"ZIG_GLOBAL_CACHE_DIR": f"{place}/global", "ZIG_LOCAL_CACHE_DIR": f"{place}/local"}
        settings = {**os.environ, **caches, "PYTHONPATH": place}
        for name, files in sources.items():
            made = Path(place, name)
            shared = ("-shared",) if name.endswith(".dll") else ()
            argv = [sys.executable, "-m", "ziglang", "cc", "-target", TARGET, *FLAGS, *shared, "-o", str(made), *files]
            subprocess.run(argv, check=True, timeout=DEADLINE, env=settings, cwd=HERE)
            shutil.copy2(made, folder / name)


def compiler(version: str, folder: Path) -> None:
    """Installs ziglang into a folder, with its hash checked."""
    lock = LOCKS / f"ziglang-{version}.lock"
    pip("install", "--require-hashes", "--only-binary=:all:", "--target", str(folder), "--requirement", str(lock))


def wine(program: str, folder: Path) -> None:
    """Creates the Wine prefix that the environment names, and has the runner load ONNX Runtime in it."""
    subprocess.run([program, "wineboot.exe", "--init"], check=True, timeout=START, stdin=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        Path(place, "request.json").write_text("{}", "utf-8")
        argv = [program, str(folder / "runner.exe"), "request.json"]
        done = subprocess.run(argv, cwd=place, stdout=subprocess.PIPE, timeout=START, stdin=subprocess.DEVNULL)
    events = [json.loads(line) for line in done.stdout.decode(errors="replace").splitlines() if line.startswith("{")]
    loaded = [event["version"] for event in events if event["event"] == "runtime"]
    if done.returncode or not loaded:
        sys.exit(f"error: the runner cannot load ONNX Runtime: status {done.returncode}, {events}")
    print(f"the runner loads ONNX Runtime {loaded[0]}")


def main(step: str, what: str, folder: str) -> None:
    """Runs one step."""
    {"libraries": libraries, "runner": runner, "relay": relay, "wine": wine}[step](what, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
