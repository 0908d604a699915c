"""Small files that ask for much: any input below a megabyte is answered within 10 s of computing and 1 GB."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from attacks.victims import acceptable, run_cli
from tables import each_row

pytestmark = pytest.mark.heavy
MODELS = Callable[[], ModelProto]


def floats(name: str, shape: list[int] | None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(
    nodes: list[NodeProto], stored: dict[str, np.ndarray], last: str, shape: tuple[int, ...] = (1, 4)
) -> ModelProto:
    initializers = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    graph = helper.make_graph(nodes, "g", [floats("x", list(shape))], [floats(last, None)], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def chain(op_type: str, first: str, count: int, **attributes: Any) -> list[NodeProto]:
    """``count`` nodes, each fed twice with what the one before it gives; the last gives ``c``."""
    names = [first, *(f"c{number}" for number in range(count - 1)), "c"]
    return [
        helper.make_node(op_type, [names[number]] * 2, [names[number + 1]], **attributes) for number in range(count)
    ]


def doubling_shape() -> ModelProto:
    nodes = [*chain("Concat", "s", 40, axis=0), helper.make_node("Expand", ["x", "c"], ["y"])]
    return model(nodes, {"s": np.array([1], np.int64)}, "y")


def doubling_rank() -> ModelProto:
    nodes = [helper.make_node("Shape", ["x"], ["s"]), *chain("Concat", "s", 40, axis=0)]
    return model([*nodes, helper.make_node("Expand", ["x", "c"], ["y"])], {}, "y")


def added_to_itself() -> ModelProto:
    return model(chain("Add", "x", 60), {}, "c")


def doubling_floats() -> ModelProto:
    return model(chain("Concat", "x", 40, axis=1), {}, "c")


def summed(nodes: list[NodeProto], stored: dict[str, np.ndarray], last: str) -> ModelProto:
    """What is large added up and joined to the input: all of it is constant."""
    nodes = [
        *nodes,
        helper.make_node("ReduceSum", [last], ["r"], keepdims=0),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    return model(nodes, stored, "y")


def doubling_constant() -> ModelProto:
    return summed(chain("Concat", "s", 30, axis=0), {"s": np.ones(1, np.float32)}, "c")


def tiled() -> ModelProto:
    stored: dict[str, np.ndarray] = {"s": np.ones((1, 1), np.float32), "n": np.array([30_000, 40_000], np.int64)}
    return summed([helper.make_node("Tile", ["s", "n"], ["t"])], stored, "t")


def outer_products() -> ModelProto:
    """Three short vectors along axes of their own give a billion products."""
    stored: dict[str, np.ndarray] = {name: np.ones(shape, np.float32) for name, shape in zip("abd", AXES, strict=True)}
    nodes = [helper.make_node("Mul", ["a", "b"], ["ab"]), helper.make_node("Mul", ["ab", "d"], ["abd"])]
    return summed(nodes, stored, "abd")


AXES = ((1100, 1, 1), (1, 1100, 1), (1, 1, 1100))


def filled() -> ModelProto:
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["f"]),
        helper.make_node("ReduceSum", ["f"], ["r"], keepdims=0),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    return model(nodes, {"s": np.array([1 << 20, 1 << 14], np.int64)}, "y")


def expanded() -> ModelProto:
    nodes = [helper.make_node("Expand", ["x", "s"], ["e"]), helper.make_node("Exp", ["e"], ["y"])]
    return model(nodes, {"s": np.array([1 << 30, 4], np.int64)}, "y")


def counted() -> ModelProto:
    nodes = [
        helper.make_node("Range", ["a", "b", "d"], ["r"]),
        helper.make_node("ReduceSum", ["r"], ["t"], keepdims=0),
        helper.make_node("Add", ["x", "t"], ["y"]),
    ]
    ends = {"a": np.float32(0), "b": np.float32(1e10), "d": np.float32(1)}
    return model(nodes, {name: np.asarray(value) for name, value in ends.items()}, "y")


def looped() -> ModelProto:
    carried, condition = floats("v", [1, 4]), helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    number = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    outputs = [helper.make_tensor_value_info("c2", TensorProto.BOOL, []), floats("v2", [1, 4])]
    nodes = [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Add", ["v", "v"], ["v2"])]
    body = helper.make_graph(nodes, "body", [number, condition, carried], outputs)
    loop = helper.make_node("Loop", ["n", "t", "x"], ["l"], body=body)
    # Behind it something that a rewrite matches, so that somebody wants to run the model.
    nodes = [loop, helper.make_node("Einsum", ["l", "w"], ["y"], equation="ab,bc->ac")]
    stored = {"n": np.array(1 << 62), "t": np.array(True), "w": np.ones((4, 4), np.float32)}
    return model(nodes, stored, "y")


def multiplied() -> ModelProto:
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["m"]), *chain("MatMul", "m", 40)]
    nodes += [helper.make_node("ReduceMax", ["c"], ["t"], keepdims=0), helper.make_node("Add", ["x", "t"], ["y"])]
    return model(nodes, {"s": np.array([3000, 3000], np.int64)}, "y")


def pooled() -> ModelProto:
    """One operator that takes minutes: the runtime looks whether to go on between two of them only."""
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["f"]),
        helper.make_node("AveragePool", ["f"], ["p"], kernel_shape=[500, 500]),
    ]
    return summed(nodes, {"s": np.array([1, 1, 2000, 2000], np.int64)}, "p")


def padded() -> ModelProto:
    """What its kernels would be given by themselves has a quarter of a billion elements."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[8000] * 4)]
    return model(nodes, {"w": np.ones((1, 1, 1, 1), np.float32)}, "c", (1, 1, 4, 4))


def nested_functions() -> ModelProto:
    """Each of sixteen functions calls the one before it twice; the runtime takes minutes to write them out."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]

    def function(number: int, operator: str, domain: str) -> FunctionProto:
        links = (("a", "b"), ("b", "c"))
        calls = [helper.make_node(operator, [given], [made], domain=domain) for given, made in links]
        return helper.make_function("own", f"f{number}", ["a"], ["c"], calls, opsets)

    made = model([helper.make_node("f16", ["x"], ["c"], domain="own")], {}, "c")
    made.functions.extend(function(n, f"f{n - 1}" if n else "Neg", "own" if n else "") for n in range(17))
    made.opset_import.extend(opsets[1:])
    return made


def wide_input() -> ModelProto:
    return model([helper.make_node("Exp", ["x"], ["c"])], {}, "c", (1, 3, 100_000, 100_000))


def large_sizes() -> ModelProto:
    return model([helper.make_node("Exp", ["x"], ["c"])], {}, "c", (1 << 40,) * 200)


def many_names() -> ModelProto:
    return model([helper.make_node("Identity", ["x"], [f"n{number}" * 9]) for number in range(6000)], {}, "n0" * 9)


BOMBS: tuple[MODELS, ...] = (
    doubling_shape,
    doubling_rank,
    added_to_itself,
    doubling_floats,
    doubling_constant,
    tiled,
    outer_products,
    filled,
    expanded,
    counted,
    looped,
    multiplied,
    pooled,
    padded,
    nested_functions,
    wide_input,
    large_sizes,
    many_names,
)


@pytest.mark.parametrize("make", BOMBS, ids=lambda make: make.__name__)
def test_a_small_model_takes_little(make: MODELS, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(make().SerializeToString())
    assert path.stat().st_size < 1 << 20
    for backend in ("qnn-htp", "ort-qnn"):
        ending = run_cli("check", path, "--target", "sm8650", "--backend", backend)
        assert acceptable(ending), (backend, ending)


@each_row("rewrite", ["cut-tail", "merge-axes", "simplify"])
def test_a_bomb_meets_a_rewrite(rewrite: str, tmp_path: Path) -> None:
    """Cutting a tail had onnx infer the shapes without a guard."""
    path = tmp_path / "m.onnx"
    path.write_bytes(doubling_shape().SerializeToString())
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
    from deploykit.accuracy.samples.images import inspect_image
    from deploykit.errors import InputError

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", 1 << 20, 1 << 20, 8, 2, 0, 0, 0)
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IEND", b""))
    with pytest.raises(InputError, match=r"bomb\.png"):
        inspect_image(tmp_path / "bomb.png")


@pytest.mark.parametrize("make", [looped, multiplied, nested_functions], ids=lambda make: make.__name__)
@pytest.mark.parametrize("command", ["compare", "locate"])
def test_a_model_that_is_run_by_name_ends_as_well(command: str, make: MODELS, tmp_path: Path) -> None:
    """Two models compared on data: nothing that the file says of itself keeps it from being run."""
    onnx.save(make(), tmp_path / "m.onnx")
    np.savez(tmp_path / "data.npz", x=np.ones((1, 4), np.float32))
    ending = run_cli("accuracy", command, tmp_path / "m.onnx", tmp_path / "m.onnx", "--data", tmp_path / "data.npz")
    assert ending.status == 3, ending.output
    assert acceptable(ending), ending
