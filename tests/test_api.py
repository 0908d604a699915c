"""Every command is one call of the Python API, and importing it costs nothing."""

import inspect
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import deploykit
from deploykit.cli import cli
from deploykit.errors import DeploykitError, InputError, PackageError, UnknownTargetError
from tables import each_row

NOT_ONE_CALL = {"accuracy", "encodings", "toolchain", "demo"}
"""Groups of several functions, and the demo."""


def test_every_command_has_its_function() -> None:
    commands = set(cli.list_commands(None))  # type: ignore[arg-type]
    assert commands - NOT_ONE_CALL <= set(deploykit.__all__)


def test_importing_costs_nothing_and_a_function_is_one_even_after_its_module_was_imported() -> None:
    code = (
        "import contextlib, importlib, sys, deploykit\n"
        "assert set(deploykit.__all__) <= set(dir(deploykit)) and 'deploykit.api' not in sys.modules\n"
        "assert not {'numpy', 'onnx', 'onnxruntime', 'click'} & set(sys.modules)\n"
        "for name in deploykit.__all__:\n"
        "    with contextlib.suppress(ModuleNotFoundError): importlib.import_module(f'deploykit.{name}')\n"
        "    made = getattr(deploykit, name)\n"
        "    assert callable(made) and made.__doc__, name"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_no_function_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'pack'"):
        deploykit.pack  # type: ignore[attr-defined] # noqa: B018


@each_row("name", "package", "plan", "check", "audit")
def test_help_names_the_keywords_of_a_request(name: str) -> None:
    """An editor shows them by name, from the annotation; those of backends are open."""
    page = pydoc.plain(pydoc.render_doc(getattr(deploykit, name)))
    assert "**request: 'Unpack[RequestOptions]'" in page


@each_row(("asked", "level"), ({}, "full"), ({"kernels": "quick"}, "quick"), ({"kernels": "auto"}, "auto"))
def test_an_audit_is_as_wide_as_asked(asked: Any, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command is this function, so that no test of what is typed tells."""
    seen = list[Any]()
    monkeypatch.setattr("deploykit.flow.pipeline.audit", lambda *given, **named: seen.append((*given, named)))
    deploykit.audit("m.onnx", target="sm8650", sdk="2.51", progress=print, **asked)
    ((request, named),) = seen
    assert (request.target, request.sdk, named) == ("sm8650", "2.51", {"level": level, "progress": print})


REFUSED: dict[str, tuple[type[DeploykitError], Callable[[], object]]] = {
    "advise": (InputError, lambda: deploykit.advise("absent.toml")),
    "audit": (DeploykitError, lambda: deploykit.audit("absent.onnx", target="sm8650")),
    "build": (PackageError, lambda: deploykit.build("absent")),
    "check": (InputError, lambda: deploykit.check("absent.onnx", target="sm8650")),
    "compat": (UnknownTargetError, lambda: deploykit.compat(target="no-chip")),
    "diagnose": (InputError, lambda: deploykit.diagnose("absent.log")),
    "evaluate": (InputError, lambda: deploykit.evaluate("absent", "absent2")),
    "explain": (PackageError, lambda: deploykit.explain("absent")),
    "init": (InputError, lambda: deploykit.init("absent", targets=["sm8650"])),
    "ladder": (InputError, lambda: deploykit.ladder("absent.onnx")),
    "locate": (InputError, lambda: deploykit.locate("absent.onnx", "other.onnx")),
    "locate_on": (PackageError, lambda: deploykit.locate_on("absent", on="local")),
    "lpbq": (InputError, lambda: deploykit.lpbq("absent.onnx", "out")),
    "matrix": (InputError, lambda: deploykit.matrix("absent.toml", out="out")),
    "mix": (InputError, lambda: deploykit.mix("absent.onnx", goal="sqnr>=30")),
    "package": (UnknownTargetError, lambda: deploykit.package("absent.onnx", target="no-chip", out="out")),
    "plan": (InputError, lambda: deploykit.plan("absent.onnx", target="sm8650")),
    "quantize": (InputError, lambda: deploykit.quantize("absent.onnx", target="sm8650", calibration="absent", out="o")),
    "run": (PackageError, lambda: deploykit.run("absent", on="local")),
    "sensitivity": (InputError, lambda: deploykit.sensitivity("absent.onnx")),
    "simulate": (InputError, lambda: deploykit.simulate("absent.onnx", "absent.encodings")),
    "split": (InputError, lambda: deploykit.split(["absent.onnx"], "out", parts=2)),
    "verify": (PackageError, lambda: deploykit.verify("absent")),
}


@each_row("name", *deploykit.__all__)
def test_a_function_says_what_it_raises_and_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = inspect.getdoc(getattr(deploykit, name)) or ""
    if name not in REFUSED:
        assert "Raises nothing" in told
        return
    kind, call = REFUSED[name]
    with pytest.raises(kind, match=r"absent|no-chip"):
        call()
    assert any(base.__name__ in told for base in kind.__mro__) or "raises as for ``package``" in told
