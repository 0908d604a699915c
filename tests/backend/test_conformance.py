"""What every backend has: plugins that are found, registries, cases of rules, and values of stages."""

import builtins
import importlib
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest
from msgspec.structs import replace

import deploykit
import deploykit_ort_qnn
import deploykit_qnn_htp
import deploykit_qualcomm
import deploykit_vitis_ai
from deploykit.answers.rule_pages import all_rules
from deploykit.backend import conformance, plugins
from deploykit.backend.backend import Request, SharedWork
from deploykit.backend.conformance import backend_problems, package_problems
from deploykit.backend.opinions import Compiler
from deploykit.backend.options import OptionSpec
from deploykit.backend.plans import Plan, Step
from deploykit.backend.plugins import backend_ids, load_backend
from deploykit.errors import ToolError
from deploykit.findings import Confidence
from deploykit.findings.rules import Registry
from deploykit.flow.read import read_situation
from deploykit.flow.rules import core_registries
from deploykit.tables.devices import Device, Fact
from deploykit_qualcomm.rules.registries import CONVERTERS, PROVIDER, SHARED
from rule_cases import cases
from stub_backend import ROW, StubBackend
from tables import each_row

DATA = Path(__file__).parents[1] / "data"
MLP = {"model": DATA / "aimet/mlp/model.onnx", "encodings": DATA / "aimet/mlp/w8a16.v1.0.0.encodings"}
PACKAGES: dict[str, dict[str, Any]] = {
    "qnn-htp": {**MLP, "target": "sm8650", "sdk": "2.33"},
    "ort-qnn": {**MLP, "target": "sm8550"},
    "vitis-ai": {"model": DATA / "quark/fp32.onnx", "target": "vek385", "precision": "bf16"},
}


@pytest.mark.parametrize("backend_id", backend_ids())
def test_a_backend_holds_the_contract(backend_id: str) -> None:
    assert backend_problems(backend_id) == ()


@pytest.mark.parametrize("backend_id", backend_ids())
def test_its_packages_hold_it_too(backend_id: str, tmp_path: Path) -> None:
    make = partial(deploykit.package, backend=backend_id, **PACKAGES[backend_id])
    assert package_problems(make, deploykit.verify, tmp_path) == ()
    assert (tmp_path / "first" / "manifest.json").is_file()


NOTED = Registry[Any](scope="model", sources=("a test",))
AGAIN = Registry[Any](scope="model", sources=("a test",))
for registry in (NOTED, AGAIN):
    registry.rule("BAD001", "bad", "error")(lambda _: ())


CORES = ("force", "no_way")


class Careless(StubBackend):
    """Everything that a backend can get wrong before it has seen a model."""

    summary = ""

    def compat(self) -> tuple[Any, ...]:
        return (ROW, replace(ROW, feature="f", tool="t", source=()))

    def devices(self) -> tuple[Device, ...]:
        about: dict[str, Any] = {"schema": 1, "name": "", "vendor": ""}
        facts = {"arch": Fact(value="v1", source=(), confidence=Confidence.REPORTED)}
        return (Device(id="D", backends=(), facts=facts, **about), *[Device(id="d", backends=("stub",), **about)] * 2)

    def compilers(self, device: Device, sdk: str) -> tuple[Compiler, ...]:
        return () if device.id == "D" else (Compiler(name="c"),)

    def options(self) -> tuple[OptionSpec, ...]:
        effort = OptionSpec("effort", "choice", help="h", default="high", choices=("low",))
        core = (OptionSpec(CORES[0], "flag", help="h"), OptionSpec(CORES[1], "choice", help="h"))
        return (OptionSpec("no_Way", "flag", help=""), effort, OptionSpec("parts", "flag", help="h"), *core)

    def registries(self) -> tuple[Registry[Any], ...]:
        return NOTED, AGAIN


def test_a_careless_backend_is_told_all_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "hasty", "[deploykit.backends]\nhasty = hasty:backend\n")
    (tmp_path / "hasty.py").write_text("import numpy\nfrom deploykit_vitis_ai import backend\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), os.pathsep)
    assert backend_problems("hasty") == ("id 'vitis-ai' is not the entry point's name", "importing it imports numpy")
    monkeypatch.setattr(conformance, "load_backend", lambda _: Careless())
    *told, unknown = backend_problems("lost")
    assert unknown.startswith("cannot be imported on its own: ") and "unknown backend 'lost'" in unknown
    assert told == [
        "id 'stub' is not the entry point's name",
        "no summary",
        "compat row f t: no source or confidence",
        "device d: twice",
        "device D: not lower case",
        "device D: does not name this backend",
        "device D: arch has no source",
        "compilers for D: none, and not why",
        *["compiler for d: a name and a release are needed, or why there is none"] * 2,
        "option no_Way: lower case with underscores, without no_, and no name of the core's",
        "option no_Way: a help text is needed, and choices for a choice only",
        "option effort: the default is wrong: --effort high: one of low is expected",
        "option parts: another backend has it as integer; take another name",
        *[
            f"option {name}: lower case with underscores, without no_, and no name of the core's"
            for name in ("force", "no_way")
        ],
        "option no_way: a help text is needed, and choices for a choice only",
        *["rule BAD001: what, why, fix and sources are all needed"] * 2,
        "rule BAD001: twice",
    ]
    assert next(conformance._devices(StubBackend())) == "no devices"


STEPS = (Step(id="build", tool="tool", argv=("/bin/tool",)), Step(id="go", tool="", argv=(), where="moon"))
PLAN: Plan[None] = Plan(backend="stub", target={}, sdk={}, route=None, steps=STEPS)
ALWAYS = ("step build: absolute path /bin/tool", "step go: host or device, a tool and an argv are needed")


@each_row(
    ("files", "first", "told"),
    ({}, {}, ("report.html is missing",)),
    ({}, {"plan": replace(PLAN, backend="other")}, ("report.html is missing", "two plans of one request differ")),
    ({}, {"package": None}, ("no package and no exit status 1",)),
    ({}, {"package": None, "exit_status": 1}, ()),
    ({"report.html": "1"}, {}, ("two packages of one request have other files",)),
    ({"README.md": "2"}, {}, ("README.md: two packages of one request differ", "report.html is missing")),
)
def test_wrong_packages(files: dict[str, str], first: dict[str, Any], told: tuple[str, ...], tmp_path: Path) -> None:
    def make(*, out: Path, **_: object) -> Any:
        out.mkdir()
        again = out.name == "first"
        for name, text in ({"README.md": "1"} | (files if again else {})).items():
            (out / name).write_text(text, "utf-8")
        made = {"plan": PLAN, "package": out, "exit_status": 0}
        return SimpleNamespace(**made | (first if again else {}))

    found = package_problems(make, lambda _: SimpleNamespace(checks=()), tmp_path)
    assert sorted(found) == sorted((*ALWAYS, "no route, and no finding says why", *told))


@each_row(
    ("module", "what", "why"),
    ("1 / 0", "backend 'lost' cannot be imported", "ZeroDivisionError: division by zero"),
    ("", "backend 'lost' cannot be imported", "AttributeError: module 'lost' has no attribute 'backend'"),
    ("backend = 1", "backend 'lost' is no backend", "lost:backend is no object of a subclass of deploykit.backend."),
)
def test_a_broken_backend_takes_no_other_down(module: str, what: str, why: str, tmp_path: Path) -> None:
    install(tmp_path, "lost", "[deploykit.backends]\nlost = lost:backend [extra]\n")
    (tmp_path / "lost.py").write_text(module, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        patch.delitem(sys.modules, "lost", raising=False)
        plugins._entry_points.cache_clear()
        assert "lost" in backend_ids()
        with pytest.raises(ToolError) as broken:
            load_backend.__wrapped__("lost")
        assert "lost" not in {backend.id for backend in plugins.load_backends.__wrapped__()}
        patch.delitem(sys.modules, "lost", raising=False)
    assert broken.value.what == what and broken.value.why.startswith(why)


@pytest.fixture(autouse=True)
def _looked_for_anew() -> Iterator[None]:
    plugins._entry_points.cache_clear()
    yield
    plugins._entry_points.cache_clear()


def install(folder: Path, package: str, text: str) -> None:
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(text)


NAMESPACES = (
    (deploykit, core_registries()),
    (deploykit_qualcomm, (*SHARED, *CONVERTERS, *PROVIDER)),
    (deploykit_qnn_htp, load_backend("qnn-htp").registries()),
    (deploykit_ort_qnn, load_backend("ort-qnn").registries()),
    (deploykit_vitis_ai, load_backend("vitis-ai").registries()),
)
MADE = re.compile(r"^(\w+)(?:: Registry\[\w+\])? = Registry(?:\[\w+\])?\(", re.MULTILINE)


def registries_in(package: Any) -> Iterator[tuple[str, str]]:
    """Every registry that a module of the package makes: the module's and the variable's name."""
    (folder,) = map(Path, package.__path__)
    for path in sorted(folder.rglob("*.py")):
        module = ".".join((package.__name__, *path.relative_to(folder).with_suffix("").parts))
        for name in MADE.findall(path.read_text("utf-8")):
            yield module, name


@pytest.mark.parametrize(("package", "listed"), NAMESPACES, ids=[package.__name__ for package, _ in NAMESPACES])
def test_every_registry_is_called_rules_and_is_listed(package: Any, listed: tuple[Registry[Any], ...]) -> None:
    made = list(registries_in(package))
    assert made and [(module, name) for module, name in made if not name.endswith("RULES")] == []
    registries = [getattr(importlib.import_module(module), name) for module, name in made]
    assert all(any(registry is entry for entry in listed) for registry in registries)
    assert all(len(registry) for registry in registries), "a registry without a rule"
    assert len(set(map(id, listed))) == len(listed), "a registry is listed twice"


TESTS = Path(__file__).parents[1]


def test_every_rule_has_both_cases_and_their_words_are_written_down() -> None:
    """Every finding of a case with its words, in ``data/rule_cases.toml``; a new case is a new line there."""
    written = tomllib.loads((TESTS / "data/rule_cases.toml").read_text("utf-8"))
    assert {entry.rule.code for entry in all_rules(core_registries())} == set(cases()) == set(written)
    assert [code for code, pair in cases().items() if len(pair) != 2] == [], "(triggering, clean)"


REQUESTS: dict[str, dict[str, Any]] = {
    "qnn-htp": {"target": "sm8650", "sdk": "2.33"},
    "ort-qnn": {"target": "sm8650"},
    "vitis-ai": {"target": "vek385", "precision": "bf16"},
}
MODELS = {
    "with encodings": ("aimet/detr/model.onnx", "aimet/detr/w8a16-fp16mix-omit.v1.0.0.encodings"),
    "float": ("aimet/vit/model.onnx", None),
}


def make_request(backend: str, model: str) -> Request:
    path, encodings = MODELS[model]
    named = None if encodings is None or backend == "vitis-ai" else DATA / encodings
    return Request(model=DATA / path, backend=backend, encodings=named, **REQUESTS[backend])


@pytest.fixture
def no_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every way to a file or to a session leaves its name here and fails."""
    tried: list[str] = []

    def forbidden(name: str) -> Any:
        def fail(*_: object, **__: object) -> Any:
            tried.append(name)
            raise AssertionError(f"{name} while planning")

        return fail

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", forbidden("open"))
        patched.setattr(os, "open", forbidden("os.open"))
        patched.setattr(Path, "open", forbidden("Path.open"))
        patched.setattr(Path, "read_text", forbidden("read_text"))
        patched.setattr(Path, "read_bytes", forbidden("read_bytes"))
        patched.setattr(onnxruntime, "InferenceSession", forbidden("InferenceSession"))
        yield tried


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend_id", REQUESTS)
def test_planning_touches_neither_disk_nor_runtime(backend_id: str, model: str, request: pytest.FixtureRequest) -> None:
    backend, situation = read_situation(make_request(backend_id, model))
    prepared = backend.prepare(situation, SharedWork())
    first = backend.plan(prepared)  # the tables are read by whoever asks first
    tried = request.getfixturevalue("no_world")
    assert backend.plan(prepared).to_json() == first.to_json()
    assert tried == []
