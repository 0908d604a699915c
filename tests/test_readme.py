"""The README's commands and the CI script say the same, and what the README promises exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deploykit.cli import COMMANDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_two_set_up_commands_stand_as_promised() -> None:
    commands = [line.strip() for line in README.splitlines() if line.startswith("    python3 -m venv")]
    assert commands == [
        "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/deploykit demo",
        "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest",
    ]


def test_the_ci_script_reads_them_from_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    if not script.exists():
        pytest.skip("the source distribution has no CI script")
    text = script.read_text("utf-8")
    assert "README.md" in text
    assert "readme_command 1" in text
    assert "readme_command 2" in text


def test_every_command_the_readme_names_exists() -> None:
    named = set(re.findall(r"deploykit ([a-z]+)\b", README)) & set(COMMANDS)
    assert {"package", "check", "explain", "compat", "targets", "verify", "build", "diagnose"} <= named
    missing = [name for name in named if not (ROOT / "deploykit" / "cli" / f"{name}.py").exists()]
    assert missing == []
