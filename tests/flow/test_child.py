"""What a quantizer's script is given in its child process, and what it leaves."""

import json
import logging
import sys
import types
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploykit.flow.quantizing.child import ChildJob, main, tell, with_room
from tables import each_row


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A job with three samples and one that is held out; loggers are as before afterwards."""
    for name, values in (("samples/00002", 2), ("samples/00000", 0), ("samples/00001", 1), ("held_out/00000", 7)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.savez(tmp_path / f"{name}.npz", x=np.full(2, values, np.float32))
    given_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    make = logging.getLogRecordFactory()
    yield tmp_path
    logging.setLogRecordFactory(make)


def given_job(folder: Path, **images: Any) -> None:
    told = {"settings": {"method": "minmax"}, "images": images or None}
    (folder / "job.json").write_text(json.dumps(told), "utf-8")


def done(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text("utf-8"))
    return found


@each_row(
    ("one", "other", "range_"),
    ((0.0, 4.0), (-1.0, 5.0), (-2.0, 6.0)),
    ((-1e4, 4.0), (-1e4, 9.0), (-1e4, 14.0)),
    ((0.0, 1.0), (0.0, 1.0), (0.0, 1.0)),
    ((3.0, 6.0), (1.0, 5.5), (0.0, 6.5)),
    ((-3.0, -2.5), (-3.0, -1.0), (-3.0, 0.0)),
    ((-np.inf, 1.0), (-np.inf, np.inf), (-np.inf, np.inf)),
)
def test_an_end_that_halves_of_the_samples_do_not_share_has_room(one: Any, other: Any, range_: Any) -> None:
    assert with_room(one, other) == with_room(other, one) == range_


def progress(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, int | None, int | None]]:
    told = map(json.loads, capsys.readouterr().out.splitlines())
    return [(line["progress"], line["done"], line["of"]) for line in told]


def test_the_work_is_accounted_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def work(job: ChildJob) -> None:
        assert (job.settings, job.model, job.out) == ({"method": "minmax"}, folder / "model.onnx", folder / "out")
        samples = job.calibration
        assert (len(samples), samples[1]["x"].tolist(), [feed["x"][0] for feed in samples[1:]]) == (3, [1, 1], [1, 2])
        assert [feed["x"][0] for feed in samples] == [0, 1, 2]
        assert len(list(samples.named("again"))) == 3 and len(list(samples.named(""))) == 3
        job.stage_done("quantize")
        job.save_simulated(["y", "z"], lambda feed: [feed["x"] * 2, feed["x"]])
        job.result["notes"].append("one was left")
        tell("at the end")

    assert main(work) == 0
    found = done(folder)
    assert list(found.pop("seconds")) == ["quantize"]
    names = ("out/simulated/00000.npz", "out/simulated/names.json")
    outputs = {name: sha256((folder / name).read_bytes()).hexdigest() for name in names}
    assert found == {"versions": {}, "notes": ["one was left"], "ok": True, "outputs": outputs, "errors_logged": []}
    with np.load(folder / "out/simulated/00000.npz") as arrays:
        assert {name: arrays[name].tolist() for name in arrays} == {"v0": [14, 14], "v1": [7, 7]}
    assert json.loads((folder / "out/simulated/names.json").read_text()) == ["y", "z"]
    stages = (("calibrating", 3), ("again", 3), ("simulating", 1))
    lines = [(name, at, of) for name, of in stages for at in range(of + 1)]
    assert progress(capsys) == [*lines, ("at the end", None, None)]


def test_a_failure_is_told_and_so_is_one_that_is_only_logged(folder: Path) -> None:
    own = logging.getLogger("vendor.area")

    def work(job: ChildJob) -> None:
        own.warning("slow")
        own.error("%d ranges are empty", 3)
        raise ValueError("no encodings")

    assert main(work) == 1
    found = done(folder)
    assert (found["ok"], found["error"]) == (False, "ValueError: no encodings") and "outputs" not in found
    assert found["errors_logged"] == ["vendor.area: 3 ranges are empty"]
    assert not (folder / "result.json.part").exists()


def test_pictures_become_samples_by_their_recipe(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def decoded(path: Path, recipe: Any) -> Any:
        if path.name == "none.png":
            raise ImportError("PIL")
        return np.full((1, 2), int(path.stem) * recipe["scale"], np.float32)

    monkeypatch.setitem(sys.modules, "decoding", types.SimpleNamespace(decoded=decoded))
    recipe = {"recipe": {"scale": 10}, "input": "file"}
    given_job(folder, samples=["1.png", "2.png"], held_out=["3.png"], **recipe)

    def work(job: ChildJob) -> None:
        feeds = (*job.calibration[:2], job.held_out[0])
        assert [feed["file"].tolist() for feed in feeds] == [[[10, 10]], [[20, 20]], [[30, 30]]]

    assert main(work) == 0 and list(done(folder)["seconds"]) == ["decode"]
    assert progress(capsys) == [("decoding images", 0, 2), ("decoding images", 1, 2), ("decoding images", 0, 1)]
    given_job(folder, samples=["none.png"], held_out=[], **recipe)
    assert main(work) == 1
    assert done(folder)["error"] == "RuntimeError: images need Pillow here (pip install pillow); or give .npz samples"
