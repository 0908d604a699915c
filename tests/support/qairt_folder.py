"""A folder like that of a QAIRT SDK, whose tools are stand-ins (tests/standins/qairt/README.md)."""

import shlex
import sys
from pathlib import Path

STANDINS = Path(__file__).parents[1] / "standins"
HOST_TOOLS = ("qnn-onnx-converter", "qairt-converter", "qnn-model-lib-generator", "qnn-context-binary-generator")


def qairt_folder(place: Path, version: str = "2.33.0.250327", table: str = "2.33.0", root: str = "qairt") -> Path:
    """The tools of a build machine, which take the flags of one table version."""
    folder = place / root / version
    (folder / "bin/x86_64-linux-clang").mkdir(parents=True)
    (folder / "sdk.yaml").write_text(f"name: qairt\nversion: {version}\n")
    for tool in (*HOST_TOOLS, "qnn-profile-viewer"):
        _wrap(folder / "bin/x86_64-linux-clang" / tool, tool, table)
    return folder


def with_device_parts(sdk: Path, *, abi: str = "aarch64-android", arch: str = "v75", table: str = "2.33.0") -> Path:
    """The same with what is copied to a device: qnn-net-run, host libraries, stub and skel of an architecture."""
    stub = f"Htp{arch.upper()}"
    libraries = ("Htp", "System", "HtpNetRunExtensions", f"{stub}Stub")
    files = [sdk / f"lib/{abi}/libQnn{name}.so" for name in libraries]
    for file in [*files, sdk / f"lib/hexagon-{arch}/unsigned/libQnn{stub}Skel.so"]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(f"stand-in for {file.name} of {sdk.name}\n".encode())
    (sdk / "bin" / abi).mkdir()
    _wrap(sdk / "bin" / abi / "qnn-net-run", "qnn-net-run", table)
    return sdk


def _wrap(path: Path, tool: str, table: str) -> None:
    words = shlex.join([sys.executable, str(STANDINS / "qairt/standin.py"), tool, table])
    path.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {words} "$@"\n')
    path.chmod(0o755)
