"""Names as weapons against whoever opens a page or reads a terminal, templates as weapons against whoever uses them."""

import shutil
import subprocess
import sys
from pathlib import Path

import click
import onnx
import pytest

from deploykit.cli.terminal import defused, plain
from deploykit.report.rendering import markdown_text
from tables import each_row
from terminals import on_a_terminal
from victims import AIMET, run_here

Command = tuple[str, ...]
NAME = (
    "<script>document.title='pwned'</script><img src=x onerror=document.title='pwned'>\u202e\x1b[31m`$(touch pwned)`"
    "'\"; touch pwned; $(New-Item pwned) {{ 7 * 7 }} </style></title>\u2028 javascript:alert(1)"
)


@pytest.fixture(scope="module")
def armed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of a model whose every node and tensor has a weapon for a name."""
    folder = tmp_path_factory.mktemp("armed")
    model = onnx.load(AIMET / "cnn" / "model.onnx")
    for node in model.graph.node:
        node.name = f"{node.name}{NAME}"
        for place, name in enumerate(node.output):
            if name not in {item.name for item in model.graph.output}:
                node.output[place] = f"{name}{NAME}"
        for place, name in enumerate(node.input):
            if any(name in other.output or f"{name}{NAME}" in other.output for other in model.graph.node):
                node.input[place] = f"{name}{NAME}"
    onnx.save(model, folder / "m.onnx")
    target = ("--target", "sm8650", "--sdk", "2.33", "--precision", "fp16", "--no-compile")
    ending = run_here("package", folder / "m.onnx", *target, "-o", folder / "out", cwd=folder)
    assert ending.status in (0, 1), ending.output
    assert (folder / "out").is_dir(), ending.output
    return folder


def test_pages_hold_names_as_text(armed: Path) -> None:
    for name in ("README.md", "report.html"):
        text = (armed / "out" / name).read_text("utf-8")
        assert "<script>document" not in text and "<img src=x" not in text
        assert "\x1b" not in text and "\u202e" not in text
    assert not list(armed.rglob("pwned"))


PARSE = """
$errors = $null
[void][System.Management.Automation.Language.Parser]::ParseFile($args[0], [ref]$null, [ref]$errors)
exit $errors.Count
"""


@pytest.mark.skipif(shutil.which("pwsh") is None, reason="PowerShell is not installed")
def test_powershell_reads_what_is_written_for_it(tmp_path: Path) -> None:
    """A package for a machine that runs Windows, of a model whose file has a weapon for a name."""
    model = tmp_path / "$(New-Item pwned)';`\".onnx"
    shutil.copy(AIMET / "cnn" / "model.onnx", model)
    ending = run_here("package", model, "--target", "strix", "--no-compile", "-o", tmp_path / "out", cwd=tmp_path)
    assert ending.status in (0, 1), ending.output
    scripts = sorted((tmp_path / "out" / "scripts").glob("*.ps1"))
    assert scripts
    for script in scripts:
        done = subprocess.run(["pwsh", "-NoProfile", "-Command", PARSE, script], check=False)
        assert done.returncode == 0
    assert not list(tmp_path.rglob("pwned"))


def test_markdown_takes_no_html() -> None:
    assert markdown_text("<b>&amp;</b>\n# x") == "&lt;b>&amp;amp;&lt;/b>\N{REPLACEMENT CHARACTER}# x"


ESCAPES = (
    "{{ cycler.__init__.__globals__.os.popen('touch pwned').read() }}",
    "{{ plan.__class__.__mro__[-1].__subclasses__() }}",
)


@pytest.mark.parametrize("text", ESCAPES)
def test_templates_do_not_leave_their_sandbox(text: str, cnn: Command, tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "README.md.j2").write_text(text)
    ending = run_here(*cnn, tmp_path / "out", "--templates", tmp_path / "templates", cwd=tmp_path)
    assert ending.status == 2, ending.output
    assert "README.md.j2" in ending.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["templates"]


def test_a_template_of_the_users_still_works(cnn: Command, tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "README.md.j2").write_text("{{ model_name | upper }}: {{ plan.route.id }}\n")
    ending = run_here(*cnn, tmp_path / "out", "--templates", tmp_path / "templates", cwd=tmp_path)
    assert ending.status == 0, ending.output
    assert (tmp_path / "out" / "README.md").read_text().startswith("MODEL.ONNX: ")


def test_a_link_out_of_the_calibration_folder_is_refused(cnn: Command, tmp_path: Path) -> None:
    folder = tmp_path / "calibration"
    folder.mkdir()
    shutil.copy(AIMET / "cnn" / "w8a8.io.npz", tmp_path / "elsewhere.npz")
    (folder / "sample.npz").symlink_to(tmp_path / "elsewhere.npz")
    ending = run_here(*cnn, tmp_path / "out", "--calibration", folder)
    assert ending.status == 3, ending.output
    assert "sample.npz" in ending.output


SPOOF = "x\x1b[2J\x1b[Hok      files-no-extra: no file beside the recorded ones\nok      digest-expected"


def shown(*words: str | Path) -> bytes:
    """What a command writes to a terminal, byte by byte."""
    return on_a_terminal([sys.executable, "-m", "deploykit", *map(str, words)], COLUMNS="200")[1]


def test_a_name_cannot_turn_a_problem_into_ok(package: Path) -> None:
    out = package
    (out / SPOOF.replace("/", "")).write_text("planted")
    written = shown("verify", out)
    assert b"\x1b[2J" not in written and b"\x1b[H" not in written
    assert not [line for line in written.splitlines() if line.startswith(b"ok      digest-expected")]
    assert b"\\x1b[2J" in written
    assert b"\x1b[31m" in written  # its own words are still coloured


@each_row("text", "a\x1b]0;x\x07b", "a\x9b31mb", "a\u202eb", "a\rb", "a\x08b", "a\x1b[8mb", "a\udce9b")
def test_what_a_terminal_obeys_is_shown(text: str) -> None:
    for shown in (plain(text), defused(text)):
        assert shown.isprintable() and shown.startswith("a") and shown.endswith("b")


def test_words_of_the_commands_stay_as_they_are() -> None:
    text = f"{click.style('problem', fg='red', bold=True)}: a\n\tb é"
    assert defused(text) == text
    assert plain("a\nb") == "a\\nb"
