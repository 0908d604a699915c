"""Options on the command line: whose they are in the help, a third party's, foreign ones, environment variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run

SNAPSHOTS = Path(__file__).parents[1] / "data" / "help"
THIRD_PARTY = """
from deploykit.backend.options import OptionSpec
from deploykit_qnn_htp.backend import QnnHtp

backend_of_the_family = QnnHtp()

class Fourth(QnnHtp):
    id = "fourth"

    def devices(self):
        return backend_of_the_family.devices()

    def resolve(self, device, sdk):
        return backend_of_the_family.resolve(device, sdk)

    def options(self):
        own = OptionSpec(name="tile_size", kind="integer", low=8, high=64, default=16, since="9.1",
                         help="Edge of a tile.")
        route, *_ = super().options()
        return (own, route)

backend = Fourth()
"""


@pytest.fixture
def third_party(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has a fourth backend installed, with an option of its own and a shared one."""
    (tmp_path / "fourth_backend.py").write_text(THIRD_PARTY)
    info = tmp_path / "fourth-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fourth\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[deploykit.backends]\nfourth = fourth_backend:backend\n")
    path = os.pathsep.join([str(tmp_path), *(entry for entry in sys.path if entry)])
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "80"}


def calls(env: dict[str, str], *lines: tuple[str, ...]) -> list[tuple[int, str]]:
    """Command lines in a process of their own: the status of each, and what it says."""
    code = (
        "import io, json\n"
        "from contextlib import redirect_stderr, redirect_stdout\n"
        "from deploykit.cli import cli; from deploykit.cli.frame import run\n"
        "told = []\n"
        f"for line in {lines!r}:\n"
        "    with redirect_stdout(io.StringIO()) as said, redirect_stderr(said):\n"
        "        status = run(cli, list(line))\n"
        "    told.append((status, said.getvalue()))\n"
        "print(json.dumps(told))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, encoding="utf-8", check=True)
    return [(status, said) for status, said in json.loads(done.stdout)]


@pytest.mark.parametrize("command", ["package", "check"])
def test_help_is_as_it_was_once_read(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """After a change that is wanted: ``DEPLOYKIT_WRITE_GOLDEN=1 pytest tests/cli``, then read the difference."""
    assert run(cli, [command, "--help"]) == 0
    shown = capsys.readouterr().out
    file = SNAPSHOTS / f"{command}.txt"
    if os.environ.get("DEPLOYKIT_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown, "utf-8")
    assert shown.split() == file.read_text("utf-8").split()  # where lines break is click's business


def test_a_third_partys_options_appear_by_themselves_and_are_checked(third_party: dict[str, str]) -> None:
    plan = ("check", "--plan", "absent.onnx", "--target", "sm8650", "--sdk", "2.33")
    (_, shown), (_, own), (_, plain), wrong, foreign, right = calls(
        third_party,
        ("check", "--help-backend", "all"),
        ("package", "--help-backend", "fourth"),
        ("check", "--help"),
        (*plan, "--backend", "fourth", "--tile-size", "65"),
        (*plan, "--tile-size", "8"),
        (*plan, "--backend", "fourth", "--tile-size", "8"),
    )
    assert "Options of fourth:\n  --tile-size N" in shown.replace("--tile-size INTEGER", "--tile-size N")
    assert "Edge of a tile.  [default: 16; since" in shown
    assert "Options of fourth and qnn-htp:\n  --route ID" in shown
    assert shown.count("--route") == 1
    assert "--tile-size" in own and "--route" in own and "--lpbq" not in own
    assert "--tile-size" not in plain
    assert wrong[0] == 2 and "a whole number from 8 to 64" in wrong[1]
    assert foreign[0] == 2 and "it is an option of fourth" in foreign[1]
    assert right[0] == 3 and "absent.onnx" in right[1]


def test_an_environment_variable_is_an_option_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["check", "--plan", "absent.onnx", "--sdk", "2.33"]
    monkeypatch.setenv("DEPLOYKIT_TARGET", "sm8650")
    assert run(cli, plan) == 3
    monkeypatch.setenv("DEPLOYKIT_LPBQ", "1")
    assert run(cli, plan) == 2
    assert "leave it out (and DEPLOYKIT_LPBQ)" in capsys.readouterr().err
    monkeypatch.delenv("DEPLOYKIT_LPBQ")
    monkeypatch.setenv("DEPLOYKIT_CHECK_MAX_SEGMENTS", "0")
    assert run(cli, plan) == 2
    assert "--max-segments 0" in capsys.readouterr().err


def test_what_is_typed_reaches_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    import deploykit.flow.pipeline
    from deploykit.backend.backend import Request
    from deploykit.errors import ToolError

    seen: list[Request] = []

    def stop(request: Request) -> None:
        seen.append(request)
        raise ToolError("seen")

    monkeypatch.setattr(deploykit.flow.pipeline, "make_plan", stop)
    words = ["--input", "x=0..1", "--input", "y=y.npy", "--no-samples", "--no-input-list", "--option", "a=b=c"]
    assert run(cli, ["check", "--plan", "m.onnx", "--target", "t", *words, "--exclude-node", "n"]) == 5
    assert run(cli, ["check", "--plan", "m.onnx", "--target", "t"]) == 5
    given, bare = seen
    assert given.inputs == ("x=0..1", "y=y.npy")
    assert given.keep_samples is False
    assert given.options == (("a", "b=c"),)
    assert given.adapter_options == {"input_list": False, "exclude_node": ("n",)}
    assert bare == Request(model=Path("m.onnx"), target="t")
