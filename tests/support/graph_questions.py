"""Questions about small graphs with their whole answers, in files beside the tests of a room.

    # A title: each one is a test
    (float[2] x) => (float[2] y) <float two = {2}> { y = Mul (x, two) }
    with x -1..2, y:int8 0.5, w:int8@0 0.5/0.25, h:float16, k:listed
    ? reach
        y: -2 .. 4, because of x

A line with ``(`` at its beginning is a graph in ONNX's text form, after the number of its operator set where that is
not 17; why it is refused is said there and then. ``with`` gives entries: a range (uint16, where no type is said),
scales (with the axis of several, ``@?`` where nobody knows it), a cast, a tensor that is listed as float. Behind a
value: ``symmetric``, ``parameter``, ``zero=3``, and ``block=2@0`` with rows that ``;`` ends. After a change that is
wanted: ``DEPLOYKIT_WRITE_GOLDEN=1`` with ``-n 0``.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from msgspec import Struct
from msgspec.structs import replace
from onnx import ModelProto

from deploykit.encodings.new_grids import GridKind, affine_for_range
from deploykit.encodings.values import Affine, Encoding, EncodingSet, Float, Float8
from deploykit.errors import InputError
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import Model, wrap_proto


class Asked(Struct, frozen=True):
    """A graph and its entries; what stands behind the name of the question is ``words``."""

    model: Model
    encodings: EncodingSet
    words: tuple[str, ...]

    @property
    def proto(self) -> ModelProto:
        return self.model.proto

    @property
    def facts(self) -> GraphFacts:
        return collect_facts(self.model)


def answers_of(path: Path, questions: Mapping[str, Callable[[Asked], Iterable[str]]]) -> Callable[..., None]:
    """A test of every title of the file: its questions are answered as it stands there."""
    titles = enumerate(_parts(path)[1:], 1)

    @pytest.mark.parametrize("number", [pytest.param(at, id=part.splitlines()[0]) for at, part in titles])
    def test_answers(number: int) -> None:
        parts = _parts(path)
        said = "".join(_answered(parts[number], questions))
        if os.environ.get("DEPLOYKIT_WRITE_GOLDEN"):
            parts[number] = said
            path.write_text("# ".join(parts), "utf-8")
        assert said.splitlines() == parts[number].splitlines()

    return test_answers


def _parts(path: Path) -> list[str]:
    return re.split(r"^# ", path.read_text("utf-8"), flags=re.MULTILINE)


def _answered(part: str, questions: Mapping[str, Callable[[Asked], Iterable[str]]]) -> Iterator[str]:
    asked, (title, *lines) = Asked(graph("(float x) => (float y) { y = Neg (x) }"), entries(""), ()), part.splitlines()
    yield f"{title}\n"
    for line in (line for line in lines if not line.startswith("    ")):
        yield f"{line}\n"
        try:
            if line.startswith("with "):
                asked = replace(asked, encodings=entries(line.removeprefix("with ")))
            elif line.startswith("? "):
                _, name, *words = line.split()
                yield from (f"    {answer}\n" for answer in questions[name](replace(asked, words=tuple(words))))
            elif line:
                asked = Asked(graph(line), entries(""), ())
        except InputError as error:
            yield from (f"    {told}\n" for told in str(error).splitlines())


def graph(text: str) -> Model:
    """A graph of one line."""
    opset, _, rest = text.partition(" ") if text[0].isdecimal() else ("17", "", text)
    opsets = f'"": {opset}, "own": 1, "com.microsoft": 1'
    proto = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{opsets}]> g {rest}")
    return wrap_proto(proto, path=Path("m.onnx"))


def entries(text: str) -> EncodingSet:
    """The entries behind ``with``."""
    made, listed = dict[str, Encoding](), set[str]()
    for row in filter(None, text.split(", ")):
        tensor, *value = row.split()
        name, _, kind = tensor.partition(":")
        dtype, _, axis = (kind or "uint16").partition("@")
        if kind == "listed":
            listed.add(name)
            continue
        said = dict(word.partition("=")[::2] for word in value[1:])
        symmetric, is_param = "symmetric" in said, True if "parameter" in said else None
        found = re.fullmatch(r"(u?)int(\d+)", dtype)
        if found is None:
            cast = Float8(dtype=dtype, scale=np.asarray(float(value[0]))) if value else Float(dtype=dtype)
            made[name] = Encoding(name=name, value=cast, is_param=is_param)
            continue
        bits, signed = int(found[2]), not found[1]
        if ".." in value[0]:
            low, high = map(float, value[0].split(".."))
            grid = affine_for_range(low, high, GridKind(bits=bits, signed=signed, symmetric=symmetric))
        else:
            rows = [[*map(float, each.split("/"))] for each in value[0].split(";")]
            scale = np.asarray(rows if "block" in said else rows[0] if axis else rows[0][0])
            known = axis != "?"
            along = int(axis) if axis and known else None
            size, _, block_axis = said.get("block", "").partition("@")
            grid = Affine(
                bits=bits,
                signed=signed,
                scale=scale,
                zero_point=np.full_like(scale, float(said.get("zero", 0))),
                symmetric=symmetric or None,
                axis=along,
                block_axis=int(block_axis) if block_axis else None,
                block_size=int(size) if size else None,
                placed=known,
            )
        made[name] = Encoding(name=name, value=grid, is_param=is_param)
    return EncodingSet(version="1.0.0", entries=made, float_tensors=frozenset(listed), source="w.encodings")
