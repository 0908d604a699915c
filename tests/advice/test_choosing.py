"""Advice about the way that was chosen, followed with the whole run: rewrites, mixes, open tensors, samples."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.accuracy.simulate.sessions import Session
from deploykit.rewrites.contract import transform_names
from sample_models.tiny_graphs import TinyGraph

OPEN, CHOICE = "flow/test_open_tensors.py", "flow/test_choice.py"
Way = Callable[[Any], Any]


def detr(bench: Any, name: str = "w8a16", **request: Any) -> Any:
    folder = bench.aimet / "detr"
    encodings = folder / f"{name}.v0.6.1.encodings"
    return bench.ask(folder / "model.onnx", sdk="2.33", encodings=encodings, **request)


def options_in(hint: str, option: str) -> tuple[str, ...]:
    """The values of an option in an advice, as they are printed."""
    return tuple(re.findall(rf"{option} ([a-z-]+)", hint))


def first(findings: Any, code: str) -> Any:
    return next(finding for finding in findings if finding.code == code)


def feeds(bench: Any) -> list[dict[str, Any]]:
    """Two inputs of the detector, as they were recorded with AIMET."""
    with np.load(bench.aimet / "detr/w8a16.io.npz") as data:
        keys = [[key for key in data.files if key.startswith(f"input.{index}:")] for index in (0, 1)]
        return [{key.split(":", 1)[1]: data[key] for key in names} for names in keys]


def calibration(bench: Any) -> Path:
    """The same as a file for ``--calibration``."""
    first_one, second = feeds(bench)
    path = bench.folder / "samples.npz"
    samples: dict[str, Any] = {name: np.concatenate([first_one[name], second[name]]) for name in first_one}
    np.savez(path, **samples)
    return Path(path)


def on_own_data(bench: Any) -> None:
    """The numbers of the rewritten model are judged on the data, and the advice is not repeated."""
    told = first(detr(bench, calibration=calibration(bench)), "DK201")
    assert "given samples" in told.message
    assert "--calibration" not in told.hint


def rewrites_left_out(bench: Any) -> None:
    """None of those that are named is made; another way may be rewritten too, and says so."""
    names = options_in(first(detr(bench), "DK201").hint, "--no-rewrite")
    assert names
    left = [f.evidence["rewrites"] for f in detr(bench, no_rewrite=names) if f.code == "DK201"]
    assert not {name for rewrites in left for name in rewrites} & set(names)


def not_asked_for(bench: Any) -> Any:
    """A rewrite that was asked for by name is left out by not asking for it."""
    vit = bench.aimet / "vit"
    given = {"sdk": "2.33", "encodings": vit / "w8a8.v1.0.0.encodings"}
    told = first(bench.ask(vit / "model.onnx", rewrite=("linear-to-conv",), **given), "DK201")
    assert options_in(told.hint, "--rewrite") == ("linear-to-conv",)
    return bench.ask(vit / "model.onnx", **given)


def tail_whole(bench: Any) -> Any:
    told = first(detr(bench, "w8a8"), "DK202")
    return detr(bench, "w8a8", no_rewrite=options_in(told.hint, "--no-rewrite"))


def package(bench: Any, name: str, **request: Any) -> tuple[Path, Any]:
    folder, out = bench.aimet / "detr", bench.folder / "package"
    encodings = folder / f"{name}.v0.6.1.encodings"
    given: dict[str, Any] = {"target": "sm8650", "backend": "qnn-htp", "sdk": "2.33", "compile": False}
    made = deploykit.package(folder / "model.onnx", encodings=encodings, out=out, **given, **request)
    return Path(out), made


def run_in_order(bench: Any, paths: list[Path]) -> None:
    """The parts one after the other compute what the given model computes: each reads inputs or earlier outputs."""
    carried = dict(feeds(bench)[0])
    wanted = Session(onnx.load(bench.aimet / "detr/model.onnx")).run(carried)
    for path in paths:
        part = onnx.load(path)
        carried |= Session(part).run({value.name: carried[value.name] for value in part.graph.input})
    for output, values in wanted.items():
        np.testing.assert_allclose(carried[output], values, rtol=1e-3, atol=1e-2)


def tail_run(bench: Any) -> None:
    out, _ = package(bench, "w8a8")
    run_in_order(bench, [out / "model/model.onnx", out / "model/tail.onnx"])


def in_order(bench: Any) -> None:
    out, made = package(bench, "w8a16-fp16mix-omit", mixed="segments")
    names = first(made.findings, "DK206").evidence["segments"]
    run_in_order(bench, [next((out / "model").glob(f"*{name}*.onnx")) for name in names])


def data_that_fits(bench: Any) -> Any:
    """With samples that fit the inputs the numbers are judged."""
    return detr(bench, calibration=calibration(bench))


def another_way(bench: Any) -> Any:
    """Float16 among integers, nothing rewritten and no mix allowed: no way is left; with another word there is."""
    given = {"no_rewrite": transform_names()}
    assert "DK204" in {f.code for f in detr(bench, "w8a16-fp16mix-omit", mixed="refuse", **given)}
    return detr(bench, "w8a16-fp16mix-omit", mixed="auto", **given)


def coarse(folder: Path, bits: int) -> tuple[Path, Path]:
    """A model whose values need more than 8 bits, and its encodings with so many."""
    from deploykit.encodings.formats.aimet import write_encodings
    from deploykit.encodings.new_grids import GridKind, affine_for_range
    from deploykit.encodings.values import Encoding, EncodingSet

    graph = TinyGraph()
    squared = graph.op("Mul", [graph.input("x", (1, 64)), "x"], "q")
    graph.op("Sqrt", [squared], "y")
    onnx.save(graph.model("y"), folder / "m.onnx")
    kind = GridKind(bits=bits, signed=False)
    ranges = {"x": (-1.0, 1.0), "q": (0.0, 900.0), "y": (0.0, 1.0)}
    entries = {name: Encoding(name=name, value=affine_for_range(*ends, kind)) for name, ends in ranges.items()}
    text = write_encodings(EncodingSet(version="1.0.0", entries=entries), "1.0.0")
    (folder / f"{bits}.encodings").write_text(text, "utf-8")
    return folder / "m.onnx", folder / f"{bits}.encodings"


def wider(bench: Any) -> Any:
    def ask(bits: int) -> Any:
        model, encodings = coarse(bench.folder, bits)
        return bench.ask(model, sdk="2.33", encodings=encodings)

    assert "DK205" in {finding.code for finding in ask(8)}
    return ask(16)


def open_model(bench: Any, **request: Any) -> Any:
    """The detector whose sizes are open, every way that leaves them float being forbidden."""
    given = bench.module(OPEN).chosen(result=False, mixed="refuse").situation.request
    keep = {"sdk": "2.33", "encodings": given.encodings, "mixed": "refuse"}
    return bench.ask(given.model, **keep, **request)


def sizes_said(bench: Any) -> Any:
    hints = [finding.hint for finding in open_model(bench) if finding.code == "DK207"]
    (name,) = {name for hint in hints for name in re.findall(r"--input (\w+)=VALUE", hint)}
    return open_model(bench, inputs=(f"{name}=640",))


def sizes_given(bench: Any) -> Any:
    path = bench.folder / "samples.npz"
    rng = np.random.default_rng(0)
    np.savez(path, image=rng.random((4, 3, 8, 8), dtype=np.float32), sizes=np.full((4, 2), 640, np.int64))
    return open_model(bench, calibration=path)


def reason_removed(bench: Any) -> Any:
    """The graph has no Erf, so GELU cannot be fused; one that has it is."""
    cnn, vit = bench.aimet / "cnn", bench.aimet / "vit"
    refused = bench.ask(cnn / "model.onnx", sdk="2.33", rewrite=("fuse-gelu",))
    assert "no Erf" in first(refused, "DK208").message
    return bench.ask(vit / "model.onnx", sdk="2.33", rewrite=("fuse-gelu",))


def with_entries(bench: Any) -> Any:
    """The file with the entries that were concluded: nothing is left to conclude."""
    from dataclasses import replace

    from deploykit.encodings.formats.aimet import read_encodings, write_encodings
    from deploykit.encodings.new_grids import GridKind, affine_for_range
    from deploykit.encodings.values import Encoding

    given = bench.module(OPEN).chosen(result=True, mixed="refuse").situation.request
    ask = {"sdk": "2.33", "mixed": "refuse"}
    ranges = first(bench.ask(given.model, encodings=given.encodings, **ask), "DK209").evidence["ranges"]
    read = read_encodings(given.encodings)
    kind = GridKind(bits=16, signed=False)
    made = {
        row["tensor"]: Encoding(name=row["tensor"], value=affine_for_range(row["low"], row["high"], kind))
        for row in ranges
    }
    path = bench.folder / "whole.encodings"
    path.write_text(write_encodings(replace(read, entries={**read.entries, **made}), "0.6.1"), "utf-8")
    return bench.ask(given.model, encodings=path, **ask)


def as_given(bench: Any) -> Any:
    zoo = bench.zoo / "detr/model.onnx"
    names = options_in(first(bench.ask(zoo, sdk="2.44"), "DK210").hint, "--no-rewrite")
    # What is left out may let another rewrite take its place: that one has the same advice.
    names += options_in(first(bench.ask(zoo, sdk="2.44", no_rewrite=names), "DK210").hint, "--no-rewrite")
    assert names == ("simplify", "mask-constant")
    return bench.ask(zoo, sdk="2.44", no_rewrite=names)


def guesses_in_force(bench: Any) -> None:
    graph = TinyGraph()
    graph.op("LRN", [graph.input("x", (1, 4, 2, 4, 4))], "y", size=3)
    found = first(bench.ask(graph.model("y"), sdk="2.33", second_opinion=False), "QNN207")
    assert found.blocks and "second_opinion" not in found.evidence


def on_scenes(*left_alone: str) -> Way:
    """A detector with 8-bit encodings, planned with the scenes it was calibrated on."""

    def make(bench: Any) -> Any:
        from deploykit.flow.pipeline import make_plan

        made, data = bench.module("flow/test_wider_end.py"), bench.folder / "scenes"
        data.mkdir()
        for index, feed in enumerate(made.scenes(made.COUNT)):
            np.save(data / f"{index:02}.npy", feed["images"])
        return make_plan(made.request(bench.folder, data, no_rewrite=left_alone)).findings

    return make


WAYS: dict[str, Way] = {
    "DK250 --calibration": on_scenes(),
    "DK251 --no-rewrite": on_scenes("end-in-int16"),
    "DK201 --calibration": on_own_data,
    "DK201 --no-rewrite": rewrites_left_out,
    "DK201 not asked for": not_asked_for,
    "DK202 tail": tail_run,
    "DK202 --no-rewrite": tail_whole,
    "DK203 --calibration": data_that_fits,
    "DK204 --mixed auto": another_way,
    "DK205 wider": wider,
    "DK206 in order": in_order,
    "DK206 --mixed fallback": lambda bench: detr(bench, "w8a16-fp16mix-omit", mixed="fallback"),
    "DK207 --calibration": sizes_given,
    "DK207 --input": sizes_said,
    "DK208 left out": lambda bench: bench.ask(bench.aimet / "cnn/model.onnx", sdk="2.33"),
    "DK208 reason removed": reason_removed,
    "DK209 entries": with_entries,
    "DK210 --no-rewrite": as_given,
    "DK211 guesses": guesses_in_force,
}


def test_what_is_advised_helps(advice: Any, bench: Any) -> None:
    bench.follow(advice, WAYS)


@pytest.mark.parametrize("mixed", ["auto", "refuse"])
def test_what_is_open_says_which_input_it_hangs_on(bench: Any, mixed: str) -> None:
    request = bench.module(OPEN).chosen(result=False, mixed=mixed).situation.request
    found = bench.ask(request.model, sdk="2.33", encodings=request.encodings, mixed=mixed)
    assert {f.hint for f in found if f.code == "DK207"} == {"give --calibration DATA or --input sizes=VALUE"}
