"""The main job over several targets: one package each, model and encodings read once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deploykit.backend.backend import Aids, Execution, MixedSupport, Request, SharedWork, Situation
from deploykit.backend.plans import Plan
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.flow import choose, cure
from deploykit.flow.choose import choose_way
from deploykit.flow.plan import decide
from deploykit.flow.read import read_situation, read_situations
from deploykit.flow.run import execute
from deploykit.model import Model, load_model
from stub_backend import StubBackend
from tables import each_row

CNN = Path(__file__).parents[1] / "data" / "aimet" / "cnn"


def package(out: Path, *targets: str) -> int:
    words = [word for target in targets for word in ("--target", target)]
    encodings = str(CNN / "w8a8.v0.6.1.encodings")
    return run(cli, ["package", str(CNN / "model.onnx"), *words, "--encodings", encodings, "-o", str(out), "--json"])


def test_several_targets_are_several_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[Path] = []

    def recording(path: Path) -> Model:
        read.append(path)
        return load_model(path)

    monkeypatch.setattr("deploykit.flow.read.load_model", recording)
    assert package(tmp_path / "out", "sm8550", "sm8650", "sm8350") == 0
    packages = json.loads(capsys.readouterr().out)["packages"]
    assert [made["target"]["id"] for made in packages] == ["sm8550", "sm8650", "sm8350"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["sm8350", "sm8550", "sm8650"]
    assert read.count(CNN / "model.onnx") == 1


def test_what_does_not_depend_on_the_chip_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for module, name in ((choose, "explore"), (cure, "EncodingsOnGraph")):
        real = getattr(module, name)

        def noted(*args: Any, name: str = name, real: Any = real, **more: Any) -> Any:
            done.append(name)
            return real(*args, **more)

        monkeypatch.setattr(module, name, noted)
    assert package(tmp_path / "one", "sm8650") == 0
    alone = Counter(done)
    assert alone["explore"] == 1
    done.clear()
    assert package(tmp_path / "both", "sm8550", "sm8650") == 0
    assert Counter(done) == alone
    assert contents(tmp_path / "both" / "sm8650") == contents(tmp_path / "one")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_chips_that_mix_in_other_ways_are_explored_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    abilities: list[MixedSupport] = []
    real = choose.explore

    def noted(ground: Any, support: MixedSupport, **more: Any) -> Any:
        abilities.append(support)
        return real(ground, support, **more)

    monkeypatch.setattr(choose, "explore", noted)
    given: dict[str, Any] = {"model": CNN / "model.onnx", "encodings": CNN / "w8a8.v0.6.1.encodings", "sdk": "2.37"}
    # The second has no float16.
    requests = [Request(target=target, backend="qnn-htp", **given) for target in ("sm8650", "sm8350", "sm8550")]
    shared = SharedWork()
    for backend, situation in read_situations(requests):
        choose_way(backend, situation, shared, lambda line: None)
    assert len(abilities) == 2 and abilities[0] != abilities[1]


def test_a_target_that_is_unknown_stops_before_anything_is_written(tmp_path: Path) -> None:
    assert package(tmp_path / "out", "sm8550", "sm9999") == 4
    assert not (tmp_path / "out").exists()


def test_a_precision_that_nobody_asked_for_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["package", str(CNN / "model.onnx"), "--backend", "qnn-htp", "--target", "sm8550", "-o"]
    assert run(cli, [*words, str(tmp_path / "assumed")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "assumed    float16, since neither encodings nor a precision were given" in said
    assert "* **assumed**: float16" in (tmp_path / "assumed" / "README.md").read_text()
    assert run(cli, [*words, str(tmp_path / "asked"), "--precision", "fp16"]) == 0
    assert "assumed" not in capsys.readouterr().out


class Recorder(StubBackend):
    """Notes how many inputs it is given to run."""

    ran = 0

    def execute(self, package: Path, prepared: Situation, plan: Plan[None], aids: Aids) -> Execution:
        self.ran = len(aids.samples().feeds)
        return super().execute(package, prepared, plan, aids)


@each_row(("given", "count"), [((), 1), (("input=0..1",), 8)])
def test_of_made_up_inputs_one_is_run(given: tuple[str, ...], count: int, tmp_path: Path) -> None:
    """An emulator takes minutes for one of some models, and nothing made up judges."""
    backend = Recorder()
    _, situation = read_situation(Request(model=CNN / "model.onnx", target="sm8650", inputs=given))
    execute(backend, decide(backend, situation, SharedWork(), lambda _: None), tmp_path, SharedWork(), lambda _: None)
    assert backend.ran == count
