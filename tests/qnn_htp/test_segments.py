"""A model that is cut: one conversion and one context per segment, and a chain that equals the whole."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import deploykit
from deploykit.adapter import Request, Situation
from deploykit.choice import choose_way
from deploykit.errors import UsageError
from deploykit.pipeline import Packaged, read_situation
from deploykit.transforms.contract import transform_names
from deploykit_qnn_htp.planning import make_plan

MakeSdk = Callable[..., Path]
RunScript = Callable[..., "subprocess.CompletedProcess[str]"]
Arrays = dict[str, npt.NDArray[Any]]

DETR = Path(__file__).parents[1] / "data" / "aimet" / "detr"
STANDINS = Path(__file__).parents[1] / "standins"
EXPLICIT, OMIT = (f"w8a16-fp16mix-{style}.v0.6.1.encodings" for style in ("explicit", "omit"))
STYLES = pytest.mark.parametrize("encodings", [EXPLICIT, OMIT])
NAMES = ("segment_0_quantized", "segment_1_float", "segment_2_quantized")
INNER = "/decoder/enc_bbox_head/layers/0/Add_output_0"
"""Made by the first segment, read by the float one."""


def made(encodings: str, out: Path, **more: Any) -> Packaged:
    options = {"sdk": "2.33", "mixed": "segments", **more}
    return deploykit.package(DETR / "model.onnx", target="sm8650", encodings=DETR / encodings, out=out, **options)


@cache
def cut(encodings: str = EXPLICIT) -> Situation:
    request = Request(
        model=DETR / "model.onnx",
        target="sm8650",
        sdk="2.33",
        backend="qnn-htp",
        encodings=DETR / encodings,
        mixed="segments",
    )
    backend, situation = read_situation(request)
    return choose_way(backend, situation, lambda line: None).situation


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Packaged]:
    folder = tmp_path_factory.mktemp("packages")
    return {encodings: made(encodings, folder / encodings) for encodings in (EXPLICIT, OMIT)}


@pytest.fixture
def package(packages: dict[str, Packaged], tmp_path: Path) -> Path:
    """A copy that a test may build in."""
    source = packages[OMIT].package
    assert source is not None
    return Path(shutil.copytree(source, tmp_path / "package"))


def samples() -> list[Arrays]:
    with np.load(DETR / "w8a16.io.npz") as data:
        keys = [[key for key in data.files if key.startswith(f"input.{index}:")] for index in (0, 1)]
        return [{key.split(":", 1)[1]: data[key] for key in names} for names in keys]


def whole(sample: Arrays) -> npt.NDArray[Any]:
    """What the model as it was given computes, without graph optimisations."""
    from deploykit.model import load_model
    from deploykit.numerics.sessions import Session

    return Session(load_model(DETR / "model.onnx").proto).run(sample)["detections"]


@STYLES
def test_each_segment_is_an_ordinary_conversion(packages: dict[str, Packaged], encodings: str) -> None:
    plan = packages[encodings].plan
    assert plan.route is not None
    assert plan.route.id == "segments"
    assert all(name in plan.route.why for name in (*NAMES, "legacy-complete", "legacy-float"))
    converts = [step.argv for step in plan.steps if step.id.startswith("convert-")]
    for argv, name in zip(converts, NAMES, strict=True):
        assert f"model/model_{name}.onnx" in argv
        assert ("--quantization_overrides" in argv) == ("quantized" in name)
        assert ("--float_fallback" in argv) == ("quantized" in name)
        assert argv[argv.index("--float_bitwidth") + 1] == "16"
        assert "--input_list" not in argv
    names = ("convert", "model-lib", "context-binary")
    hosted = [step.id for step in plan.steps if step.where == "host"]
    assert hosted == [f"{name}-{index}" for index in range(3) for name in names]
    assert [step.id for step in plan.steps if step.where == "device"] == [f"net-run-{index}" for index in range(3)]


@STYLES
def test_the_package_verifies_and_names_every_graph(packages: dict[str, Packaged], encodings: str) -> None:
    folder = packages[encodings].package
    assert folder is not None
    assert deploykit.verify(folder).ok
    for index, name in enumerate(NAMES):
        inner = json.loads((folder / f"config/htp_prepare-{index}.json").read_text())
        assert inner["graphs"][0]["graph_names"] == [f"model_{name}"]
        outer = json.loads((folder / f"config/backend_config-{index}.json").read_text())
        assert outer["backend_extensions"]["config_file_path"] == f"config/htp_prepare-{index}.json"
        assert (folder / f"encodings/model_{name}.json").exists() == ("quantized" in name)
    assert not (folder / "model/model.onnx").exists()


def test_both_styles_of_the_same_intent_give_the_same_segments(packages: dict[str, Packaged]) -> None:
    explicit, omitted = packages[EXPLICIT].package, packages[OMIT].package
    assert explicit is not None
    assert omitted is not None
    for name in NAMES:
        assert (explicit / f"model/model_{name}.onnx").read_bytes() == (
            omitted / f"model/model_{name}.onnx"
        ).read_bytes()
    first = json.loads((explicit / f"encodings/model_{NAMES[0]}.json").read_text())
    second = json.loads((omitted / f"encodings/model_{NAMES[0]}.json").read_text())
    assert first["activation_encodings"] == second["activation_encodings"]


def test_what_a_cut_changes_is_said(packages: dict[str, Packaged]) -> None:
    """Operators that run in float only because of where the cuts are differ from what the encodings mean."""
    done = packages[EXPLICIT]
    (found,) = [finding for finding in done.findings if finding.code == "DK206"]
    assert found.evidence["changed"] == ["/decoder/Clip", "/decoder/Sub", "/decoder/Clip_1"]
    differences = done.plan.precision.differences
    assert differences["/decoder/Clip_output_0"] == ("uint16", "float16")
    assert INNER not in differences
    types = [json.loads((Path(str(done.package)) / f"config/intended_types-{i}.json").read_text()) for i in (0, 1)]
    assert [file["types"][INNER] for file in types] == ["uint16", "float16"]


def test_findings_of_the_uncut_model_are_shown_as_handled_and_each_once(packages: dict[str, Packaged]) -> None:
    done = packages[EXPLICIT]
    (crash,) = [finding for finding in done.findings if finding.code == "QNN102"]
    assert crash.handled is not None
    assert "3 segments" in crash.handled
    keys = [(finding.code, finding.subject.name, finding.message) for finding in done.findings]
    assert len(keys) == len(set(keys))
    # Infinities are judged on the whole graph: a segment alone does not see where a range comes from.
    assert {finding.subject.name for finding in done.findings if finding.code == "QNN127"} == {
        "/decoder/Add_2_output_0",
        "/decoder/Div_output_0",
        "onnx::Add_4934",
    }


@STYLES
def test_the_three_ways_are_compared(packages: dict[str, Packaged], encodings: str, tmp_path: Path) -> None:
    """Each can be had; each is simulated; none loses more than five decibels against the best."""
    ways = {way["id"]: way for way in packages[encodings].plan.candidates}
    assert ways["segments"]["won"]
    assert ways["segments"]["segments"] == 3
    assert min(ways[name]["overall_db"] for name in ("rewrite", "fallback", "segments")) >= 70
    assert ways["rewrite"]["float16_tensors"] == 0
    best = max(way["overall_db"] for way in ways.values())
    assert ways["segments"]["overall_db"] >= best - 5
    automatic = made(encodings, tmp_path / "auto", mixed="auto")
    (won,) = [way for way in automatic.plan.candidates if way["won"]]
    assert won["id"].startswith("rewrite")
    assert won["float16_tensors"] == 0
    assert won["overall_db"] >= ways["segments"]["overall_db"]
    fallback = made(encodings, tmp_path / "fallback", mixed="fallback")
    assert fallback.plan.route is not None
    assert fallback.plan.route.id == "legacy-float-fallback"


@pytest.mark.parametrize(("sdk", "winner"), [("2.33", "segments"), ("2.44", "fallback")])
def test_without_rewrites_the_surest_way_to_float16_wins(sdk: str, winner: str, tmp_path: Path) -> None:
    """Below 2.37 a mix in one graph is inferred to work, while the conversions of segments are ordinary ones."""
    banned = transform_names()
    done = made(OMIT, tmp_path / "out", sdk=sdk, mixed="auto", no_rewrite=banned)
    assert [way["id"] for way in done.plan.candidates if way["won"]] == [winner]
    assert done.package is not None
    assert deploykit.verify(done.package).ok


BOTH = """
import sys
from pathlib import Path
import deploykit
detr, out, *names = sys.argv[1:]
for name in names:
    mixed, _, encodings = name.partition(":")
    files = {"encodings": Path(detr) / encodings, "out": Path(out) / mixed}
    deploykit.package(Path(detr) / "model.onnx", target="sm8650", sdk="2.33", mixed=mixed, **files)
"""


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    """In processes whose sets are ordered differently."""
    wanted = [f"segments:{EXPLICIT}", f"fallback:{OMIT}", "auto:w8a8.v0.6.1.encodings"]
    for seed in ("1", "2"):
        command = [sys.executable, "-c", BOTH, str(DETR), str(tmp_path / seed), *wanted]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True)
    first, second = ({p.relative_to(tmp_path / s): p for p in (tmp_path / s).rglob("*") if p.is_file()} for s in "12")
    assert first.keys() == second.keys()
    assert [name for name in first if first[name].read_bytes() != second[name].read_bytes()] == []


def test_the_scripts_are_clean(package: Path) -> None:
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert shellcheck is not None
    for script in sorted((package / "scripts").glob("*.sh")):
        assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
        linted = subprocess.run([shellcheck, str(script)], capture_output=True, text=True, check=False)
        assert linted.returncode == 0, linted.stdout
    compile((package / "scripts/run_host.py").read_text(), "run_host.py", "exec")


def test_build_compares_the_types_of_every_segment(
    package: Path, make_sdk: MakeSdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(make_sdk()))
    report = deploykit.build(package)
    assert report.exit_status == 0
    assert len(report.done) == 9
    assert (package / "logs/build.log").read_text().count(", 0 differ") == 3
    assert all((package / f"artifacts/model_{name}_ctx.bin").exists() for name in NAMES)
    verified = deploykit.verify(package)
    assert verified.ok
    (types,) = [check for check in verified.checks if check.id == "converter-types"]
    assert "0 differ" in types.detail
    assert verified.actual["/decoder/Div_output_0"] == "float16"
    assert verified.actual["detections"] == "uint16"


def test_a_downgrade_in_one_segment_fails_the_build(package: Path, make_sdk: MakeSdk, run_script: RunScript) -> None:
    encodings = package / f"encodings/model_{NAMES[2]}.json"
    data = json.loads(encodings.read_text())
    data["activation_encodings"].pop("detections")
    encodings.write_text(json.dumps(data))
    done = run_script(package / "scripts/build.sh", QAIRT_SDK_ROOT=str(make_sdk()))
    assert done.returncode == 1
    assert "detections is float16, intended uint16" in done.stderr
    assert "[convert-2]" in done.stderr
    assert (package / f"artifacts/model_{NAMES[1]}_ctx.bin").exists()
    assert not (package / f"artifacts/model_{NAMES[2]}_ctx.bin").exists()


def test_verification_sees_a_wrong_type_on_one_side_of_a_cut(package: Path, make_sdk: MakeSdk) -> None:
    """A tensor that crosses is uint16 before the cut and float16 behind it; each side is held to its own type."""
    subprocess.run(
        ["bash", str(package / "scripts/build.sh")],
        env={**os.environ, "QAIRT_SDK_ROOT": str(make_sdk())},
        capture_output=True,
        check=True,
    )
    net = package / f"artifacts/model_{NAMES[1]}_net.json"
    data = json.loads(net.read_text())
    data["graph"]["tensors"]["_decoder_enc_bbox_head_layers_0_Add_output_0"]["data_type"] = 0x416
    net.write_text(json.dumps(data))
    verified = deploykit.verify(package)
    assert not verified.ok
    assert (verified.intended[INNER], verified.actual[INNER]) == ("float16", "uint16")


def test_the_chain_on_the_host_equals_the_whole_bit_for_bit(package: Path, tmp_path: Path) -> None:
    for index, sample in enumerate(samples()):
        np.savez(tmp_path / f"{index}.npz", **sample)  # type: ignore[arg-type]
    command: list[str | Path] = [
        sys.executable,
        package / "scripts/run_host.py",
        tmp_path / "out",
        tmp_path / "0.npz",
        tmp_path / "1.npz",
    ]
    subprocess.run(command, check=True, capture_output=True)
    for index, sample in enumerate(samples()):
        with np.load(tmp_path / "out" / f"{index}.npz") as results:
            assert results.files == ["detections"]
            np.testing.assert_array_equal(results["detections"], whole(sample))


def test_the_chain_on_the_host_says_what_is_missing(package: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=samples()[0]["images"])
    command: list[str | Path] = [sys.executable, package / "scripts/run_host.py", tmp_path / "out", tmp_path / "a.npz"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "orig_target_sizes" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def device(make_sdk: MakeSdk, tmp_path: Path) -> dict[str, str]:
    """The environment of a run on a stand-in device, whose root is a folder."""
    sdk = make_sdk()
    libraries = ("Htp", "System", "HtpNetRunExtensions", "HtpV75Stub")
    files = [sdk / f"lib/aarch64-android/libQnn{name}.so" for name in libraries]
    for file in [*files, sdk / "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so"]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"stand-in")
    tool = sdk / "bin/aarch64-android/qnn-net-run"
    tool.parent.mkdir()
    words = shlex.join([sys.executable, str(STANDINS / "qairt/standin.py"), "qnn-net-run", "2.33.0"])
    tool.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {words} "$@"\n')
    return {
        "QAIRT_SDK_ROOT": str(sdk),
        "DEVICE_FOLDER": str(tmp_path / "device"),
        "PATH": f"{STANDINS / 'adb'}{os.pathsep}{os.environ['PATH']}",
    }


def listed(folder: Path, given: list[Arrays]) -> Path:
    """An input list with names as they stand in the model, and a blank line at the end."""
    folder.mkdir()
    lines = []
    for index, sample in enumerate(given):
        for name, value in sample.items():
            value.astype(np.float32).tofile(folder / f"{name}_{index}.raw")
        lines.append(" ".join(f"{name}:={name}_{index}.raw" for name in reversed(sample)))
    (folder / "list.txt").write_text("\n".join(lines) + "\n\n")
    return folder / "list.txt"


def test_the_chain_on_a_device_hands_every_tensor_on(
    package: Path, device: dict[str, str], run_script: RunScript, tmp_path: Path
) -> None:
    """On a stand-in for the device that computes in float32: every sample ends as the whole model has it."""
    built = run_script(package / "scripts/build.sh", **device)
    assert built.returncode == 0, built.stderr
    inputs = listed(tmp_path / "inputs", samples())
    for _ in range(2):  # a second run starts clean
        done = run_script(package / "scripts/run_on_device.sh", str(inputs), str(tmp_path / "out"), **device)
        assert done.returncode == 0, done.stderr
    for index, sample in enumerate(samples()):
        expected = whole(sample)
        result = np.fromfile(tmp_path / "out" / f"Result_{index}" / "detections.raw", np.float32)
        np.testing.assert_array_equal(result.reshape(expected.shape), expected)


def test_a_line_without_an_input_is_refused(
    package: Path, device: dict[str, str], run_script: RunScript, tmp_path: Path
) -> None:
    assert run_script(package / "scripts/build.sh", **device).returncode == 0
    inputs = listed(tmp_path / "inputs", [{"images": samples()[0]["images"]}])
    done = run_script(package / "scripts/run_on_device.sh", str(inputs), **device)
    assert done.returncode == 2
    assert "orig_target_sizes" in done.stderr


def without(situation: Situation, name: str) -> Situation:
    """The same cut under encodings that lack an entry."""
    assert situation.encodings is not None
    entries = {key: entry for key, entry in situation.encodings.entries.items() if key != name}
    segments = []
    for segment in situation.segments:
        if segment.encodings is not None:
            kept = {key: entry for key, entry in segment.encodings.entries.items() if key != name}
            segments.append(replace(segment, encodings=replace(segment.encodings, entries=kept)))
        else:
            segments.append(segment)
    encodings = replace(situation.encodings, entries=entries)
    return replace(situation, encodings=encodings, segments=tuple(segments))


def test_a_segment_without_a_route_makes_the_plan_infeasible() -> None:
    assert make_plan(cut()).feasible
    plan = make_plan(without(cut(), "/backbone/act0/Mul_output_0"))
    (gap,) = [finding for finding in plan.findings if finding.code == "QNN105"]
    assert gap.blocks
    # Without a grid of its input, a bias has none either.
    assert gap.evidence["tensors"] == ["/backbone/act0/Mul_output_0", "backbone.conv1.bias"]
    assert plan.route is None
    assert plan.steps == ()
    assert not plan.feasible
    assert {row.id.partition(":")[0] for row in plan.rejected} == {NAMES[0]}


@pytest.mark.parametrize("options", [{"input_list": True}, {"route": "legacy-calibrated"}])
def test_a_calibration_list_contradicts_a_cut(options: dict[str, Any]) -> None:
    situation = cut()
    asked = replace(situation, request=replace(situation.request, adapter_options=options))
    with pytest.raises(UsageError, match="segments"):
        make_plan(asked)


def test_a_route_through_dlcs_serves_both_kinds(make_sdk: MakeSdk, run_script: RunScript, tmp_path: Path) -> None:
    done = made(EXPLICIT, tmp_path / "out", sdk="2.41", route="qairt-overrides")
    assert done.package is not None, [finding.message for finding in done.findings if finding.blocks]
    assert done.plan.route is not None
    assert "segment_1_float by qairt-float" in done.plan.route.why
    sdk = make_sdk("2.41.0.251128", "2.41")
    built = run_script(done.package / "scripts/build.sh", QAIRT_SDK_ROOT=str(sdk))
    assert built.returncode == 0, built.stderr
    assert deploykit.verify(done.package).ok


def decoder(folder: Path) -> tuple[Path, Path, list[Arrays]]:
    """The small deformable decoder of the ways' own tests, in W8A16 with nine tensors left out to be float16."""
    import onnx

    from deploykit.encodings.writing import write_encodings

    path = Path(__file__).parents[1] / "numerics" / "test_decoder_ways.py"
    spec = importlib.util.spec_from_file_location("decoder_for_packages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    detector = module._detector()
    onnx.save(detector.model, folder / "decoder.onnx")
    text = write_encodings(module._without(detector.encodings, module.SENSITIVE), "1.0.0")
    (folder / "decoder.encodings").write_text(text)
    return folder / "decoder.onnx", folder / "decoder.encodings", detector.feeds


def test_a_decoder_whose_indices_cross(device: dict[str, str], run_script: RunScript, tmp_path: Path) -> None:
    """GridSample, TopK and GatherElements in six segments; an index tensor crosses, which is said."""
    from deploykit.model import load_model
    from deploykit.numerics.sessions import Session

    model, encodings, feeds = decoder(tmp_path)
    done = deploykit.package(
        model, target="sm8650", sdk="2.33", encodings=encodings, mixed="segments", out=tmp_path / "out"
    )
    assert done.package is not None, [finding.message for finding in done.findings if finding.blocks]
    (found,) = [finding for finding in done.findings if finding.code == "QNN130"]
    assert found.subject.name == "raw/chosen/where"
    built = run_script(done.package / "scripts/build.sh", **device)
    assert built.returncode == 0, built.stderr
    assert deploykit.verify(done.package).ok
    inputs = listed(tmp_path / "inputs", feeds)
    ran = run_script(done.package / "scripts/run_on_device.sh", str(inputs), str(tmp_path / "results"), **device)
    assert ran.returncode == 0, ran.stderr
    for index, feed in enumerate(feeds):
        expected = Session(load_model(model).proto).run(feed)["detections"]
        result = np.fromfile(tmp_path / f"results/Result_{index}/detections.raw", np.float32)
        np.testing.assert_array_equal(result.reshape(expected.shape), expected)


@pytest.mark.heavy
def test_every_segment_of_the_package_compiles_for_the_device(packages: dict[str, Packaged], tmp_path: Path) -> None:
    """With the HTP compiler of onnxruntime-qnn, from the package's own models and encodings."""
    pytest.importorskip("onnxruntime_qnn")
    import onnx

    from deploykit.encodings.reading import read_encodings
    from deploykit.facts.collect import collect_facts
    from deploykit.facts.placement import place
    from deploykit.model import load_model
    from deploykit_ort_qnn.compiler import CompileJob, compile_model
    from deploykit_ort_qnn.preparation import prepare

    folder = packages[OMIT].package
    assert folder is not None
    for name in NAMES:
        model = load_model(folder / f"model/model_{name}.onnx")
        proto, encodings = model.proto, folder / f"encodings/model_{name}.json"
        if encodings.exists():
            proto = prepare(proto, place(read_encodings(encodings), collect_facts(model)), int16_matmul=True).model
        root = tmp_path / name
        root.mkdir()
        onnx.save(proto, root / "model.onnx")
        job = CompileJob(root=root, model="model.onnx", context="context.onnx", options={"soc_model": "57"})
        outcome = compile_model(job)
        assert outcome.ok, (name, outcome.message, outcome.refused)
        assert not outcome.cpu_nodes
