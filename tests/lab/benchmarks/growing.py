"""``python tests/lab/benchmarks/growing.py [--most 64] [--write]``: time and memory from one to 64 times the work.

Each line is one thing that grows, every column doubles it; the last one is the worst growth from a column to the next,
which is to be at most 2.2. CPU seconds with child processes, MB of the largest process. ``--write`` puts the table into
tests/lab/evidence/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from spending import Spent, program, spend

__all__ = ["main"]

PAGE = Path(__file__).parents[1] / "evidence" / "benchmarks.md"
BEGIN, END = "<!-- growing -->\n", "<!-- end of growing -->\n"
LIMIT = 2.2
_HTP = ("--target", "sm8650", "--backend", "qnn-htp", "--sdk", "2.37", "--no-compile")
_PROVIDER = ("--target", "sm8650", "--backend", "ort-qnn", "--no-compile")
_WIDTH = 16
_NODES, _LINES, _MEBIBYTES = 250, 1000, 64  # of the smallest


def layers(folder: Path, times: int, width: int = _WIDTH) -> None:
    """Layers of MatMul, Add and a bend (Tanh, Relu) over one small weight each, and encodings of all that they make."""
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    folder.mkdir()
    count, rng = _NODES * times // 3, np.random.default_rng(0)
    nodes, stored, moving = [], [], ["x0"]
    weights = [f"w{i}" for i in range(count)]
    for i in range(count):
        weight = rng.standard_normal((width, width), dtype=np.float32) / np.float32(width**0.5)
        stored += [numpy_helper.from_array(weight, f"w{i}"), numpy_helper.from_array(weight[0], f"b{i}")]
        made = [f"m{i}", f"a{i}", f"x{i + 1}"]
        read = ([f"x{i}", f"w{i}"], [made[0], f"b{i}"], [made[1]])
        bent = ("Tanh", "Relu")[i % 2]  # a Relu is fused with what is before it, which is looked at by pairs
        for op_type, inputs, output in zip(("MatMul", "Add", bent), read, made, strict=True):
            nodes.append(helper.make_node(op_type, inputs, [output], name=f"{op_type}{i}"))
        moving += made
    ends = [helper.make_tensor_value_info(name, 1, [1, width]) for name in ("x0", f"x{count}")]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], stored)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), folder / "model.onnx")
    (folder / "model.encodings").write_text(
        json.dumps(
            {
                "version": "1.0.0",
                "activation_encodings": [_entry(name, 16, 1 / 4096) for name in moving],
                "param_encodings": [_entry(name, 8, 1 / 64) for name in weights],
            }
        )
    )


def _entry(name: str, bits: int, scale: float) -> dict[str, Any]:
    common = {"name": name, "enc_type": "PER_TENSOR", "dtype": "INT", "bw": bits, "is_sym": bits == 8}
    return {**common, "scale": [scale], "offset": [-(1 << (bits - 1))]}


def nodes(folder: Path, times: int) -> tuple[object, ...]:
    """`check` of 250 nodes and more"""
    layers(folder / str(times), times)
    return ("check", folder / str(times) / "model.onnx", *_HTP)


def entries(folder: Path, times: int) -> tuple[object, ...]:
    """the same with encodings of every tensor"""
    command = nodes(folder, times)
    return (*command, "--encodings", folder / str(times) / "model.encodings")


def weights(folder: Path, times: int) -> tuple[object, ...]:
    """`package --link` of 64 MiB of weights and more"""
    spend(program("generating.py", "sparse", folder / str(times), _MEBIBYTES * times))
    return ("package", folder / str(times) / "model.onnx", *_HTP, "--link", "-o", folder / "out")


def inside(folder: Path, times: int) -> tuple[object, ...]:
    """`check` for the provider of 1.2 MB of weights in the model's own file and more, with encodings"""
    layers(folder / str(times), 1, width=60 * math.isqrt(times * 64) // 8)
    model = folder / str(times) / "model.onnx"
    return ("check", model, *_PROVIDER, "--encodings", folder / str(times) / "model.encodings")


def targets(folder: Path, times: int) -> tuple[object, ...]:
    """`package` for one target and more"""
    from deploykit.backend.plugins import load_backend

    layers(folder / str(times), 1)
    known = [device.id for device in load_backend("qnn-htp").devices()]
    named = [word for device in sorted(known)[:times] for word in ("--target", device)]
    return ("package", folder / str(times) / "model.onnx", *_HTP[2:], *named, "-o", folder / "out")


def lines(folder: Path, times: int) -> tuple[object, ...]:
    """`diagnose` of 1,000 lines of a log and more"""
    text = "".join(f"[INFO] {i} op{i} is placed\nerror: node {i} refused: code {i % 97}\n" for i in range(_LINES // 2))
    (folder / f"{times}.log").write_text(text * times)
    return ("diagnose", folder / f"{times}.log")


_GROWING: tuple[Callable[[Path, int], tuple[object, ...]], ...] = (nodes, entries, weights, inside, targets, lines)


def table(folder: Path, most: int) -> Iterator[str]:
    """The table, line by line as it is measured."""
    steps = [1 << power for power in range(most.bit_length())]
    yield "| what grows | | " + " | ".join(f"{step} x" for step in steps) + " | worst |"
    yield "|---" * (len(steps) + 3) + "|"
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment = {**kept, "DEPLOYKIT_NO_CACHE": "1", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    spend((sys.executable, "-m", "deploykit", "demo", "-o", str(folder / "demo")), environment=environment)
    for make in _GROWING:
        spent: list[Spent] = []
        for step in steps:
            place = folder / make.__name__
            place.mkdir()
            argv = (sys.executable, "-m", "deploykit", *map(str, make(place, step)))
            spent.append(spend(argv, environment=environment))
            shutil.rmtree(place)
        yield _row(make.__doc__ or "", "CPU s", [one.cpu for one in spent], "{:.2f}")
        yield _row("", "MB", [one.peak for one in spent], "{:.0f}")


def _row(title: str, unit: str, values: list[float], form: str) -> str:
    worst = max(after / before for before, after in pairwise(values))
    short = "" if worst <= LIMIT else f", more than {LIMIT}"
    return f"| {title} | {unit} | " + " | ".join(form.format(value) for value in values) + f" | {worst:.2f}{short} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=64, help="how many times the smallest, a power of two")
    parser.add_argument("--write", action="store_true", help="put the table into tests/lab/evidence/benchmarks.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for line in table(Path(folder), given.most):
            print(line, flush=True)
            found.append(line)
    if given.write:
        before, after = PAGE.read_text("utf-8").split(BEGIN)
        text = "\n".join([before + BEGIN, *found, "", END + after.split(END)[1]])
        PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
