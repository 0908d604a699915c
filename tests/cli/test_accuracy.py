"""The commands accuracy and encodings."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.read import read_float_tensors
from deploykit.encodings.values import Lpbq
from tables import each_row

AIMET = Path(__file__).parents[1] / "data" / "aimet"
DETR = str(AIMET / "detr" / "model.onnx")
W8A16, W8A8 = (str(AIMET / "detr" / f"{name}.v1.0.0.encodings") for name in ("w8a16", "w8a8"))


def data_of(precision: str, folder: Path) -> str:
    """Both recorded samples in one file."""
    with np.load(AIMET / "detr" / f"{precision}.io.npz") as stored:
        keys = [key for key in stored.files if key.startswith("input.")]
        np.savez(folder / "all.npz", **{key.removeprefix("input."): stored[key] for key in keys})
    return str(folder / "all.npz")


def test_json_on_given_data_has_the_recorded_sqnr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["--json", "accuracy", "simulate", DETR, "--encodings", W8A16, "--data", data_of("w8a16", tmp_path)]
    assert run(cli, call) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["sqnr_db"] == pytest.approx(10.21, abs=0.01)
    assert (value["samples"], value["data"]) == (2, "given")
    assert [output["name"] for output in value["outputs"]] == ["detections"]
    assert run(cli, [*call, "--samples", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 1


def test_without_data_it_says_what_the_inputs_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["accuracy", "simulate", DETR, "--encodings", W8A16, "--seed", "7"]) == 0
    assert "8 derived samples" in capsys.readouterr().out
    entries = json.loads(Path(W8A16).read_text())
    entries["activation_encodings"] = [e for e in entries["activation_encodings"] if e["name"] != "images"]
    (tmp_path / "less.json").write_text(json.dumps(entries))
    assert run(cli, ["--json", "accuracy", "simulate", DETR, "--encodings", str(tmp_path / "less.json")]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["data"] == "arbitrary"
    assert value["inputs"]["inputs"]["orig_target_sizes"]["label"] == "derived"


def test_limits_of_the_verdict_can_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """AIMET's own W8A16 of this detector is 90 px off: the verdict says so, and the status follows what was asked."""
    call = ["accuracy", "simulate", DETR, "--encodings", W8A16, "--data", data_of("w8a16", tmp_path)]
    assert run(cli, call) == 0
    said = capsys.readouterr().out
    assert "right: no, on 2 given samples" in said and "px where at most 8 px is asked" in said
    for limit, status in (("--min-sqnr=70", 1), ("--min-sqnr=5", 0), ("--max-box-error=200", 0)):
        assert run(cli, [*call, limit]) == status, limit
    assert run(cli, [*call, "--max-box-error", "20"]) == 1
    assert "px where at most 20 px is asked" in capsys.readouterr().out


def test_the_worst_come_first_and_the_page_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    call = ["accuracy", "layers", DETR, "--encodings", W8A8, "--data", data_of("w8a8", tmp_path)]
    call += ["--top", "3", "--report", str(page)]
    assert run(cli, call) == 0
    said = capsys.readouterr().out
    assert "7.91 dB with everything quantized" in said
    assert said.index("/decoder/Div ") < said.index("/decoder/Add_2 ")
    assert re.search(r" \+\d\d?\.\d\d dB +/decoder/Div ", said), "what is gained where it stays in float"
    text = page.read_text("utf-8")
    assert "/decoder/Div_output_0" in text
    chart = text[text.index("<svg") : text.index("</section>", text.index("<svg"))]
    drawing = ElementTree.fromstring(chart[: chart.rindex("</svg>") + 6])
    assert len(drawing.findall(".//rect")) >= 28
    assert "http" not in text  # nothing from outside
    assert run(cli, call) == 6
    assert "--force" in capsys.readouterr().err


def test_layers_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["--json", "accuracy", "layers", DETR, "--encodings", W8A8, "--data", data_of("w8a8", tmp_path)]
    assert run(cli, [*call, "--fresh", "--seconds", "0"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == 1 and value["whole"]["db"] == pytest.approx(7.91, abs=0.01)
    assert value["samples"]["label"] == "given" and value["unmeasured"] > 0


def test_without_data_the_order_is_no_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["accuracy", "layers", DETR, "--precision", "w8a8", "--samples", "1", "--seconds", "0"]
    assert run(cli, call) == 0
    assert "no evidence" in capsys.readouterr().out


def test_what_the_model_is_to_be_must_be_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, ["accuracy", "layers", DETR, "--data", data_of("w8a8", tmp_path)]) == 2
    assert "--precision w8a8" in capsys.readouterr().err


DETR_OF_ENCODINGS = str(AIMET / "detr/model.onnx")
MLP = str(AIMET / "mlp/model.onnx")


def file(name: str) -> str:
    return str(AIMET / name)


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    """Run with --json; the status and the one JSON value on stdout."""
    status = run(cli, ["encodings", *args, "--json"])
    value = json.loads(capsys.readouterr().out)
    assert value["schema"] == 1
    return status, value


def text(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    status = run(cli, ["encodings", *args])
    return status, capsys.readouterr().out


def test_show_of_a_file_a_qdq_model_and_one_placed_on_its_model(capsys: pytest.CaptureFixture[str]) -> None:
    status, value = call(capsys, "show", file("cnn/w8a8.v1.0.0.encodings"))
    assert status == 0 and value["version"] == "1.0.0"
    assert value["counts"]["tensors"] == len(value["tensors"]) == 18
    assert {"name", "kind", "dtype", "bitwidth"} <= value["tensors"][0].keys()
    status, out = text(capsys, "show", file("cnn/w8a8.v1.0.0.encodings"))
    assert status == 0 and out.startswith("version 1.0.0, by aimet-onnx 2.42.0: 18 tensors")
    assert "not stated  0.003195 .. 0.007765  0           -0.993976 .. 0.98621   conv1.weight" in out
    status, value = call(capsys, "show", file("mlp/w8a8.qdq.onnx"), "logits", "--values")
    assert status == 0 and value["version"] == "qdq"
    assert [row["name"] for row in value["tensors"]] == ["logits"] and "values" in value["tensors"][0]
    status, value = call(capsys, "show", file("mlp/w8a8.qdq.onnx"), "nothing")
    assert status == 2 and "no entry for 'nothing'" in value["error"]["what"]
    blocks = file("mlp/bq-w4a16.v1.0.0.encodings")
    rows = [call(capsys, "show", blocks, "fc1.weight", *more)[1]["tensors"][0] for more in ((), ("--model", MLP))]
    assert [row["axis"] for row in rows] == [None, 0]
    assert "0, blocks of 16 along 1" in text(capsys, "show", blocks, "--model", MLP)[1]


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    status, value = call(capsys, "check", file("detr/w8a8.v1.0.0.encodings"), "--model", DETR_OF_ENCODINGS)
    assert status == 0 and value["summary"] == {"error": 0, "warning": 3, "info": 0}
    status, value = call(capsys, "check", file("cnn/w8a8.v1.0.0.encodings"), "--model", DETR_OF_ENCODINGS)
    assert status == 1 and value["findings"][0]["code"] == "DK102"
    assert run(cli, ["encodings", "check", file("cnn/w8a8.v1.0.0.encodings")]) == 2


def test_convert_and_back_with_the_float_list(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, back = tmp_path / "new.encodings", tmp_path / "back"
    source = file("detr/w8a8-fp16mix-explicit.v1.0.0.encodings")
    status, value = call(capsys, "convert", source, "--to", "2.0.0", "--model", DETR_OF_ENCODINGS, "-o", str(out))
    side = tmp_path / "new.encodings.float_tensors.json"
    assert status == 0 and value["written"] == [str(side), str(out)]
    assert value["counts"] == {"lossless": 31, "lossy": 10, "impossible": 0}
    assert len(value["losses"]) == 10 and len(value["float_tensors"]) == 10
    assert read_encodings(out).version == "2.0.0" and len(read_encodings(out)) == 31
    assert read_float_tensors(side) == set(value["float_tensors"])
    more = ("--model", DETR_OF_ENCODINGS, "--float-tensors", str(side), "-o", str(back))
    status, value = call(capsys, "convert", str(out), "--to", "1.0.0", *more)
    assert status == 0 and not value["warnings"] and not value["float_tensors"]
    status, value = call(capsys, "diff", source, str(back))
    assert status == 0 and value["differences"] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [back.name, out.name, side.name]


def test_what_stands_there_is_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, side = tmp_path / "x.encodings", tmp_path / "y.float_tensors.json"
    for path in (out, side):
        path.write_text("mine")
    args = ("convert", file("cnn/w8a8.v1.0.0.encodings"), "--to", "0.6.1", "-o")
    refused = {out: "exists and was kept", tmp_path: "is a folder", tmp_path / "no" / "x": "cannot be written"}
    for place, told in refused.items():
        status, value = call(capsys, *args, str(place))
        assert status == 6 and told in value["error"]["what"]
    floats = ("convert", file("detr/fp16.v1.0.0.encodings"), "--to", "2.0.0", "--model", DETR_OF_ENCODINGS)
    assert call(capsys, *floats, "-o", str(tmp_path / "y"))[0] == 6
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["mine", "mine"]
    status, _ = call(capsys, *args, str(out), "--force")
    assert status == 0 and read_encodings(out).version == "0.6.1"


def test_nothing_is_written_when_something_is_impossible(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "x.encodings"
    args = ("convert", file("mlp/lpbq-w4a16.v1.0.0.encodings"), "--to", "0.6.1", "--model", MLP, "-o", str(out))
    status, value = call(capsys, *args)
    assert status == 1 and value["written"] == [] and not out.exists()
    assert {loss["outcome"] for loss in value["losses"]} == {"impossible"}
    status, shown = text(capsys, *args)
    assert status == 1 and "nothing was written; --partial" in shown and "0.6.1 has no LPBQ entries" in shown
    status, _ = call(capsys, *args, "--partial")
    assert status == 1 and len(read_encodings(out)) == 9


def test_convert_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "x"
    vit = str(AIMET / "vit/model.onnx")
    source = file("vit/w8a8.v1.0.0.encodings")
    expected = {"unsigned": ("uint8", "uint8"), "signed": ("int8", "int8"), "as-is": ("uint8", "int8")}
    for choice, types in expected.items():
        more = ("--activations", choice, "-o", str(out), "--force")
        call(capsys, "convert", source, "--to", "2.0.0", "--model", vit, *more)
        written = read_encodings(out).entries
        assert (written["logits"].dtype, written["/blocks/0/attn/qkv/Add_output_0"].dtype) == types
        assert written["norm.weight"].dtype == "uint8", "parameters are left alone"
    status, value = call(
        capsys, "convert", file("mlp/bq-w4a16.v0.6.1.encodings"), "--to", "1.0.0", "--model", MLP, "--infer-blocks"
    )
    assert status == 0 and value["written"] == [] and value["counts"]["impossible"] == 0


def test_convert_blocks_into_lpbq(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "x"
    blocks = file("mlp/bq-w4a16.v1.0.0.encodings")
    args = ("convert", blocks, "--to", "1.0.0", "--lpbq", "-o", str(out))
    status, value = call(capsys, *args, "--model", MLP)
    assert status == 0 and "became LPBQ; their scales move by up to" in value["notes"][0]
    before, after = read_encodings(Path(blocks)).entries, read_encodings(out).entries
    made = {name for name, entry in after.items() if isinstance(entry.value, Lpbq)}
    assert made == {name for name, entry in before.items() if entry.value.granularity == "per-block"} != set()
    status, _ = text(capsys, *args, "--force")
    assert status == 2  # the axes of blocks are the model's
    model = ("convert", file("mlp/bq-w4a16.qdq.onnx"), "--to", "lpbq", "-o", str(tmp_path / "m.onnx"))
    for more, refined in ((), False), (("--refine", "--force"), True):
        weights = call(capsys, *model, *more)[1]["weights"]
        assert {one["loss"]["refined_sqnr_db"] is not None for one in weights} == {refined}


def test_convert_without_the_model_says_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    status, value = call(capsys, "convert", file("cnn/w8a8.v2.0.0.encodings"), "--to", "1.0.0")
    assert status == 1 and "the model does" in value["losses"][0]["what"]
    assert run(cli, ["encodings", "convert", file("cnn/w8a8.v2.0.0.encodings"), "--to", "3.0.0"]) == 2


def test_diff(capsys: pytest.CaptureFixture[str]) -> None:
    status, value = call(capsys, "diff", file("cnn/w8a8.v1.0.0.encodings"), file("cnn/w8a8.v0.6.1.encodings"))
    assert status == 0 and value["differences"] == []
    status, value = call(capsys, "diff", file("cnn/w8a8.v1.0.0.encodings"), file("cnn/w8a16.v1.0.0.encodings"))
    assert status == 1 and {item["kind"] for item in value["differences"]} == {"changed"}
    status, shown = text(capsys, "diff", file("cnn/w8a8.v1.0.0.encodings"), file("cnn/w8a16.v1.0.0.encodings"))
    assert "uint8 -> uint16" in shown
    assert text(capsys, "diff", file("mlp/w8a8.qdq.onnx"), file("mlp/w8a8.qdq.onnx")) == (0, "no differences\n")
    status, value = call(capsys, "diff", "--grid", file("mlp/w8a8-nobias.v2.0.0.encodings"), file("mlp/w8a8.qdq.onnx"))
    assert status == 0, "a QDQ model holds single precision, which is no difference"
    assert run(cli, ["encodings", "diff", "--tolerance", "2", file("a"), file("b")]) == 2


@each_row("command", "show", "check", "convert", "diff")
def test_bad_files_are_input_errors(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.encodings"
    bad.write_text('{"version": "2.0.0", "encodings": [null]}')
    more = {"check": ["--model", MLP], "convert": ["--to", "1.0.0"], "diff": [str(bad)]}.get(command, [])
    status, value = call(capsys, command, str(bad), *more)
    assert status == 3 and "bad.encodings" in value["error"]["what"]
