"""What is typed arrives: what the work of each command is given, and what each option that it has changes of that."""

import contextlib
import io
import shlex
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import click
import onnx
import pytest
from msgspec.structs import asdict

from deploykit.cli import cli
from deploykit.cli.frame import run
from graph_questions import graph
from told import check_file

DOORS = """accuracy.judge.compare: evaluate; accuracy.search.layer_losses: analyze_files; devices.run: run_package
accuracy.search.locate: locate_files; accuracy.simulate.simulation: simulate_files; answers.diagnosis: diagnose_log
answers.precision_advice: advise_on; cli.compat: ask compare; cli.toolchain: install; devices.locating: locate_on
encodings.files: show_encodings check_encodings convert_encodings diff_encodings apply_encodings extract_encodings
encodings.lpbq_files: convert_file; fleet.running: run_matrix emit; flow.quantizing.command: quantize
flow.candidates: simulated_ladder mix_files; flow.pipeline: make_packages make_plan check audit
packages.building: build_package; packages.verifying: verify_package"""
FORMS = {"target": "sm8650", "sdk": "2.33", "budget": "5m", "mixed": "refuse", "max_p90": "5ms", "on": "adb"}
FORMS |= {"metric": "s:f", "own": "a=1", "input": "x=0..1", "accuracy": "w8a8=0.5", "max_time": "5ms"}


class Arrived(BaseException):
    """At a function that would have worked."""


def note(name: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise Arrived({"at": name, **kwargs, **{str(at): one for at, one in enumerate(args)}})


def parts(value: Any, name: str) -> Iterator[tuple[str, str]]:
    value = asdict(value) if hasattr(value, "__struct_fields__") else value
    value = value["name"] if isinstance(value, dict) and "stages" in value else value
    if isinstance(value, dict | list | tuple):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from parts(one, f"{name}.{key}")
    elif value not in (None, "", frozenset()) and not callable(value):
        yield name[1:], str(value)[:60]


def arrived(line: str) -> dict[str, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            run(cli, shlex.split(line))
        except Arrived as there:
            return dict(islice(parts(there.args[0], ""), 20))
    return {"said": " ".join(out.getvalue().split())[:200]}


def options(line: str) -> Iterator[str]:
    found: Any = cli
    for word in line.split():
        inside = found.get_command(click.Context(found), word) if isinstance(found, click.Group) else None
        found = inside or getattr(found, "branches", {}).get(word, found)
    for one in (one for one in found.params if isinstance(one, click.Option) and one.expose_value):
        names = one.secondary_opts if one.default is True else one.opts
        usual = "3" if one.type.name.startswith(("int", "float")) else [*getattr(one.type, "choices", ["m.onnx"])][-1]
        value = "" if one.is_flag else FORMS.get(str(one.name), usual)
        yield f"{max(names, key=len)} {value}".strip()
        step = 1 if one.type.name.startswith("int") else 0.01
        ends = ((getattr(one.type, "min", None), -step), (getattr(one.type, "max", None), step))
        at = (f"{each:.8g}" for end, beyond in ends if end is not None for each in (end, end + beyond))
        yield from (f"{max(names, key=len)} {each}" for each in at)


def answer(line: str) -> Iterator[str]:
    yield f"  {'; '.join(map(' '.join, (base := arrived(line)).items()))}"
    for option in (one for one in options(line) if one.split()[0] not in line.split()):
        more = arrived(f"{line} {option}")
        lost = [f"no {key}" for key in base if key not in more and "said" not in more]
        changed = [f"{key} {one}" for key, one in more.items() if base.get(key) != one]
        yield f"  {option}: {'; '.join(lost + changed)}".rstrip()


def test_every_option_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in (line.split(": ") for line in DOORS.replace("\n", "; ").split("; ")):
        for name in names.split():
            monkeypatch.setattr(f"deploykit.{module}.{name}", partial(note, name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DEPLOYKIT_MEMORY", "1G")
    onnx.save(graph("(float[1,4] x) => (float[1,4] y) { y = Relu (x) }").proto, "m.onnx")
    Path("m.toml").write_text("[models.a]\npath = 'm.onnx'\n[targets.phone]\ndevice = 'sm8650'\n")
    check_file(Path(__file__).with_name("arriving.told"), answer)
