"""Small files that ask for much: any input below a megabyte is answered within 10 s of computing and 1 GB."""

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

from tables import each_row
from text_models import text_model
from victims import acceptable, run_cli

pytestmark = pytest.mark.heavy
ENDLESS = "body (int64 i, bool c, float[1,4] v) => (bool d, float[1,4] w) { d = Identity (c) w = Add (v, v) }"
SUM = "r = ReduceSum <keepdims = 0> ({}) y = Add (x, r)"
"""What is large added up and joined to the input: all of it is constant."""


def chain(operator: str, first: str, count: int) -> str:
    """``count`` nodes, each fed twice with what the one before it gives; the last gives ``c``."""
    names = [first, *(f"c{number}" for number in range(count - 1)), "c"]
    return " ".join(f"{names[at + 1]} = {operator} ({names[at]}, {names[at]})" for at in range(count))


def nested_functions() -> ModelProto:
    """Each of sixteen functions calls the one before it twice; the runtime takes minutes to write them out."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    made = text_model("float[1,4] x", "c = Neg (x)", "c")
    made.graph.node[0].op_type, made.graph.node[0].domain = "f16", "own"
    for number in range(17):
        name, domain = (f"f{number - 1}", "own") if number else ("Neg", "")
        calls = [helper.make_node(name, [given], [out], domain=domain) for given, out in ("ab", "bc")]
        made.functions.append(helper.make_function("own", f"f{number}", ["a"], ["c"], calls, opsets))
    made.opset_import.append(opsets[1])
    return made


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


ENDS = {"a": np.float32(0), "b": np.float32(1e10), "d": np.float32(1)}
TEXTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "doubling shape": (chain("Concat <axis = 0>", "s", 40) + " y = Expand (x, c)", "y", {"s": ints(1)}),
    "doubling constant": (chain("Concat <axis = 0>", "s", 30) + SUM.format("c"), "y", {"s": ones(1)}),
    "tiled": ("t = Tile (s, n) " + SUM.format("t"), "y", {"s": ones(1, 1), "n": ints(30_000, 40_000)}),
    # Three short vectors along axes of their own give a billion products.
    "outer products": (
        "ab = Mul (a, b) abd = Mul (ab, d) " + SUM.format("abd"),
        "y",
        {"a": ones(1100, 1, 1), "b": ones(1, 1100, 1), "d": ones(1, 1, 1100)},
    ),
    "filled": ("f = ConstantOfShape (s) " + SUM.format("f"), "y", {"s": ints(1 << 20, 1 << 14)}),
    "expanded": ("e = Expand (x, s) y = Exp (e)", "y", {"s": ints(1 << 30, 4)}),
    "counted": ("e = Range (a, b, d) " + SUM.format("e"), "y", ENDS),
    # Behind it something that a rewrite matches, so that somebody wants to run the model.
    "looped": (
        f'l = Loop <body = {ENDLESS}> (n, t, x) y = Einsum <equation = "ab,bc->ac"> (l, k)',
        "y",
        {"n": np.array(1 << 62), "t": np.array(True), "k": ones(4, 4)},
    ),
    "multiplied": (
        "m = ConstantOfShape (s) " + chain("MatMul", "m", 40) + " e = ReduceMax <keepdims = 0> (c) y = Add (x, e)",
        "y",
        {"s": ints(3000, 3000)},
    ),
    # One operator that takes minutes: the runtime looks whether to go on between two of them only.
    "pooled": (
        "f = ConstantOfShape (s) p = AveragePool <kernel_shape = [500, 500]> (f) " + SUM.format("p"),
        "y",
        {"s": ints(1, 1, 2000, 2000)},
    ),
}
BOMBS: dict[str, Callable[[], ModelProto]] = {
    **{name: partial(text_model, "float[1,4] x", body, out, **held) for name, (body, out, held) in TEXTS.items()},
    # What its kernels would be given by themselves has a quarter of a billion elements.
    "padded": lambda: text_model(
        "float[1,1,4,4] x", "c = Conv <pads=[8000, 8000, 8000, 8000]> (x, w)", "c", w=ones(1, 1, 1, 1)
    ),
    "wide input": lambda: text_model("float[1,3,100000,100000] x", "c = Exp (x)", "c"),
    "large sizes": lambda: text_model(f"float[{','.join([str(1 << 40)] * 200)}] x", "c = Exp (x)", "c"),
    "nested functions": nested_functions,
    "many names": lambda: text_model(
        "float[1,4] x", " ".join(f"{f'n{number}' * 9} = Identity (x)" for number in range(6000)), "n0" * 9
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_model_takes_little(bomb: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(BOMBS[bomb]().SerializeToString())
    assert path.stat().st_size < 1 << 20
    for backend in ("qnn-htp", "ort-qnn"):
        ending = run_cli("check", path, "--target", "sm8650", "--backend", backend)
        assert acceptable(ending), (backend, ending)


@each_row("rewrite", "cut-tail", "merge-axes", "simplify")
def test_a_bomb_meets_a_rewrite(rewrite: str, tmp_path: Path) -> None:
    """Cutting a tail had onnx infer the shapes without a guard."""
    path = tmp_path / "m.onnx"
    path.write_bytes(BOMBS["doubling shape"]().SerializeToString())
    ending = run_cli("check", path, "--target", "sm8650", "--sdk", "2.33", "--rewrite", rewrite)
    assert acceptable(ending), ending


def npz(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


def npy(shape: tuple[int, ...]) -> bytes:
    """A whole .npy of zeros in float32."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return head.getvalue() + bytes(4 * int(np.prod(shape)))


def test_arrays_that_unpack_to_a_thousand_times_their_size(cnn: tuple[str, ...], tmp_path: Path) -> None:
    """They fit the model's input, as ever so many samples; 300 MiB of zeros stand for any amount of them."""
    bomb = npz(tmp_path / "bomb.npz", {"input.npy": npy((1600, 3, 128, 128))})
    assert bomb.stat().st_size < 4 << 20
    for arguments in (
        (*cnn, str(tmp_path / "out"), "--calibration", str(bomb)),
        ("accuracy", "compare", str(bomb), str(bomb)),
    ):
        ending = run_cli(*arguments)
        assert ending.status == 3, ending.output
        assert "bomb.npz" in ending.output
        assert acceptable(ending, megabytes=400), ending


def test_a_header_of_a_gigabyte(cnn: tuple[str, ...], tmp_path: Path) -> None:
    length = 400 << 20
    bomb = npz(tmp_path / "bomb.npz", {"input.npy": b"\x93NUMPY\x02\x00" + struct.pack("<I", length) + b" " * length})
    ending = run_cli(*cnn, tmp_path / "out", "--calibration", bomb)
    assert ending.status == 3, ending.output
    assert acceptable(ending, megabytes=400), ending


def test_the_advice_to_unpickle_is_not_passed_on(cnn: tuple[str, ...], tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", input=np.array([{"a": 1}], dtype=object))
    ending = run_cli(*cnn, tmp_path / "out", "--calibration", tmp_path / "bad.npz")
    assert ending.status == 3, ending.output
    assert "allow_pickle" not in ending.output


def test_an_image_of_a_million_megapixels(tmp_path: Path) -> None:
    from deploykit.accuracy.samples.images import ImageRecipe, read_image
    from deploykit.accuracy.samples.inputs import InputSpec
    from deploykit.errors import InputError

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", 1 << 20, 1 << 20, 8, 2, 0, 0, 0)
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IEND", b""))
    recipe, spec = ImageRecipe(schema=1, width=8, height=8), InputSpec(name="x", dtype="float32", shape=(1, 3, 8, 8))
    with pytest.raises(InputError, match=r"bomb\.png"):
        read_image(tmp_path / "bomb.png", recipe, spec)


@pytest.mark.parametrize("bomb", ["looped", "multiplied", "nested functions"])
@pytest.mark.parametrize("command", ["compare", "locate"])
def test_a_model_that_is_run_by_name_ends_as_well(command: str, bomb: str, tmp_path: Path) -> None:
    """Two models compared on data: nothing that the file says of itself keeps it from being run."""
    onnx.save(BOMBS[bomb](), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=np.ones((1, 4), np.float32))
    ending = run_cli("accuracy", command, tmp_path / "m.onnx", tmp_path / "m.onnx", "--data", tmp_path / "data.npz")
    assert ending.status == 3, ending.output
    assert acceptable(ending), ending
