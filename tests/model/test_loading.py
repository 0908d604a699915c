"""What is refused before a graph exists, how it is said, and that hostile files cost little."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.errors import InputError
from deploykit.model.load import load_model, wrap_proto
from sample_models.networks import conv_net
from tables import each_row
from text_models import text_model

WHOLE = conv_net().SerializeToString()
TEXT_FORM = b"ir_version: 8\ngraph {\n}\n"


def relu_model() -> onnx.ModelProto:
    return text_model("float[1,4] x", "y = Relu (x)", "float[1,4] y")


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_model(path)
    assert str(path) in caught.value.what
    return str(caught.value)


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


@each_row(
    ("data", "says"),
    (b"", "is empty"),
    *((data, "not an ONNX model") for data in (b"\x00\x00\x00\x00", b"no model, just words")),
    (b'{"version": "1.0.0"}', "JSON"),
    (b"PK\x03\x04....", "zip archive"),
    (b"\x20\x00\x00\x00TFL3....", "TensorFlow Lite"),
    (b"GGUF\x03\x00\x00\x00", "GGUF"),
    (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    (b"<html><body>404</body></html>", "HTML"),
    (TEXT_FORM, "text form"),
    (b"\x10\x00\x00\x00\x00\x00\x00\x00{}", "safetensors"),
    *((data, "truncated") for data in (WHOLE[:-40], WHOLE[: len(WHOLE) // 2])),
    (field(7, b""), "no ir_version"),
    *((data, "without a graph") for data in (b"\x08\x08", b"\x08\x08" + field(7, field(2, b"empty")))),
    (b"\x10\x00\x00\x00ORTM....", "own .ort format"),
)
def test_files_that_are_no_model(data: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    assert says in refusal(path)


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.onnx") and "folder" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe.onnx")
    assert "not a regular file" in refusal(tmp_path / "pipe.onnx")
    assert "cannot be read" in refusal(tmp_path / ("n" * 5000))


def test_a_file_beyond_the_limit_of_protobuf_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 31)
    assert "2 GiB" in refusal(path)


def hostile_nesting(depth: int) -> bytes:
    """A chain of If bodies inside each other, written from the inside out in linear time."""
    heads, length = [], 0
    for _ in range(depth):
        for number in (6, 5, 1):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            head = varint(number << 3 | 2) + varint(length)
            heads.append(head)
            length += len(head)
    return b"\x08\x08" + field(7, b"".join(reversed(heads)))


def test_more_nodes_than_can_be_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x08" + field(7, b"\x0a\x00" * 200_001))
    assert "more than 200,000 nodes" in refusal(path)


def test_hostile_files_are_refused_and_a_large_one_is_loaded(within_a_gigabyte: Callable[..., list[str]]) -> None:
    steps = "  ".join(f"t{i + 1} = Relu (t{i})" for i in range(5_000))
    *hostile, large = within_a_gigabyte(
        hostile_nesting(100_000),
        b"\x08\x08" + field(7, b"\x0a\x00" * 1_000_000),
        b"\x08\x08" + field(7, b"\x0a\x00" * 50_000),
        b"\x08\x08" + field(7, field(5, b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f" * 2 + b"\x10\x01\x42\x01w")),
        text_model("float[4] t0", steps, "t5000").SerializeToString(),
    )
    assert all(line.startswith("refused:") for line in hostile) and "damaged" in hostile[0]
    assert large == "(4,) "


def tensor(**fields: object) -> TensorProto:
    return TensorProto(**({"name": "w", "data_type": TensorProto.FLOAT, "dims": [2]} | fields))  # type: ignore[arg-type]


BAD_TENSORS: list[tuple[dict[str, Any], str]] = [
    ({"raw_data": b"\0" * 7}, "holds 7 bytes"),
    ({"raw_data": b"\0" * 9}, "need 8"),
    ({"float_data": [1.0]}, "holds 1 values"),
    ({}, "holds 0 values"),
    ({"dims": [-1, 2]}, "negative dimension -1"),
    ({"dims": [1 << 40, 1 << 40]}, "more elements than any file"),
    ({"dims": [1] * 1000}, "1000 dimensions"),
    ({"data_type": 0, "raw_data": b""}, "unknown element type 0"),
    ({"data_type": 999, "raw_data": b""}, "unknown element type 999"),
    ({"data_type": TensorProto.INT4, "dims": [3], "raw_data": b"\0"}, "need 2"),
    ({"data_type": TensorProto.STRING, "string_data": [b"a"]}, "need 2"),
]


@each_row(("make", "says"), *BAD_TENSORS)
def test_stored_tensors_must_hold_what_they_claim(make: dict[str, Any], says: str) -> None:
    model = relu_model()
    model.graph.initializer.append(tensor(**make))
    with pytest.raises(InputError) as caught:
        wrap_proto(model, path=Path("m.onnx"))
    assert says in str(caught.value) and "'w'" in caught.value.what


@each_row("kind", *sorted(set(TensorProto.DataType.keys()) - {"UNDEFINED"}))
def test_every_element_type_of_onnx_has_a_size(kind: str) -> None:
    model = relu_model()
    values: Any = [b"1"] * 5 if kind == "STRING" else [1, 0, 1, 0, 1]
    plain = helper.make_tensor("w", TensorProto.DataType.Value(kind), [5], values)
    model.graph.initializer.extend([plain, numpy_helper.from_array(numpy_helper.to_array(plain), "raw")])
    assert wrap_proto(model, path=Path("m.onnx")).stored.keys() == {"w", "raw"}


def test_tensors_in_attributes_and_bodies_are_checked_too() -> None:
    body = helper.make_graph([], "body", [], [], [tensor(name="inner")])
    model = relu_model()
    model.graph.node[0].attribute.append(helper.make_attribute("body", body))
    with pytest.raises(InputError, match="'inner'"):
        wrap_proto(model, path=Path("m.onnx"))
    model = relu_model()
    model.graph.node.insert(0, helper.make_node("Constant", [], ["c"], value=tensor()))
    with pytest.raises(InputError, match="'c'"):
        wrap_proto(model, path=Path("m.onnx"))
