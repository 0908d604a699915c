"""Advice about the way that was chosen that names no option of its own run, followed with the whole run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from deploykit.rewrites.contract import transform_names
from sample_models.tiny_graphs import TinyGraph

Way = Callable[[Any], Any]


def detr(bench: Any, name: str = "w8a16", **request: Any) -> Any:
    folder = bench.aimet / "detr"
    encodings = folder / f"{name}.v0.6.1.encodings"
    return bench.ask(folder / "model.onnx", sdk="2.33", encodings=encodings, **request)


def first(findings: Any, code: str) -> Any:
    return next(finding for finding in findings if finding.code == code)


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


def with_entries(bench: Any) -> Any:
    """The file with the entries that were concluded: nothing is left to conclude."""
    from dataclasses import replace

    from deploykit.encodings.formats.aimet import read_encodings, write_encodings
    from deploykit.encodings.new_grids import GridKind, affine_for_range
    from deploykit.encodings.values import Encoding

    given = bench.module("flow/test_open_tensors.py").chosen(result=True, mixed="refuse").situation.request
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


def guesses_in_force(bench: Any) -> None:
    graph = TinyGraph()
    graph.op("LRN", [graph.input("x", (1, 4, 2, 4, 4))], "y", size=3)
    found = first(bench.ask(graph.model("y"), sdk="2.33", second_opinion=False), "QNN207")
    assert found.blocks and "second_opinion" not in found.evidence


WAYS: dict[str, Way] = {
    "DK204 --mixed auto": another_way,
    "DK205 wider": wider,
    "DK206 --mixed fallback": lambda bench: detr(bench, "w8a16-fp16mix-omit", mixed="fallback"),
    "DK208 left out": lambda bench: bench.ask(bench.aimet / "cnn/model.onnx", sdk="2.33"),
    "DK209 entries": with_entries,
    "DK211 guesses": guesses_in_force,
}


def test_what_is_advised_helps(advice: Any, bench: Any) -> None:
    bench.follow(advice, WAYS)
