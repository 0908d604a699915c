"""What people mistype: each is answered in a few lines with what, why and next, never with a traceback or a defect."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run

AIMET = Path(__file__).parents[1] / "data" / "aimet"
ENCODINGS = str(AIMET / "cnn/w8a16.v1.0.0.encodings")


def packaged(**changed: str) -> list[str]:
    """The main command with other words in it."""
    words = {"model": "m.onnx", "target": "sm8650", "sdk": "2.33", "out": "out"} | changed
    model = words.pop("model")
    return ["package", model, *(word for name, value in words.items() for word in (f"--{name}", value))]


def checked(*words: str) -> list[str]:
    """A question about the model, with more words."""
    return ["check", "--plan", "m.onnx", "--target", "sm8650", *words]


QUANTIZED = ["quantize", "m.onnx", "--target=sm8650", "--with=ort", "--calibration=shape.npy", "-o=q", "--option"]
LADDER = ["accuracy", "ladder", "m.onnx", "--target", "sm8650"]
MISTAKES: Mapping[str, tuple[list[str], int, str]] = {
    "wrong path": (packaged(model="n.onnx"), 3, "did you mean m.onnx"),
    "wrong folder": (packaged(model="models/m.onnx"), 3, "there is no folder models"),
    "a folder as model": (packaged(model="empty"), 3, "is a folder"),
    "a text as model": (packaged(model="text.onnx"), 3, "not an ONNX model"),
    "half a model": (packaged(model="half.onnx"), 3, "half.onnx"),
    "a channel too few": (packaged(encodings="narrow.encodings"), 3, "conv1.weight"),
    "a tensor misspelt in the encodings": (packaged(encodings="misspelt.encodings"), 1, "inputt"),
    "an empty model": (packaged(model="empty.onnx"), 3, "the file is empty"),
    "a zip as model": (packaged(model="zip.onnx"), 3, "looks like a zip archive"),
    "weights left behind": (packaged(model="weights.onnx"), 3, "'weights.data' is missing"),
    "misspelt target": (packaged(target="sm865O"), 4, "did you mean sm8650"),
    "misspelt option": (["package", "m.onnx", "--taget", "sm8650", "-o", "out"], 2, "'--target'"),
    "misspelt command": (["pakage", "m.onnx"], 2, "Did you mean 'package'?"),
    "former command": (["evaluate", "a", "b"], 2, "deploykit accuracy compare"),
    "former way to compare releases": (["compat", "--diff", "2.33"], 2, "it is now 'deploykit compat diff'"),
    "former option": (packaged(audit="full"), 2, "it is now --kernels"),
    "misspelt precision": (packaged(precision="int8"), 2, "one of fp32, fp16, w8a8"),
    "release of the future": (packaged(sdk="9.99"), 4, "did you mean 2."),
    "no release": (packaged(sdk="latest"), 4, "a version looks like 2.33"),
    "backend by half its name": (packaged(backend="qnn"), 4, "installed: qnn-htp"),
    "other model's encodings": (
        packaged(encodings=str(AIMET / "mlp/w8a8.v1.0.0.encodings")),
        1,
        "use the model that the encodings were exported with",
    ),
    "encodings of a quantized model": (packaged(model="qdq.onnx", encodings=ENCODINGS), 2, "the quantized model alone"),
    "a precision for a quantized model": (packaged(model="qdq.onnx", precision="w8a8"), 2, "leave out --precision"),
    "encodings that are none": (packaged(encodings="text.onnx"), 3, "text.onnx"),
    "encodings cut off": (packaged(encodings="cut.encodings"), 3, "is the file complete?"),
    "the model as encodings": (packaged(encodings="m.onnx"), 3, "give an encodings file, or the quantized model"),
    "samples of wrong shape": (packaged(precision="w8a8", calibration="shape.npy"), 3, "float32[1,3,16,16]"),
    "samples of another input": (packaged(precision="w8a8", calibration="name.npz"), 3, "no array for the input"),
    "samples that are text": (packaged(precision="w8a8", calibration="text.npy"), 3, "does not fit the input"),
    "an address as samples": (packaged(precision="w8a8", calibration="https://a/b"), 3, "download it first"),
    "no samples in the folder": (packaged(precision="w8a8", calibration="empty"), 3, "holds no image"),
    "integers without samples": (packaged(precision="w8a8"), 1, "give --calibration"),
    "an input that it has not": (packaged(input="imput=1"), 2, "did you mean 'input'?"),
    "an input of words": (packaged(input="input=a,b"), 2, "neither numbers nor a range"),
    "an option without value": (packaged(option="vtcm_mb"), 2, "KEY=VALUE is expected"),
    "an option's key given twice": ([*packaged(option="vtcm_mb=8"), "--option=vtcm_mb=4"], 2, "a key is given twice"),
    "a line break in a name": (packaged(input="one\ntwo=1"), 2, "one\\ntwo=1: the model"),
    "a misspelt key": (packaged(option="vctm_mb=8"), 2, "did you mean graphs.vtcm_mb, vtcm_mb"),
    "half of a rewrite's name": (packaged(rewrite="gelu"), 2, "did you mean fuse-gelu?"),
    "a folder of mine": (packaged(out="mine"), 6, "exists and was kept"),
    "a file as folder": (packaged(out="text.onnx"), 6, "is not a folder"),
    "a folder that may not be made": (packaged(out="/proc/none/out"), 6, "choose another folder"),
    "no folder": (["package", "m.onnx", "--target", "sm8650"], 2, "-o out"),
    "no target": (["package", "m.onnx", "-o", "out"], 2, "'deploykit targets' lists the devices"),
    "no model": (["package", "--target", "sm8650", "-o", "out"], 2, "MODEL"),
    "too little memory": (packaged(memory="lots"), 2, "3G"),
    "a target next to a known one": (packaged(target="sm8560"), 4, "sm8550"),
    "a flag of another backend": (checked("--lpbq"), 2, "it is an option of ort-qnn"),
    "an option of the other route": (checked("--backend", "ort-qnn", "--route", "x"), 2, "it is an option of qnn-htp"),
    "an option that one of two targets lacks": (
        ["package", "m.onnx", "--target", "sm8650", "--target", "vek385", "-o", "out", "--random-data"],
        2,
        "not an option of qnn-htp",
    ),
    "a number too large": (checked("--backend", "ort-qnn", "--finalization-mode", "4"), 2, "from 0 to 3"),
    "a misspelt choice": (checked("--mixed", "autoo"), 2, "one of auto, fallback, segments, refuse"),
    "no package": (["verify", "empty"], 6, "it is not a deploykit package"),
    "a rule that is none": (["explain", "QNN999"], 2, "did you mean QNN"),
    "a model as log": (["diagnose", "m.onnx"], 2, "is a model, not a log"),
    "a feature that is none": (["compat", "zzzz"], 0, "no row about 'zzzz'"),
    "a toolchain misspelt": (["toolchain", "install", "quarck"], 4, "known: aimet"),
    "an option given twice": ([*packaged(), "--sdk", "2.48"], 2, "--sdk: given twice"),
    "a quantizer's option out of its type": ([*QUANTIZED, "per_channel=3"], 2, "=3: true or false is expected"),
    "a quantizer's option without value": ([*QUANTIZED, "a"], 2, "KEY=VALUE is expected"),
    "a format that nobody knows": (packaged(model="format.onnx"), 3, "the installed onnx reads versions up to"),
    "an operator set that nobody knows": (packaged(model="future.onnx"), 1, "the installed onnx knows up to"),
    "an address as model": (packaged(model="https://example.com/m.onnx"), 3, "download it first"),
    "a product's short name": (packaged(target="x-elite"), 4, "did you mean sc8380xp"),
    "a file of PyTorch": (packaged(model="model.pt"), 3, "a PyTorch checkpoint"),
    "encodings of a later version": (packaged(encodings="later.encodings"), 3, "known versions: 0.6.1"),
    "encodings of another tool": (packaged(encodings="tool.json"), 3, "no 'version'"),
    "samples of Python objects": (packaged(precision="w8a8", calibration="objects.npy"), 3, "plain arrays of numbers"),
    "samples without a name": (packaged(precision="w8a8", calibration="none.npz"), 3, "it has no array"),
    "no sample in the file": (packaged(precision="w8a8", calibration="zero.npy"), 3, "holds no sample"),
    "float16 with encodings": (packaged(precision="fp16", encodings=ENCODINGS), 2, "leave out --precision"),
    "a float model to explain": (["explain", "m.onnx"], 3, "without QuantizeLinear"),
    "a ladder of nothing": (["accuracy", "ladder"], 2, "which model?"),
    "a ladder's report of raised layers": ([*LADDER, "--raise", "--estimate"], 2, "--estimate with --raise"),
    "a type that nothing is raised to": ([*LADDER, "--to", "int16"], 2, "--to goes with --raise"),
    "layers raised without a goal": ([*LADDER, "--raise"], 2, "--raise needs --goal and --data"),
    "a table of nothing": (["accuracy", "ladder", "none.json"], 2, "no accuracies were given"),
    "a table asked about outputs": (
        ["accuracy", "ladder", "--accuracy", "fp32=70", "--goal", "kept>=95%"],
        2,
        "asks about outputs, and a table has none",
    ),
    "a case without a bundle": (["diagnose", "text.onnx", "--note", "x"], 2, "--note goes with --pack"),
    "a bundle of nothing": (["diagnose", "--pack", "case.zip"], 2, "--pack needs --model"),
    "a plan as SARIF": (checked("--format", "sarif"), 2, "--plan shows the decision as it is"),
    "a path to explain that is none": (["explain", "nowhere/x"], 2, "no such file or folder"),
    "a route that is none": (checked("--backend", "qnn-htp", "--route", "x"), 2, "--route x: no such route"),
    "a name that is no text": (packaged(model="m\udcff.onnx"), 2, "is not UTF-8"),
    "LPBQ without a file": (["encodings", "convert", "qdq.onnx", "--to", "lpbq"], 2, "--to lpbq needs -o FILE"),
    "a model, two releases": (["compat", "--model", "m.onnx", "--sdk=2.33", "--sdk=2.48"], 2, "one release at a time"),
    "encodings for AMD": (packaged(target="vek385", sdk="6.2", encodings=ENCODINGS), 1, "quantize here"),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which somebody types."""
    desk = tmp_path_factory.mktemp("desk")
    shutil.copy(AIMET / "cnn/model.onnx", desk / "m.onnx")
    shutil.copy(AIMET / "cnn/w8a16.qdq.onnx", desk / "qdq.onnx")
    for name in ("empty", "mine"):
        (desk / name).mkdir()
    (desk / "mine/notes.txt").write_text("mine")
    (desk / "text.onnx").write_text("hello, I am no model")
    (desk / "none.json").write_text("{}")
    (desk / "cut.encodings").write_text('{"version": "1.0.0", ')
    (desk / "empty.onnx").write_bytes(b"")
    (desk / "half.onnx").write_bytes((desk / "m.onnx").read_bytes()[:9000])
    (desk / "bare.onnx").write_bytes(onnx.ModelProto(ir_version=8).SerializeToString())
    good = json.loads((AIMET / "cnn/w8a8.v0.6.1.encodings").read_text())
    narrow = {**good["param_encodings"], "conv1.weight": good["param_encodings"]["conv1.weight"][1:]}
    (desk / "narrow.encodings").write_text(json.dumps({**good, "param_encodings": narrow}))
    moving = {("inputt" if name == "input" else name): rows for name, rows in good["activation_encodings"].items()}
    (desk / "misspelt.encodings").write_text(json.dumps({**good, "activation_encodings": moving}))
    (desk / "zip.onnx").write_bytes(b"PK\x03\x04 and so on")
    model = onnx.load(desk / "m.onnx")
    onnx.save(model, desk / "weights.onnx", save_as_external_data=True, location="weights.data", size_threshold=0)
    (desk / "weights.data").unlink()
    later, tool = {"version": "2.5.0", "encodings": []}, {"tensors": [{"name": "input", "min": 0, "max": 1}]}
    for name, told in {"later.encodings": later, "tool.json": tool}.items():
        (desk / name).write_text(json.dumps(told))
    shutil.copy(desk / "zip.onnx", desk / "model.pt")
    np.save(desk / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(desk / "none.npz")
    np.save(desk / "zero.npy", np.zeros((0, 3, 16, 16), np.float32))
    future = onnx.load(desk / "m.onnx")
    future.opset_import[0].version = 9000
    onnx.save(future, desk / "future.onnx")
    future.ir_version = 99
    onnx.save(future, desk / "format.onnx")
    np.save(desk / "shape.npy", np.zeros((4, 3, 7, 7), np.float32))
    np.save(desk / "text.npy", np.full((4, 3, 16, 16), "a"))
    np.savez(desk / "name.npz", image=np.zeros((4, 3, 16, 16), np.float32))
    return desk


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered(
    mistake: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, status, says = MISTAKES[mistake]
    monkeypatch.chdir(desk)
    assert run(cli, words) == status
    said = capsys.readouterr()
    answer = said.out + said.err
    assert status < 2 or not said.out
    assert says in answer and "Traceback" not in answer and "a defect of deploykit" not in answer
    lines = answer.splitlines()
    assert len(lines) <= (12 if status == 1 else 3), answer
    assert all(len(line) < 400 for line in lines)
    assert not (desk / "out").exists() and (desk / "mine/notes.txt").read_text() == "mine"
