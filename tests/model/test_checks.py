"""What is refused when it is read: files that are no model, graphs that are none, and what hostile ones cost."""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from deploykit.errors import InputError, UsageError
from deploykit.model.collect import collect_facts
from deploykit.model.load import Model, blaming, load_model, what_is_wrong, wrap_proto
from sample_models.networks import conv_net
from tables import each_row
from text_models import text_model
from whole_answers import check_whole

PATH = Path("m.onnx")


def model(body: str, made: str = "y", given: str = "float[4] x", *, opset: int = 17, **stored: Any) -> onnx.ModelProto:
    """A model whose nodes are called after their first outputs."""
    proto = text_model(given, body, made, opset=opset, **stored)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    for node in proto.graph.node:
        node.name = f"n_{node.output[0]}" if node.output else "n"
    return proto


def load(proto: onnx.ModelProto) -> Model:
    return wrap_proto(proto, path=PATH)


def refusal(proto: onnx.ModelProto, key: str = "") -> str:
    with pytest.raises(InputError) as caught:
        load(proto)
    assert key in str(caught.value) and caught.value.what.startswith("m.onnx: ")
    if key:
        check_whole(__file__, key, caught.value)
    return str(caught.value)


NAMELESS = model("y = Relu (x)")
NAMELESS.graph.initializer.add(data_type=1, dims=[0])
UNNAMED = model("y = Relu (x)")
UNNAMED.graph.output.add()
TWICE = model("y = Relu (x)")
for _ in range(2):
    places = TensorProto(data_type=TensorProto.INT64, dims=[0])
    TWICE.graph.sparse_initializer.add(values=TensorProto(name="s", data_type=1, dims=[0]), indices=places)
UNTYPED = model("y = Relu (x)")
UNTYPED.graph.node[0].op_type = ""
NOT_TEXT = model("mark = Relu (x)  y = Relu (mark)").SerializeToString().replace(b"mark", b"\xff\xfe\xff\xfe")


@each_row(
    ("proto", "says"),
    (NAMELESS, "an initializer of the graph has no name"),
    (UNNAMED, "an output of the graph has no name"),
    (TWICE, "the graph has the initializer 's' twice"),
    (UNTYPED, "'n_y' has no operator type"),
    (onnx.ModelProto.FromString(NOT_TEXT), "not UTF-8"),
)
def test_what_is_no_graph(proto: onnx.ModelProto, says: str) -> None:
    refusal(proto, says)


def test_without_a_version_only_the_least_is_asked() -> None:
    for body, refused in (("y = Slice (x)", False), ("y = Relu ()", True)):
        proto = model(body)
        del proto.opset_import[:]
        with pytest.raises(InputError, match="has 0 inputs") if refused else nullcontext():
            load(proto)


def calling(*functions: tuple[str, Sequence[str]]) -> onnx.ModelProto:
    """A model that calls the first of its functions, each of which calls others."""
    proto = model(f"y = own.{functions[0][0]} (x)")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for name, calls in functions:
        nodes = [helper.make_node(call, ["x"], [f"y{i}"], domain="own") for i, call in enumerate(calls)]
        proto.functions.append(helper.make_function("own", name, ["x"], ["y0"], nodes, opsets))
    return proto


def test_functions_neither_recurse_nor_expand_beyond_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal(calling(("F", ["F"])), "calls itself")
    refusal(calling(("F", ["G"]), ("G", ["F"])))
    chain = [(f"F{i}", [f"F{i + 1}"] * 2) for i in range(40)]
    refusal(calling(*chain, ("F40", ["Relu"])), "expand to more than")
    nameless = calling(("F", ["Relu"]))
    nameless.functions[0].name = ""
    refusal(nameless, "has no valid name")
    load(calling(*chain[30:], ("F40", ["Relu"])))
    inner = "a = own.F (x)  b = own.F (x)"
    branch = f"then_branch = t () => (float[4] a) {{ {inner} }}, else_branch = e () => (float[4] b) {{ {inner} }}"
    for most in (16, 15):  # of each call one for G, one for the Relu beside it, and two in G
        monkeypatch.setattr("deploykit.model.checks._MOST_EXPANDED", most)
        proto = calling(("F", ["G", "Relu"]), ("G", ["Relu", "Neg"]))
        proto.graph.node[0].CopyFrom(text_model("float[4] x, bool c", f"y = If (c) <{branch}>").graph.node[0])
        proto.graph.input.add(name="c")
        with pytest.raises(InputError, match="expand to more") if most < 16 else nullcontext():
            load(proto)


# The checker says nothing about the counts of an operator that its newest version deprecates.


def einsum(equation: str | bytes, *, nested: bool = False) -> onnx.ModelProto:
    names = [f"x{number}" for number in range(str(equation).count(",") + 1)]
    inner = f"b = Einsum ({', '.join(names)})"
    given_ = ", ".join(f"float[2,2] {name}" for name in names)
    other = "else_branch = e () => (float d) { d = Neg (x0) }"
    body = f"y = If (c) <then_branch = t () => (float b) {{ {inner} }}, {other}>" if nested else inner.replace("b", "y")
    proto = model(body, given=f"{given_}, bool c")
    node = proto.graph.node[0].attribute[0].g.node[0] if nested else proto.graph.node[0]
    node.name = "n"
    node.attribute.append(helper.make_attribute("equation", equation))
    return proto


def test_equations() -> None:
    """Over what is none onnx 1.22 and ONNX Runtime 1.32 compute until they are ended."""
    for right in ("ij->i", "ij", "...j->...", "a b -> a", "ij,jk->ik", "i...j,k->ik...j", "->", "", "Ab->bA", "ij->"):
        collect_facts(load(einsum(right)))
    for wrong in ("%s%n", "ij-", "ij>", "i.j", "....", "ab%", "ij->i->", b"\xff", "i\n", "i......"):
        assert all("'n' has the equation" in refusal(einsum(wrong, nested=nested)) for nested in (False, True)), wrong


def test_a_graph_of_too_many_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploykit.model.load.NODE_LIMIT", 3)
    branch = "then_branch = t () => (float[4] a) { a = Relu (x) }, else_branch = e () => (float[4] b) { b = Neg (x) }"
    inside = text_model("float[4] x, bool c", f"y = If (c) <{branch}>")
    called = calling(("F", ["Relu"] * 2))
    for small, node in ((text_model("float[4] x", "a = Relu (x)  b = Relu (a)  y = Relu (b)"), "Neg"), (inside, "Not")):
        large = onnx.ModelProto.FromString(small.SerializeToString())
        large.graph.node.add(op_type=node, input=[large.graph.input[-1].name], output=["more"])
        for proto, refused in ((small, False), (large, True), (called, False), (calling(("F", ["Relu"] * 3)), True)):
            onnx.save(proto, tmp_path / "m.onnx")
            with pytest.raises(InputError) if refused else nullcontext() as caught:
                load_model(tmp_path / "m.onnx")
    assert caught is not None
    check_whole(__file__, "too large", caught.value, tmp_path)
    onnx.save(inside, tmp_path / "m.onnx")
    for most, refused in ((2, False), (1, True)):
        monkeypatch.setattr("deploykit.model.load.GRAPH_LIMIT", most)
        with pytest.raises(InputError, match="more than 1 graphs inside of nodes") if refused else nullcontext():
            load_model(tmp_path / "m.onnx")


ENDED = (
    r"^'stumbled'$|^\S*m\.onnx: not a model that can be used\n  why: .+; reading on ended with KeyError: 'stumbled'\n"
    r"  next: export the model again; onnx\.checker\.check_model says more$"
)


@each_row(
    ("given", "body", "sound"),
    ("float[2,3] x", "y = Softmax <axis = 1> (x)", True),
    ("float[2,3] x", "y = Softmax <axis = 9> (x)", False),
    ("float[0,n] x", "y = Relu (x)", True),
    ("double[n,4] x, bool[2] b, float16[3] h", "y = Relu (x)", True),
    ("int64[2] x", "y = Div (x, x)", True),  # fed with zeros it would end the process
)
def test_a_model_is_judged_when_something_stumbled(given: str, body: str, sound: bool, tmp_path: Path) -> None:
    """What nobody foresaw is the model's fault where the model is none, and a defect where it is one."""
    path = tmp_path / "m.onnx"
    onnx.save(text_model(given, body, given.partition(" x")[0] + " y"), path)
    assert (what_is_wrong(path) == "") is sound
    with pytest.raises(KeyError if sound else InputError, match=ENDED), blaming(path):
        raise KeyError("stumbled")
    for kind in (UsageError, MemoryError):
        with pytest.raises(kind, match="as asked"), blaming(path):
            raise kind("as asked")
    onnx.save(text_model("float[5000,5000] x", "y = Relu (x)", "float[5000,5000] y"), path)
    assert what_is_wrong(path) == "its input 'x' has 25,000,000 elements"
    assert what_is_wrong(tmp_path / "absent.onnx") == ""


def test_the_newest_version_of_the_format_is_that_of_the_installed_onnx(tmp_path: Path) -> None:
    for version in (onnx.IR_VERSION, onnx.IR_VERSION + 1):
        proto = text_model("float[4] x", "y = Relu (x)")
        proto.ir_version = version
        onnx.save(proto, tmp_path / "m.onnx")
        with pytest.raises(InputError, match="IR version") if version > onnx.IR_VERSION else nullcontext():
            load_model(tmp_path / "m.onnx")


WHOLE = conv_net().SerializeToString()
TEXT_FORM = b"ir_version: 8\ngraph {\n}\n"


def relu_model() -> onnx.ModelProto:
    return text_model("float[1,4] x", "y = Relu (x)", "float[1,4] y")


def file_refusal(path: Path) -> str:
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
    (b"\x80\x02....", "an old PyTorch checkpoint"),
    (b"\x80\x04....", "a Python pickle"),
    (b"\x93NUMPY..", "NumPy"),
    (b"\x89HDF....", "HDF5"),
    (b"\x1f\x8b....", "gzip"),
    (b"\x7fELF....", "ELF"),
    (b"\xef\xbb\xbf [1]", "JSON (an"),
    (b"\x08\xe7\x07" + field(7, field(2, b"future")), "IR version 999"),
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
    said = file_refusal(path)
    assert says in said
    ours = re.sub(r"Error parsing.*|up to \d+", "…", said)  # without the words of protobuf and the version of onnx
    check_whole(__file__, says, ours, tmp_path)


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    for path in (tmp_path / "absent.onnx", tmp_path, tmp_path / "pipe.onnx"):
        check_whole(__file__, f"the path {path.relative_to(tmp_path)}", file_refusal(path), tmp_path)
    assert "cannot be read" in file_refusal(tmp_path / ("n" * 5000))


def test_a_file_beyond_the_limit_of_protobuf_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 31)
    check_whole(__file__, "2 GiB", file_refusal(path), tmp_path)


def hostile_nesting(depth: int) -> bytes:
    """A chain of If bodies inside each other, written from the inside out in linear time."""
    heads, length = [], 0
    for _ in range(depth):
        for number in (6, 5, 1):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            head = varint(number << 3 | 2) + varint(length)
            heads.append(head)
            length += len(head)
    return b"\x08\x08" + field(7, b"".join(reversed(heads)))


def test_hostile_files_are_refused_and_a_large_one_is_loaded(within_a_gigabyte: Callable[..., list[str]]) -> None:
    steps = "  ".join(f"t{i + 1} = Relu (t{i})" for i in range(2_000))
    *hostile, large = within_a_gigabyte(
        hostile_nesting(100_000),
        b"\x08\x08" + field(7, b"\x0a\x00" * 300_000),
        b"\x08\x08" + field(7, b"\x0a\x00" * 50_000),
        b"\x08\x08" + field(7, field(5, b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f" * 2 + b"\x10\x01\x42\x01w")),
        text_model("float[4] t0", steps, "t2000").SerializeToString(),
    )
    assert all(line.startswith("refused:") for line in hostile) and "damaged" in hostile[0]
    assert large == "(4,) "


def tensor(**fields: object) -> TensorProto:
    return TensorProto(**({"name": "w", "data_type": TensorProto.FLOAT, "dims": [2]} | fields))  # type: ignore[arg-type]


BAD_TENSORS: list[tuple[dict[str, Any], str]] = [
    ({"raw_data": b"\0" * 7}, "holds 7 bytes"),
    ({"raw_data": b"\0" * 9}, "need 8"),
    ({"float_data": [1.0]}, "holds 1 values"),
    ({"dims": [], "raw_data": b"\0" * 8}, "(a scalar) need 4"),
    *(
        ({"dims": [1] * rank, "raw_data": b""}, f"dimensions {'1 x ' * 7}1{more} need")
        for rank, more in ((8, ""), (9, " x …"))
    ),
    ({}, "holds 0 values"),
    ({"dims": [-1, 2]}, "negative dimension -1"),
    ({"dims": [1 << 40, 1 << 40]}, "more elements than any file"),
    ({"dims": [1] * 1000}, "1000 dimensions"),
    ({"dims": [1] * 65, "raw_data": b"\0" * 4}, "65 dimensions"),
    ({"dims": [1] * 64, "raw_data": b""}, "holds 0 bytes"),
    ({"dims": [1 << 31, 1 << 31]}, "2147483648 x 2147483648 need"),
    ({"dims": [1 << 31, (1 << 31) + 1]}, "2147483648 x 2147483649"),
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
    assert says in str(caught.value)
    check_whole(__file__, f"{make.get('data_type', '')} {says}", caught.value)


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
