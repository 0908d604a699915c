"""What a command writes over: nothing that it did not write itself, wherever it is told to write."""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploykit.errors import PackageError, UsageError
from deploykit.packages.placing import RESULTS, publish_results, tidy
from victims import AIMET, MODEL, run_here

Command = tuple[str, ...]
Told = list[str]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def results(out: Path, text: str, *, force: bool = False) -> None:
    def fill(folder: Path) -> dict[str, object]:
        (folder / "a.txt").write_text(text)
        return {"schema": 1}

    publish_results(out, fill, force=force)


@pytest.mark.parametrize("change", ["added", "changed", "report", "link", "closed"])
def test_results_with_something_of_the_users_are_kept(change: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    results(out, "one")
    match change:
        case "added":
            (out / "notes.txt").write_text("mine")
        case "changed":
            (out / "a.txt").write_text("mine")
        case "report":
            (out / "report.json").write_text((out / "report.json").read_text().replace("1", "2"))
        case "link":
            (out / "a.txt").unlink()
            (out / "a.txt").symlink_to(MODEL)
        case _:
            deep = out
            for _ in range(40):
                deep = deep / ("d" * 200)
            _make_deep(deep)
    with pytest.raises(PackageError, match="was kept"):
        results(out, "two", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    _remove_deep(out)


def test_what_no_disk_takes_back_is_kept_for_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, renamed = tmp_path / "out", Path.rename
    results(out, "one")
    before = content(out)

    def full(path: Path, to: Path) -> Path:
        if path != out:
            raise OSError(errno.ENOSPC, "No space left on device")
        return renamed(path, to)

    with monkeypatch.context() as patch, pytest.raises(PackageError, match="stood there is kept beside it"):
        patch.setattr(Path, "rename", full)
        results(out, "two", force=True)
    assert not out.exists()
    assert tidy(out, print, RESULTS) and content(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_results_are_whole_or_as_they_were(tmp_path: Path) -> None:
    out = tmp_path / "out"
    results(out, "one")
    before = content(out)

    def fails(folder: Path) -> dict[str, object]:
        (folder / "a.txt").write_text("two")
        raise OSError(28, "No space left on device")

    with pytest.raises(PackageError, match="cannot be written"):
        publish_results(out, fails, force=True)
    assert content(out) == before
    results(out, "two", force=True)
    assert (out / "a.txt").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_results_that_were_set_aside_are_put_back(tmp_path: Path) -> None:
    results(tmp_path / ".out.deploykit-dead" / "old", "one")
    with pytest.raises(PackageError, match="exists and was kept"):
        results(tmp_path / "out", "two")
    assert (tmp_path / "out" / "a.txt").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_baseline_replaces_only_its_like(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    assert run_here("check", MODEL, "--target", "sm8650", "--write-baseline", mine).status == 3
    assert mine.read_text() == "mine"
    for _ in range(2):
        assert run_here("check", MODEL, "--target", "sm8650", "--write-baseline", tmp_path / "baseline").status == 0


def test_weights_beside_a_model_are_not_replaced_unasked(tmp_path: Path) -> None:
    from deploykit.encodings.files import apply_encodings
    from deploykit.encodings.lpbq_files import convert_file

    data = tmp_path / "out.onnx.data"
    data.write_text("mine")
    blocks = AIMET / "mlp" / "bq-w4a16.qdq.onnx"
    with pytest.raises(PackageError, match="exists and was kept"):
        convert_file(blocks, tmp_path / "out.onnx")
    with pytest.raises(PackageError, match="exists and was kept"):
        apply_encodings(MODEL, AIMET / "cnn" / "w8a8.v1.0.0.encodings", tmp_path / "out.onnx")
    onnx.save(onnx.load(blocks), tmp_path / "m.onnx", save_as_external_data=True, location=data.name, size_threshold=0)
    before = content(tmp_path)
    with pytest.raises(UsageError, match="of the model itself"):
        convert_file(tmp_path / "m.onnx", tmp_path / "out.onnx", force=True)
    assert content(tmp_path) == before


@pytest.mark.parametrize("inside", ["notes/mine.txt", "old/mine.txt", "mine.txt"])
def test_a_folder_that_is_only_named_like_a_leftover_is_kept(inside: str, tmp_path: Path) -> None:
    """Whatever else was called ``.out.deploykit-…`` beside the place was removed as left by a dead run."""
    mine = tmp_path / ".out.deploykit-backup" / inside
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    told: Told = []
    assert not tidy(tmp_path / "out", told.append)
    assert mine.read_text() == "mine"
    assert not (tmp_path / "out").exists()
    assert "is kept" in told[0]


def _make_deep(path: Path) -> None:
    """A folder whose name is longer than the system takes at once."""
    here = Path.cwd()
    try:
        os.chdir(Path(*path.parts[:-40]))
        for part in path.parts[-40:]:
            Path(part).mkdir()
            os.chdir(part)
        Path("mine.txt").write_text("mine")
    finally:
        os.chdir(here)


def _remove_deep(path: Path) -> None:
    shutil.rmtree(path)


def test_a_folder_too_deep_to_look_into_is_named(cnn: Command, package: Path) -> None:
    """Passed over, it hid any number of files from ``verify``, and ``--force`` deleted them."""
    out = package
    _make_deep(Path(out, *["d" * 200] * 40))
    for words in (("verify", str(out)), (*cnn, str(out), "--force")):
        ending = run_here(*words)
        assert ending.status == 6, ending.output
        assert "dddd" in ending.output
    assert out.exists()
    _remove_deep(out)


def test_references_are_read_as_carefully_as_samples(tmp_path: Path) -> None:
    """They went through NumPy's own reader: exit 70 for damaged ones, and a pipe was waited on."""
    from deploykit.accuracy.judge.metric import user_metric
    from deploykit.errors import InputError

    outputs = [{"y": np.zeros(2, np.float32)}]
    np.savez(tmp_path / "good.npz", y=np.zeros((1, 2), np.float32))
    whole = (tmp_path / "good.npz").read_bytes()
    (tmp_path / "bad.npz").write_bytes(whole[: len(whole) // 2])
    os.mkfifo(tmp_path / "pipe.npz")
    for name in ("bad.npz", "pipe.npz"):
        metric = user_metric("math:prod", references=tmp_path / name)
        assert metric is not None
        with pytest.raises(InputError, match=name):
            metric.measure(outputs, outputs)
