"""Models taken apart: what each part reads, makes and weighs, graphs over the same weights, and parts as files."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

import deploykit
from deploykit.accuracy.simulate.sessions import Session
from deploykit.encodings.cut import cut_alike, cut_model, large_weights
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.errors import PackageError, UsageError
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from deploykit.model.weights import load_weights
from sample_models.feeds import random_feeds
from sample_models.shared_weights import write_graphs
from tables import each_row
from text_models import text_model
from whole_answers import check_whole


def names(items: Any) -> list[str]:
    return [item.name for item in items]


@pytest.fixture(scope="module", params=["float", "blocks"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoder")
    write_graphs(folder, request.param)
    return folder


def test_parts_compute_what_the_whole_does_and_weights_stay_together(decoder: Path) -> None:
    models = [load_weights(load_model(decoder / f"{name}.onnx")) for name in ("prefill", "decode")]
    sizes = large_weights(models[0])
    cut = cut_alike(models, 3, sizes)
    for model, parts in zip(models, cut, strict=True):
        known: dict[str, Any] = random_feeds(model, samples=1)[0]
        wanted = Session(model).run(known)
        for part in parts:
            onnx.checker.check_model(part.model, full_check=True)
            known |= Session(part.model).run({name: known[name] for name in names(part.model.graph.input)})
        for name, values in wanted.items():
            np.testing.assert_array_equal(known[name], values, err_msg=name)
        given = set(names(model.graph.input))
        crossing = [set(part.inputs) - given for part in parts[1:]]
        assert all(len(each) == 1 and "hidden" in each.pop() for each in crossing)
    prefill, decode = cut
    assert [set(part.weights) for part in prefill] == [set(part.weights) for part in decode]
    assert set().union(*(part.weights for part in prefill)) == sizes.keys()
    shares = [sum(sizes[name] for name in part.weights) for part in prefill]
    assert max(shares) < 1.5 * sum(shares) / 3
    assert [len(parts) for parts in cut_alike(models, 1, sizes)] == [1, 1]
    if decoder.joinpath("decoder.encodings").exists():
        return  # what follows is about models with pairs in them
    first, second = cut_alike(models, 2, sizes)[0]
    (crossed,) = set(second.inputs) & set(first.outputs)
    made = next(node for node in first.model.graph.node if crossed in node.output)
    (reader,) = [node for node in second.model.graph.node if crossed in node.input]
    assert (made.op_type, reader.op_type) == ("DequantizeLinear", "QuantizeLinear")
    assert list(reader.input[1:]) == list(made.input[1:]), "a cut tensor keeps its grid on both sides"


def chain(weights: str) -> ModelProto:
    """One MatMul after the other, by these weights."""
    steps = [f"x{number + 1} = MatMul (x{number}, {name})" for number, name in enumerate(weights)]
    made = f"float[1,32] x{len(weights)}"
    stored: dict[str, Any] = {name: np.eye(32, dtype="f4") for name in weights}
    return text_model("float[1,32] x0", "  ".join(steps), made, **stored)


@each_row(
    ("chains", "sizes", "count", "expected"),
    # a graph without a weight of the other is cut all the same
    (("abcd", "abecd"), None, 2, ["ab", "cd"]),
    # a weight larger than a part is a part of its own
    (("abcd",), {"a": 4096, "b": 16, "c": 16, "d": 16}, 4, ["a", "b", "c", "d"]),
    (("abcd", "dcba"), None, 2, "where the first one is"),
    (("ab",), None, 3, "cannot be cut into 3 parts"),
)
def test_where_chains_are_cut(
    chains: tuple[str, ...], sizes: dict[str, int] | None, count: int, expected: list[str] | str
) -> None:
    models = [chain(weights) for weights in chains]
    given = sizes or large_weights(models[0])
    assert large_weights(text_model("float[33] x", "y = MatMul (x, w)", w=np.ones((33, 31), "f4"))) == {}
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=expected) as caught:
            cut_alike(models, count, given)
        check_whole(__file__, expected, caught.value)
        return
    for parts in cut_alike(models, count, given):
        assert ["".join(sorted(set(part.weights) - {"e"})) for part in parts] == expected


def test_parts_say_of_themselves_what_the_whole_does() -> None:
    model = text_model("float[4] x", "a = own.F (x)  b = Neg (a)  c = Relu (b)  y = Exp (c)", "float[4] y", opset=18)
    model.ir_version, model.producer_name = 9, "somebody"
    model.functions.add(name="F", domain="own", input=["p"], output=["q"]).node.add(op_type="Neg")
    for part, inside in zip(cut_model(model, [2, 3]), ({"a"}, {"c"}), strict=True):
        assert (part.ir_version, part.producer_name, list(part.functions)) == (9, "somebody", list(model.functions))
        assert list(part.opset_import) == list(model.opset_import) and {*names(part.graph.value_info)} <= inside


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    write_graphs(folder, "float")
    return folder


def run_parts(source: Path, parts: list[Path], feeds: dict[str, Any], *, rtol: float, atol: float = 0.0) -> None:
    """One file after the other, against the whole."""
    known = dict(feeds)
    for part in parts:
        model = load_weights(load_model(part))
        known |= Session(model).run({name: known[name] for name in names(model.graph.input)})
    for name, values in Session(load_weights(load_model(source))).run(feeds).items():
        np.testing.assert_allclose(known[name], values, rtol=rtol, atol=atol)


def test_the_files_run_one_after_the_other_with_the_entries_of_their_tensors(plain: Path, tmp_path: Path) -> None:
    both, encodings = [plain / "prefill.onnx", plain / "decode.onnx"], plain / "decoder.encodings"
    reports = deploykit.split(both, tmp_path / "parts", parts=2, encodings=encodings)
    rows = (f"{one.model.name} {one.weight_bytes}: {one.inputs} -> {one.outputs}, {one.encodings}" for one in reports)
    check_whole(__file__, "parts", "\n".join(rows), tmp_path)
    made = {path.name for path in (tmp_path / "parts").iterdir() if path.suffix != ".encodings"}
    files = [f"{name}_{number}.onnx" for name in ("prefill", "decode") for number in (1, 2)]
    assert made == {"part_1.data", "part_2.data", *files} and {report.model.name for report in reports} == {*files}
    data = sum(path.stat().st_size for path in (tmp_path / "parts").glob("*.data"))
    assert data == (plain / "weights.data").stat().st_size
    for source in both:
        mine = [report.model for report in reports if report.model.stem.startswith(source.stem)]
        assert all(load_model(part).external for part in mine)
        (feeds,) = random_feeds(onnx.load(source), samples=1)
        run_parts(source, mine, feeds, rtol=1e-4, atol=1e-4)
    decode = [report for report in reports if report.model.stem.startswith("decode")]
    kept = [read_encodings(report.encodings).entries for report in decode if report.encodings is not None]
    (crossing,) = set(decode[0].outputs) & set(decode[1].inputs)
    assert len(kept) == 2 and crossing in kept[0] and crossing in kept[1]
    assert kept[0].keys() | kept[1].keys() == read_encodings(encodings).entries.keys()
    for entries, report in zip(kept, decode, strict=True):
        assert entries.keys() <= collect_facts(load_model(report.model)).tensors.keys()
    with pytest.raises(PackageError) as caught:  # the folder is there now
        deploykit.split(both, tmp_path / "parts", parts=2)
    check_whole(__file__, "parts exist", caught.value, tmp_path)


def test_what_cannot_be_written_leaves_nothing(plain: Path, tmp_path: Path) -> None:
    model = plain / "decode.onnx"
    with pytest.raises(PackageError, match="no such folder"):
        deploykit.split([model], tmp_path / "missing" / "parts", parts=2)
    with pytest.raises(UsageError, match="cannot be cut into 90 parts"):
        deploykit.split([model], tmp_path / "parts", parts=90)
    with pytest.raises(UsageError, match="two models are called decode") as caught:
        deploykit.split([model] * 2, tmp_path / "parts", parts=2)
    check_whole(__file__, "two models", caught.value)
    assert list(tmp_path.iterdir()) == []
    onnx.save(chain("ab"), tmp_path / "m.onnx")  # with no weights beside it the parts have none either
    deploykit.split([tmp_path / "m.onnx"], tmp_path / "parts", parts=2)
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {"m_1.onnx", "m_2.onnx"}
