"""Shared by the qnn-htp tests: fixtures of real AIMET, requests, and a folder of stand-in tools."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data" / "aimet"
STANDIN = Path(__file__).parents[1] / "standins" / "qairt" / "standin.py"
TOOLS = ("qnn-onnx-converter", "qairt-converter", "qnn-model-lib-generator", "qnn-context-binary-generator")


@pytest.fixture(scope="session")
def aimet() -> Path:
    """The fixtures made by real AIMET."""
    return DATA


@pytest.fixture
def make_sdk(tmp_path: Path) -> Callable[..., Path]:
    """Lay out a folder like an SDK's whose tools are stand-ins of one table version."""

    def make(version: str = "2.33.0.250327", table: str = "2.33.0", root: str = "qairt") -> Path:
        folder = tmp_path / root / version
        tools = folder / "bin" / "x86_64-linux-clang"
        tools.mkdir(parents=True)
        (folder / "sdk.yaml").write_text(f"name: qairt\nversion: {version}\n")
        for tool in TOOLS:
            wrapper = tools / tool
            words = shlex.join([sys.executable, str(STANDIN), tool, table])
            wrapper.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {words} "$@"\n')
            wrapper.chmod(0o755)
        return folder

    return make


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a package's script in real bash, from another folder, with the given environment only."""

    def run(script: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        plain = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return subprocess.run(
            ["bash", str(script), *args], cwd=tmp_path, env=plain | env, capture_output=True, text=True, check=False
        )

    return run
