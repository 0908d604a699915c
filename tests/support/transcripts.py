"""Transcripts: what a person types and all that is printed then, in files beside the tests of a room.

    # A title: each one is a test in an empty folder; what stands before the first title is run before each
    $ cat > m.onnx <<END
    <ir_version: 8, opset_import: ["": 17]> g (float[1,4] x) => (float[1,4] y) { y = Erf(x) }
    END
    $ deploykit check m.onnx --target sm8650
    no findings
    $ deploykit check absent.onnx
    ...
    status 3

``cat >`` makes a model of ONNX's text where the name ends with ``.onnx``, samples of JSON where it ends with ``.npy``
or ``.npz``. ``cat`` (of a model: its graph in ONNX's text), ``ls`` and ``rm`` do what they say; ``$DATA`` is
tests/data. ``...`` is any text in a line; alone in a line it is any number of lines. What is printed like a title or a
command is moved by one blank. Behind a title stands a sum of what was made and is not shown
(``sums.py``), or ``...`` where times, or all that is shipped, are in it. After a change that is wanted:
``DEPLOYKIT_WRITE_GOLDEN=1`` with ``-n 0``.
"""

import contextlib
import difflib
import io
import json
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.numpy_helper
import onnx.parser
import onnx.printer
import pytest

from deploykit.cli import cli
from deploykit.cli.frame import Settings, run, settings
from deploykit.findings.records import plain
from sums import files_in, rough, sum_of

DATA = Path(__file__).parents[1] / "data"


def transcripts_of(file: str) -> Callable[..., None]:
    """A test of every title of the transcripts beside a test module."""
    cases = [
        pytest.param(path, number, id=f"{path.stem}: {re.sub(' (~....|[.]{3})$', '', part.splitlines()[0])}")
        for path in sorted(Path(file).parent.glob("*.transcript"))
        for number, part in enumerate(_parts(path)[1:], 1)
    ]

    @pytest.mark.parametrize(("path", "number"), cases)
    def test_transcript(path: Path, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        for name, value in {"COLUMNS": "120", "NO_COLOR": "1", "DATA": str(DATA)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("deploykit.cli.terminal._PATIENCE", math.inf)  # no news, however slow the machine is
        answers = list[Any]()
        monkeypatch.setattr("deploykit.cli.frame.settings", lambda: _noted(answers))
        parts = _parts(path)
        for _ in _typed(parts[0]):
            pass
        said = "".join(_typed(parts[number]))
        made = "\n".join([*answers, *files_in(tmp_path)]).replace(str(DATA), "").replace(str(tmp_path), "")
        total = f" {sum_of(made)}" if made else ""
        said = re.sub(r"(?: ~....| \.\.\.)?$", total, said, count=1, flags=re.MULTILINE)
        if os.environ.get("DEPLOYKIT_WRITE_GOLDEN") and not _is_like(said, parts[number]):
            pairs = _pairs(said, parts[number])
            parts[number] = "".join(f"{old.rstrip()}\n\n" if _is_like(new, old) else new for new, old in pairs)
            path.write_text("# ".join(parts), "utf-8")
        if not _is_like(said, parts[number]):
            expected, printed = parts[number].splitlines(), said.splitlines()
            told = difflib.unified_diff(expected, printed, "expected", "printed", lineterm="", n=1)
            pytest.fail("\n".join([*told, made[:9999]]), pytrace=False)

    return test_transcript


def _noted(answers: list[str]) -> Settings:
    """The settings, as ``emit`` asks for them: what it will print is noted as JSON has it."""
    asking = sys._getframe(2)
    if asking.f_code.co_name == "emit" and (value := asking.f_locals["value"]):
        answers.append(rough(plain(value() if callable(value) else value)))
    return settings()


def _parts(path: Path) -> list[str]:
    """What stands before the first title, then title and commands of each test."""
    return re.split(r"^# ", path.read_text("utf-8"), flags=re.MULTILINE)


def _pairs(said: str, expected: str) -> Iterator[tuple[str, ...]]:
    """Command by command: what is masked stays masked where it is like what is said now."""
    return zip(*(re.split(r"^(?=\$ )", text, flags=re.MULTILINE) for text in (said, expected)), strict=True)


def _is_like(said: str, expected: str) -> bool:
    lines = (expected.rstrip() + "\n").splitlines(keepends=True)
    words = (r"(?:.*\n)*?" if line == "...\n" else re.escape(line).replace(r"\.\.\.", ".*") for line in lines)
    return said.rstrip() == expected.rstrip() or bool(re.fullmatch("".join(words), said.rstrip() + "\n"))


def _typed(part: str) -> Iterator[str]:
    """The part again, with what is printed now below each command, after the comments before it."""
    before, *commands = re.split(r"^\$ ", part, flags=re.MULTILINE)
    yield before
    for command in commands:
        typed, _, rest = command.partition("\n")
        yield f"$ {typed}\n"
        if made := re.fullmatch(r"cat > (\S+) <<END", typed):
            text, end, _ = rest.partition("END\n")
            _write(Path(made[1]), text)
            yield f"{text}{end}\n"
        else:
            printed = _printed(shlex.split(os.path.expandvars(typed)))
            told = printed.replace(str(DATA), "$DATA").replace(str(Path.cwd()), "$PWD")
            told = re.sub(r"[ \t]+$", "", told, flags=re.MULTILINE)
            yield re.sub(r"^(?=[#$] )", " ", told, flags=re.MULTILINE) + "\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".onnx":
        onnx.save(onnx.parser.parse_model(text), path)
    elif path.suffix == ".npy":
        np.save(path, np.array(json.loads(text), np.float32))
    elif path.suffix == ".npz":
        arrays: dict[str, Any] = {name: np.array(value, np.float32) for name, value in json.loads(text).items()}
        np.savez(path, **arrays)
    else:
        path.write_text(text, "utf-8")


def _printed(words: list[str]) -> str:
    shown = io.StringIO()
    match words:
        case ["deploykit", *typed]:
            with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
                status = run(cli, typed)
            return shown.getvalue() + (f"status {status}\n" if status else "")
        case ["cat", name] if name.endswith(".onnx"):
            return _ended(_graph(Path(name)))
        case ["cat", name]:
            return _ended(Path(name).read_text("utf-8"))
        case ["ls", folder]:
            return "".join(f"{path.relative_to(folder)}\n" for path in sorted(Path(folder).rglob("*")))
        case ["rm", name]:
            shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()
            return ""
    raise ValueError(f"a transcript does not know {words}")


def _graph(path: Path) -> str:
    """The graph of a model in ONNX's text form, single numbers in the places of their names, pairs as one."""
    model = onnx.load(path)
    graph = model.graph
    single = {
        tensor.name: _number(onnx.numpy_helper.to_array(tensor)) for tensor in graph.initializer if not tensor.dims
    }
    for node in graph.node:
        node.input[:] = [single.get(name, name) for name in node.input]
        if node.op_type.endswith("tizeLinear") or node.name in node.output:
            node.ClearField("name")
    for tensor in [one for one in graph.initializer if one.name in single]:
        graph.initializer.remove(tensor)
    text = onnx.printer.to_text(model).replace('"', "")
    text = re.sub(r": \w+(?= = )|(?<== ) +", "", text[text.index(">") + 2 :])
    pair = r"(\S+) = (\S*)QuantizeLinear \((\S+), (.*)\)\n +(\S+) = \2DequantizeLinear \(\1, \4\)"
    text = re.sub(pair, r"\1, \5 = \2Pair (\3, \4)", text)
    return re.sub(r" +$", "", re.sub(r"(?<=[}.]), (?=\w+\[)", ",\n    ", text), flags=re.MULTILINE)


def _number(value: Any) -> str:
    return f"{value:.7g}" if value.dtype == np.float32 else f"{value.dtype} {value}"


def _ended(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
