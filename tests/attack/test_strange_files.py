"""Pipes, devices and endless files under the names of files, and texts that are no UTF-8: each gets an answer."""

import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from sample_models.tiny_graphs import TinyGraph
from tables import each_row
from victims import MODEL, acceptable, run_cli

Command = tuple[str, ...]


def endless(path: Path) -> None:
    """A regular file of a size that no memory holds, without taking any disk."""
    with path.open("wb") as file:
        file.truncate(1 << 42)


def plug(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket may have a hundred bytes
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "endless": endless,
    "socket": plug,
}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
@each_row("name", "manifest.json", "model/model.onnx", "encodings/model.json", "scripts/build.sh")
def test_in_a_package(kind: str, name: str, made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "out"
    for path in sorted(made.rglob("*")):
        if path.is_file() and path.relative_to(made).as_posix() != name:
            target = copy / path.relative_to(made)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            target.chmod(path.stat().st_mode)
    assert (made / name).is_file()
    (copy / name).parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind](copy / name)
    for command in ("verify", "build"):
        ending = run_cli(command, copy)
        assert ending.status == 6, ending.output
        assert name in ending.output
        assert acceptable(ending), ending


ARGUMENTS: dict[str, tuple[str, Callable[[Command, Path, Path], Command]]] = {
    "model": ("bad.onnx", lambda cnn, bad, out: ("package", str(bad), *cnn[2:], str(out))),
    "encodings": ("bad.json", lambda cnn, bad, out: (*cnn[:3], str(bad), *cnn[4:], str(out))),
    "float tensors": ("bad.json", lambda cnn, bad, out: (*cnn, str(out), "--float-tensors", str(bad))),
    "calibration": ("bad.npz", lambda cnn, bad, out: (*cnn, str(out), "--calibration", str(bad))),
    "an input": ("bad.npy", lambda cnn, bad, out: (*cnn, str(out), "--input", f"input={bad}")),
    "a log": ("bad.log", lambda cnn, bad, out: ("diagnose", str(bad))),
    "encodings shown": ("bad.json", lambda cnn, bad, out: ("encodings", "show", str(bad))),
    "outputs compared": ("bad.npz", lambda cnn, bad, out: ("accuracy", "compare", str(bad), str(bad))),
    "a context binary": ("bad.bin", lambda cnn, bad, out: ("explain", str(bad))),
}


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "endless"])
@each_row("what", *ARGUMENTS)
def test_as_an_argument(what: str, kind: str, cnn: Command, tmp_path: Path) -> None:
    name, arguments = ARGUMENTS[what]
    KINDS[kind](tmp_path / name)
    ending = run_cli(*arguments(cnn, tmp_path / name, tmp_path / "out"))
    assert ending.status in (2, 3), ending.output
    assert name in ending.output
    assert acceptable(ending), ending


@pytest.mark.heavy
def test_external_data_that_is_a_pipe(tmp_path: Path, cnn: Command) -> None:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.zeros(4, np.float32), "w")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    (tmp_path / "w.bin").unlink()
    os.mkfifo(tmp_path / "w.bin")
    ending = run_cli("check", tmp_path / "m.onnx", "--target", "sm8650")
    assert ending.status == 3, ending.output
    assert "w.bin" in ending.output


NO_TEXT = b"\xff\xfe"
CHECK = ("--target", "sm8650", "--sdk", "2.33", "--precision", "fp16")


def talkative() -> onnx.ModelProto:
    """A model with a text wherever one may stand."""
    graph = TinyGraph()
    weights = graph.stored("stored", [[0.5, 1.0]])
    graph.op("Gemm", [graph.input("given", (1, 1)), weights], "between", transA=0)
    graph.op("LeakyRelu", ["between"], "made", alpha=0.5)
    model = graph.model("made")
    model.producer_name, model.producer_version, model.domain, model.doc_string = "maker", "v1.2", "own.domain", "words"
    model.metadata_props.add(key="the key", value="the value")
    model.graph.doc_string, model.graph.name = "more words", "the graph"
    model.graph.metadata_props.add(key="graph key", value="graph value")
    for node in model.graph.node:
        node.doc_string = f"about {node.name}"
        node.metadata_props.add(key=f"key {node.op_type}", value=f"value {node.op_type}")
    model.graph.initializer[0].doc_string = "about stored"
    model.graph.input[0].doc_string = "about given"
    model.graph.input[0].type.denotation = "a kind of thing"
    dim = model.graph.input[0].type.tensor_type.shape.dim[0]
    dim.dim_param, dim.denotation = "symbol", "a batch"
    body = helper.make_node("Relu", ["inner in"], ["inner out"], name="inner", domain="")
    opset = helper.make_opsetid("", 17)
    model.functions.append(
        helper.make_function("func.domain", "func", ["inner in"], ["inner out"], [body], [opset], ["an attribute"])
    )
    model.functions[0].doc_string = "about func"
    model.opset_import.append(helper.make_opsetid("func.domain", 1))
    return model


def texts(message: Any) -> Iterator[str]:
    """Every text that stands in a message of protobuf."""
    for field, value in message.ListFields():
        for item in value if isinstance(value, list) or hasattr(value, "add") or hasattr(value, "append") else [value]:
            if field.type == field.TYPE_MESSAGE:
                yield from texts(item)
            elif field.type == field.TYPE_STRING:
                yield item


def damaged(data: bytes, text: str) -> bytes:
    """The same wherever it stands, so that what refers to each other still does; lengths stay."""
    known = text.encode()
    return data.replace(known, (NO_TEXT + known[2:])[: len(known)])


@pytest.mark.heavy
def test_texts_of_a_model(tmp_path: Path) -> None:
    model = talkative()
    data, chosen = model.SerializeToString(), sorted({text for text in texts(model) if text})
    assert len(chosen) > 25
    for number, text in enumerate(chosen):
        path = tmp_path / f"{number}.onnx"
        path.write_bytes(damaged(data, text))
        assert path.read_bytes() != data
        for words in (
            ("check", path, *CHECK),
            ("package", path, *CHECK, "--no-compile", "-o", tmp_path / f"{number}"),
            ("explain", path),
            ("compat", "--target", "sm8650", "--model", path),
        )[: 4 if number % 5 == 0 else 1]:
            ending = run_cli(*words)
            assert acceptable(ending), f"{words[0]} with {text!r}: {ending}"


@pytest.mark.heavy
def test_texts_of_what_a_compiler_made(compiled_package: Path, tmp_path: Path) -> None:
    for path in sorted((compiled_package / "artifacts").glob("*ctx*")):
        data = path.read_bytes()
        for match in [*re.finditer(rb"[A-Za-z][ -~]{4,60}", data)][::20][:12]:
            (tmp_path / path.name).write_bytes(data[: match.start()] + NO_TEXT + data[match.start() + 2 :])
            ending = run_cli("explain", tmp_path / path.name)
            assert acceptable(ending), f"{match[0]!r} at {match.start()} of {path.name}: {ending}"


DEEP = (b"a = " + b"[" * 5000 + b"]" * 5000, b"width = " + b"9" * 6000, b"a." * 3000 + b"b=1", b"\xff\xfe", b"[" * 3000)


@each_row("data", *DEEP)
def test_deep_tables(data: bytes, tmp_path: Path) -> None:
    from deploykit.accuracy.samples.images import read_recipe
    from deploykit.errors import DeploykitError

    (tmp_path / "calibration.toml").write_bytes(data)
    with pytest.raises(DeploykitError) as caught:
        read_recipe(tmp_path)
    assert caught.value.exit_status in (2, 3)


NAMES = ("a" * 300, "caf\udce9.onnx", "a\nb.onnx", "-rf.onnx", "$(touch pwned).onnx", "x\x1b[31m.onnx")


@pytest.mark.heavy
@each_row("name", *NAMES)
def test_names_of_files_and_packages(name: str, cnn: Command, tmp_path: Path) -> None:
    path = tmp_path / name
    try:
        path.write_bytes(MODEL.read_bytes())
    except OSError:
        assert len(name) > 255
    for command in ("check", "package"):
        more = ("-o", str(tmp_path / "out" / command), "--no-compile") if command == "package" else ()
        ending = run_cli(command, str(path), "--target", "sm8650", "--sdk", "2.33", *more, cwd=tmp_path)
        assert acceptable(ending), ending
    (tmp_path / "place").mkdir()
    ending = run_cli(*cnn, name, cwd=tmp_path / "place")
    assert acceptable(ending), ending
    assert not (tmp_path / "pwned").exists()
