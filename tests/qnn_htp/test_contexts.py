"""Prefill and decode over one file of weights in one package: parts, shared contexts, and what is refused."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import deploykit
from deploykit.encodings.files import convert_encodings
from deploykit.errors import InputError, UsageError
from deploykit.tables.devices import Fact
from deploykit_qualcomm.devices import capability
from sample_models.shared_weights import write_graphs

MakeSdk = Callable[..., Path]
RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both graphs of a tiny decoder, their weights, and encodings with LPBQ weights."""
    folder = tmp_path_factory.mktemp("decoder")
    write_graphs(folder, "float")
    made = convert_encodings(folder / "decoder.encodings", "1.0.0", model=folder / "prefill.onnx", lpbq=True)
    (folder / "lpbq.encodings").write_text(made.text, "utf-8")
    return folder


def request(decoder: Path, **more: Any) -> dict[str, Any]:
    common = {"target": "sm8750", "backend": "qnn-htp", "sdk": "2.44", "encodings": decoder / "lpbq.encodings"}
    return {"model": decoder / "prefill.onnx", "mixed": "fallback", **common, **more}


@pytest.fixture(scope="module")
def package(decoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("package") / "out"
    made = deploykit.package(**request(decoder, also=decoder / "decode.onnx", parts=2), out=out)
    assert made.exit_status == 0
    return out


def test_the_graphs_of_a_number_share_a_context(package: Path) -> None:
    manifest = json.loads((package / "manifest.json").read_text("utf-8"))
    argvs = {step["id"]: step["argv"] for step in manifest["steps"]}
    assert list(argvs) == [
        *("convert-prefill_1", "convert-decode_1", "context-binary-1"),
        *("convert-prefill_2", "convert-decode_2", "context-binary-2"),
    ]
    for number in (1, 2):
        argv = argvs[f"context-binary-{number}"]
        dlcs = argv[argv.index("--dlc_path") + 1]
        assert dlcs == f"artifacts/prefill_{number}.dlc,artifacts/decode_{number}.dlc"
        inner = json.loads((package / f"config/htp_prepare-{number}.json").read_text("utf-8"))
        assert inner["graphs"][0]["graph_names"] == [f"prefill_{number}", f"decode_{number}"]
        assert inner["context"] == {"weight_sharing_enabled": True}
    assert manifest["route"]["id"] == "qairt-overrides"
    assert {row["role"]: row["name"] for row in manifest["inputs"]}["also"] == "decode.onnx"


def test_both_graphs_have_the_same_entries_of_a_weight(package: Path) -> None:
    rows = [json.loads((package / f"encodings/{name}_1.json").read_text("utf-8")) for name in ("prefill", "decode")]
    params = [{row["name"]: row for row in found["param_encodings"]} for found in rows]
    assert params[0] == params[1]
    assert {row["enc_type"] for name, row in params[0].items() if name.startswith("layer0")} == {"LPBQ"}


def test_it_builds_and_is_verified(package: Path, make_sdk: MakeSdk, run_script: RunScript, tmp_path: Path) -> None:
    place = shutil.copytree(package, tmp_path / "copy")
    sdk = make_sdk(version="2.44.0.260225", table="2.44.0")
    done = run_script(place / "scripts/build.sh", QAIRT_SDK_ROOT=str(sdk))
    assert done.returncode == 0, done.stderr
    assert "built: artifacts/prefill_1_ctx.bin, artifacts/prefill_2_ctx.bin" in done.stderr
    assert (place / "artifacts/prefill_2_ctx.bin").is_file()
    assert deploykit.verify(package).ok
    # A cache has to be handed on: an application does that.
    assert sorted(path.name for path in (package / "scripts").iterdir()) == ["build.sh", "check_types.py"]


def test_parts_of_one_graph_are_chained(decoder: Path, tmp_path: Path) -> None:
    made = deploykit.package(**request(decoder, parts=2), out=tmp_path / "out")
    steps = json.loads((tmp_path / "out/manifest.json").read_text("utf-8"))["steps"]
    assert [step["id"] for step in steps if step["where"] == "device"] == ["net-run-1", "net-run-2"]
    inner = json.loads((tmp_path / "out/config/htp_prepare-1.json").read_text("utf-8"))
    assert inner["graphs"][0]["graph_names"] == ["prefill_1"] and "context" not in inner
    assert made.exit_status == 0 and (tmp_path / "out/scripts/run_host.py").is_file()


def test_one_context_of_two_whole_graphs(decoder: Path) -> None:
    plan = deploykit.plan(**request(decoder, also=decoder / "decode.onnx"))
    assert [step.id for step in plan.steps] == ["convert-prefill_1", "convert-decode_1", "context-binary"]
    assert plan.configs["config/htp_prepare.json"]["context"] == {"weight_sharing_enabled": True}


def contexts_of(decoder: Path) -> int:
    steps = deploykit.plan(**request(decoder)).steps
    return sum(step.id.startswith("context-binary") for step in steps)


def test_the_limit_of_the_chip_decides_how_many_parts_there_are(decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(name: str, **where: Any) -> Fact | None:
        known = capability(name, **where)
        if name != "graph_limit_kb" or known is None:
            return known
        return Fact(value=22, source=known.source, confidence=known.confidence)  # the weights are 50 KiB

    assert contexts_of(decoder) == 1
    monkeypatch.setattr("deploykit_qnn_htp.prepare.capability", small)
    assert contexts_of(decoder) == 3


def test_a_route_that_makes_no_dlc_is_refused(decoder: Path) -> None:
    with pytest.raises(UsageError, match="the route legacy-complete makes no DLC, of which several fit"):
        deploykit.plan(**request(decoder, also=decoder / "decode.onnx", route="legacy-complete"))


def test_a_graph_of_other_weights_is_refused(decoder: Path, tmp_path: Path) -> None:
    for name in ("decode.onnx", "weights.data"):
        shutil.copy(decoder / name, tmp_path / name)
    same = deploykit.plan(**request(decoder, also=tmp_path / "decode.onnx"))
    assert len(same.details or ()) == 2  # another file with the same values is the same
    with pytest.raises(InputError, match=r"another file of this package is called weights\.data"):
        deploykit.package(**request(decoder, also=tmp_path / "decode.onnx"), out=tmp_path / "out")
    shutil.copy(decoder / "decode.onnx", tmp_path / "prefill.onnx")
    with pytest.raises(UsageError, match="both graphs are called prefill"):
        deploykit.plan(**request(decoder, also=tmp_path / "prefill.onnx"))
    inside = [onnx.load(decoder / name) for name in ("prefill.onnx", "decode.onnx")]
    for model, name in zip(inside, ("prefill", "decode"), strict=True):
        onnx.save(model, tmp_path / f"{name}_inside.onnx")
    within = {**request(decoder, also=tmp_path / "decode_inside.onnx"), "model": tmp_path / "prefill_inside.onnx"}
    named = deploykit.plan(**{**within, "route": "qairt-overrides"})
    assert named.route is not None and named.route.id == "qairt-overrides"
    changed = next(one for one in inside[1].graph.initializer if one.name == "head")
    changed.raw_data = bytes(len(changed.raw_data))
    onnx.save(inside[1], tmp_path / "decode_inside.onnx")
    with pytest.raises(UsageError, match="1 weights have the same name and other values: head"):
        deploykit.plan(**within)
    data = bytearray((tmp_path / "weights.data").read_bytes())
    data[-4] ^= 1  # in the head
    (tmp_path / "weights.data").write_bytes(data)
    with pytest.raises(UsageError, match="1 weights have the same name and other values: head"):
        deploykit.plan(**request(decoder, also=tmp_path / "decode.onnx"))
