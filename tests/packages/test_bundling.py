"""A bundle holds the structure of a case and nothing of whose it is; what was packed is read back."""

import json
import os
import zipfile
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import deploykit
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.errors import DefectError, InputError
from deploykit.packages.bundling import Bundle, BundleNames, clean_text, pack_bundle, personal_words
from tables import each_row

AIMET = Path(__file__).parents[1] / "data/aimet"


@pytest.fixture(autouse=True)
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "Erika")
    monkeypatch.setattr("platform.node", lambda: "lab-seven.example.org")
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, "/Users/mustermann")


def stored_values(model: onnx.ModelProto) -> Iterator[np.ndarray]:
    for tensor in model.graph.initializer:
        yield numpy_helper.to_array(tensor)
    for node in model.graph.node:
        yield from (numpy_helper.to_array(item.t) for item in node.attribute if item.HasField("t"))


def telling_case(folder: Path) -> Path:
    """A model with weights everywhere that a graph may hold them, and with traces of where it was made."""
    rng = np.random.default_rng(3)

    def drawn(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)

    places = numpy_helper.from_array(np.arange(3), "")
    scattered = helper.make_sparse_tensor(drawn("erika.few", 3), places, [40])
    inner = helper.make_graph(
        [helper.make_node("Add", ["y", "inner.weight"], ["z"])],
        "branch of Erika",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 40])],
        [drawn("inner.weight", 40)],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "erika.weight"], ["h"], name="/Users/erika/net/MatMul"),
        helper.make_node("Constant", [], ["c"], value=drawn("", 40)),
        helper.make_node("Constant", [], ["s"], value_float=0.7310585),
        helper.make_node("Add", ["h", "c"], ["y0"]),
        helper.make_node("Mul", ["y0", "s"], ["y1"]),
        helper.make_node("Reshape", ["y1", "shape"], ["y"]),
        helper.make_node("Own", ["y0"], ["own"], domain="own", note="a secret", gains=[0.7310585]),
        helper.make_node("Constant", [], ["words"], value=numpy_helper.from_array(np.array(["secret"], object), "")),
        helper.make_node("Constant", [], ["few"], sparse_value=scattered),
        helper.make_node("If", ["flag"], ["out"], then_branch=inner, else_branch=inner),
    ]
    nodes[0].doc_string = "/Users/mustermann/net.py:12"
    shape = numpy_helper.from_array(np.array([0, 40], np.int64), "shape")
    flag = numpy_helper.from_array(np.array(True), "flag")
    graph = helper.make_graph(
        nodes,
        "on lab-seven",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 300])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", 40])],
        [drawn("erika.weight", 300, 40), shape, flag],
    )
    model = helper.make_model(graph, opset_imports=[*map(helper.make_opsetid, ("", "own"), (17, 1))], ir_version=8)
    model.graph.sparse_initializer.append(scattered)
    helper.set_model_props(model, {"source": "/Users/mustermann/net.py"})
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx"


def unpacked(made: Bundle, folder: Path) -> None:
    """What any program that knows zip files makes of it."""
    with zipfile.ZipFile(made.path) as archive:
        archive.extractall(folder)


@pytest.mark.parametrize("numbered", [False, True], ids=["names", "numbers"])
def test_no_weight_path_or_name_of_anybody_is_in_it(numbered: bool, tmp_path: Path) -> None:
    model = telling_case(tmp_path)
    log = tmp_path / "convert.log"
    log.write_text(
        "reading /Users/mustermann/secret/net.onnx for Erika@example.org on LAB-SEVEN\n"
        "C:\\Users\\erika\\net.onnx, ~/secret/net.onnx, \\\\server\\share\\net.onnx, 192.168.3.4, mustermann\n"
    )
    (table := tmp_path / "encodings").write_text(
        '{"version": "1.0.0", "made": ["at /Users/secret/net"], "activation_encodings": [{"name": "stranger"}]}'
    )
    more: Any = {"logs": [log], "asked": {"note": "see /Users/erika/x"}, "encodings": table}
    pack_bundle(model, tmp_path / "case.zip", numbered=numbered, **more)
    with zipfile.ZipFile(tmp_path / "case.zip") as archive:
        names = archive.namelist()
        held = b"\n".join([*map(archive.read, names), *map(str.encode, names)])
        assert max(one.file_size for one in archive.infolist()) == 300 * 40 * 4, "ones for the largest of the weights"
    assert (b"stranger" in held) is not numbered
    few = numpy_helper.to_array(onnx.load(model).graph.sparse_initializer[0].values)
    assert few[:1].tobytes() not in held
    for word in (b"erika", b"mustermann", b"lab-seven", b"/Users", b"secret", b"server", b"192.168"):
        assert word.lower() not in held.lower(), word
    whole = onnx.load(model)
    inner = whole.graph.node[-1].attribute[0].g.initializer[0]
    drawn = [value for value in (*stored_values(whole), numpy_helper.to_array(inner)) if value.dtype == np.float32]
    assert len(drawn) == 3
    for value in drawn:
        flat = value.ravel()
        assert not any(flat[at : at + 1].tobytes() in held for at in range(0, flat.size, max(1, flat.size // 40)))
    assert np.float32(0.7310585).tobytes() not in held


def test_names_stay_in_logs_and_encodings_or_become_the_same_numbers(tmp_path: Path) -> None:
    model, *tables = (AIMET / "cnn" / name for name in ("model.onnx", "w8a8.v1.0.0.encodings", "w8a8.v0.6.1.encodings"))
    place, name = next(
        (place, node.output[0])
        for place, node in enumerate(onnx.load(model).graph.node)
        if node.output[0] in read_encodings(tables[0]).entries and "/" in node.output[0]
    )
    (tmp_path / "log").write_text(f"at {name}: wrong\nin {name.rpartition('/')[0]} and {name.replace('/', '_')}\n")
    for numbered, encodings in product((False, True), tables):
        case = tmp_path / f"case{numbered}{encodings.stem}"
        packed = pack_bundle(
            model, case.with_suffix(".zip"), encodings=encodings, logs=[tmp_path / "log"], numbered=numbered
        )
        unpacked(packed, case)
        assert {path.name for path in case.iterdir()} == set(packed.contents)
        new = onnx.load(case / "model.onnx").graph.node[place].output[0]
        assert (new == name) is not numbered
        assert (case / "log-1.txt").read_text().startswith(f"at {new}: wrong\n")
        assert new in read_encodings(case / "model.encodings").entries
        if numbered:
            assert name not in (case / "log-1.txt").read_text()
            assert set(read_encodings(case / "model.encodings").entries).isdisjoint(read_encodings(encodings).entries)


def test_what_was_packed_is_judged_as_before(tmp_path: Path) -> None:
    """Rules that look at the graph and at encodings find the same; that is what a case is for."""
    for model, encodings in (("detr", "w8a16.v1.0.0.encodings"), ("mlp", "bq-w4a16.v1.0.0.encodings")):
        given = AIMET / model / "model.onnx"
        table = AIMET / model / encodings
        case = tmp_path / model
        unpacked(pack_bundle(given, case.with_suffix(".zip"), encodings=table), case)
        look = partial(deploykit.check, target="sm8650", sdk="2.37", second_opinion=False)
        both = look(given, encodings=table), look(case / "model.onnx", encodings=case / "model.encodings")
        # That its stubs lie in files beside it is the one thing new; the encodings file has a name of the bundle's own.
        kinds = [
            {(f.code, str(f.severity), f.subject.name.replace(table.name, "model.encodings")) for f in found}
            - {("DK013", "info", "model.onnx")}
            for found in both
        ]
        assert kinds[0], model
        assert kinds[0] <= kinds[1], model
        # What ones compute is of no worth, and two rules look at that.
        assert {code for code, _, _ in kinds[1] - kinds[0]} <= {"DK202", "DK205"}, model


def test_it_says_what_is_inside_and_packs_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["diagnose", "--model", str(AIMET / "mlp/model.onnx"), "--target", "sm8650", "--pack"]
    assert run(cli, [*asked, str(tmp_path / "a.zip")]) == 0
    told = capsys.readouterr().out
    assert run(cli, [*asked, str(tmp_path / "b.zip"), "--json"]) == 0
    contents = json.loads(capsys.readouterr().out)["contents"]
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert set(archive.namelist()) == set(contents)
        read_me = archive.read("README.txt").decode()
        assert json.loads(archive.read("case.json"))["asked"] == {"target": "sm8650"}
        assert archive.read("versions.txt").decode().startswith("deploykit ")
    assert all(f"{name}: {text}" in read_me and name in told for name, text in contents.items())
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    unpacked(Bundle(path=tmp_path / "a.zip", contents={}), tmp_path / "case")
    assert (
        run(cli, ["check", "--plan", str(tmp_path / "case/model.onnx"), "--target", "sm8650", "--precision", "fp16"])
        == 0
    )


def test_what_cannot_be_made_or_is_none_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploykit.packages.bundling.clean_text", lambda text, *_: text)
    with pytest.raises(DefectError, match="account or a machine"):
        pack_bundle(AIMET / "mlp/model.onnx", tmp_path / "leak.zip", asked={"note": "Erika says"})
    assert not (tmp_path / "leak.zip").exists()


def test_what_is_no_file_or_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deep.encodings").write_text('{"a":' * 100_000)
    with pytest.raises(InputError, match="nested too deeply"):
        pack_bundle(AIMET / "mlp/model.onnx", tmp_path / "a.zip", encodings=tmp_path / "deep.encodings")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="regular file"):
        pack_bundle(AIMET / "mlp/model.onnx", tmp_path / "a.zip", logs=[tmp_path / "pipe"])
    assert not (tmp_path / "a.zip").exists()


@each_row(
    ("text", "told"),
    ("to me.too+x@example.co.uk, 10.0.0.7", "to <mail>, <address>"),
    ("172.16.1.2 172.31.1.2 192.168.3.4", "<address> <address> <address>"),
    ("172.15.1.2 172.32.1.2 11.1.1.1 192.169.1.1", "172.15.1.2 172.32.1.2 11.1.1.1 192.169.1.1"),
    ("/a ~/a C:\\a", "/a ~/a C:\\a"),
    ("/usr/lib/x.so: ~/a/b C:\\a\\b.onnx", "<path>.so: <path> <path>.onnx"),
    ("\\\\server\\share", "<path>"),
    ("/model/conv/out: _model_conv_out, /model/conv.", "t1: t1, <scope>."),
    ("plain- ERIKA's", "n2- <name>'s"),
)
def test_what_is_replaced_in_a_text(text: str, told: str) -> None:
    names = BundleNames(numbered=True, personal=("erika",))
    assert (names.of_kind("t")("/model/conv/out"), names.of_kind("n")("plain"), names.of_kind("n")("")) == (
        "t1",
        "n2",
        "",
    )
    assert clean_text(text, names, ("erika",)) == told


def test_words_that_say_nothing_about_anybody_stay() -> None:
    assert personal_words("abc", "ab.de.f", "Work") == ("ab.de.f", "abc")
    as_they_were = BundleNames(numbered=False, personal=("erika",))
    assert [as_they_were.of_kind("t")(name) for name in ("/a/b/c", "/Erika/x")] == ["/a/b/c", "t2"]
    assert clean_text("/a/b /a/b/c /c/b/a", as_they_were, ()) == "/a/b /a/b/c <path>"
    assert personal_words("root", "localhost", "root") == ()
    assert personal_words("jo", "pc", "") == ()
    assert personal_words("Erika", "lab.example.org", "erika") == ("lab.example.org", "erika", "lab")
    names = BundleNames(numbered=False, personal=())
    kept = "2.33.0.250327: graph_prepare.cc:12 src/plugins/x.cpp 3/4 and/or 10.0 done."
    assert clean_text(kept, names, ()) == kept
