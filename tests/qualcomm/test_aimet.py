"""AIMET's job as data: configuration of the chip, encodings that the SDK reads, options that exclude each other."""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.backend.backend import Request
from deploykit.backend.options import check_options
from deploykit.backend.quantizers import QuantizerAsked
from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.values import Affine
from deploykit.errors import UsageError
from deploykit.flow.quantizing import child
from deploykit.flow.read import resolve_target
from deploykit_qualcomm import aimet
from deploykit_qualcomm.aimet import AIMET
from real_aimet import install_aimet
from tables import each_row
from text_models import text_model


def asked(precision: str = "w8a16", target: str = "sm8650", sdk: str | None = None, **options: Any) -> QuantizerAsked:
    _, resolved = resolve_target(Request(model=Path("m.onnx"), target=target, sdk=sdk))
    return QuantizerAsked(precision=precision, target=resolved, options=check_options(AIMET.options(), options))


PLAIN: dict[str, Any] = {
    "param_type": "int8",
    "activation_type": "int16",
    "configuration": "htp_v75",
    "encoding_version": "1.0.0",
    "scheme": "min_max",
    "percentile": None,
    "fold_batchnorm": True,
    "cle": False,
    "floats": [],
    "float16": True,
    "seq_mse": None,
    "adaround": None,
    "lpbq": None,
    "lite_mp": None,
    "amp": None,
}
SHARE = {"scheme": "percentile", "percentile": 99.0}
BLOCKS = {"block_size": 32, "operators": ("Conv", "Gemm", "MatMul")}


@each_row(
    ("precision", "target", "options", "told"),
    ("w8a16", "sm8650", {}, {}),
    ("w8a16", "sm8450", {"configuration": ""}, {"configuration": "htp_v69"}),
    ("w8a16", "sm8350", {"configuration": ""}, {"configuration": "htp_v68", "float16": False}),
    ("w8a16", "sm8650", {"configuration": "own"}, {"configuration": "own"}),
    ("w4a16", "sm8650", {"lpbq": True, "block_size": 32}, {"param_type": "int4", "lpbq": BLOCKS}),
    ("w8a16", "sm8650", SHARE, SHARE),
    ("w8a16", "sm8650", {"seq_mse": True, "candidates": 7}, {"seq_mse": {"num_candidates": 7}}),
    ("w8a16", "sm8650", {"adaround": True, "cle": True}, {"adaround": {"num_iterations": 10000}, "cle": True}),
    ("w8a8", "sm8650", {"lite_mp": 5.0}, {"activation_type": "int8", "lite_mp": {"percent": 5.0, "to": "int16"}}),
    ("w8a16", "sm8650", {"lite_mp": 5.0, "lite_mp_to": "float16"}, {"lite_mp": {"percent": 5.0, "to": "float16"}}),
    ("w8a8", "sm8650", {"amp": 40.0}, {"activation_type": "int8", "amp": {"decibels": 40.0}}),
)
def test_what_a_job_is_told(precision: str, target: str, options: dict[str, Any], told: dict[str, Any]) -> None:
    assert AIMET.plan(asked(precision, target, "2.48", **options)).settings == {**PLAIN, **told}
    assert AIMET.precisions(asked().target) == ("w8a16", "w8a8", "w4a16", "w4a8", "w16a16")
    assert [len(AIMET.weight_methods(one)) for one in ("w4a8", "w8a8", "w16a16")] == [2, 2, 0]


def run_job(
    settings: dict[str, Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    widths: dict[str, int] | None = None,
    seen: Any = None,
    times: int = 1,
) -> tuple[list[Any], Any]:
    """The job with stand-ins for AIMET: what was called in which order, and the job as it is then."""
    calls: list[Any] = []

    def noting(name: str, gives: Any = None) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            calls.append((name, *(one for one in given if isinstance(one, str | int | float | tuple | list)), named))
            return gives

        return call

    quantizers = {
        name: SimpleNamespace(data_type="int", bitwidth=bits) for name, bits in (widths or {"x": 8, "y": 8}).items()
    }
    names: dict[str, Any] = {"activation_names": ["y"], "input_quantizers_name": ["x"]}
    sim = MagicMock(qc_quantize_op_dict={name: MagicMock(**vars(one)) for name, one in quantizers.items()}, **names)
    for one in sim.qc_quantize_op_dict.values():
        one._tensor_quantizer.setPercentileValue = noting("percentile")
    sim.compute_encodings = noting("calibrate") if seen is None else lambda samples: seen(sim, samples)
    sim.export = noting("export")
    sim.session.run = lambda _, feed: [feed["x"] * 1.1, feed["x"] * 1.01]
    modules: dict[str, Any] = {"aimet_onnx": MagicMock(QuantizationSimModel=noting("simulate", sim))}
    for path, function, gives in (
        ("", "apply_adaround", None),
        ("", "apply_seq_mse", None),
        ("batch_norm_fold", "fold_all_batch_norms_to_weight", [["a"], ["b", "c"]]),
        ("cross_layer_equalization", "equalize_model", None),
        ("lite_mp", "flip_layers_to_higher_precision", None),
        ("mixed_precision", "analyze_mixed_precision_sensitivity", {}),
        ("quant_analyzer", "analyze_per_layer_sensitivity", {"y": 3.0}),
        ("quantsim", "set_lpbq_for_params", None),
        ("utils", "duplicate_shared_initializers", None),
    ):
        module = modules.setdefault(f"aimet_onnx.{path}".rstrip("."), MagicMock())
        setattr(module, function, noting(function, gives))
    amp = modules["aimet_onnx.mixed_precision"]
    amp.apply_amp = lambda sim, found, enough: calls.append(("apply_amp", enough(sim.session)))
    for name, module in {**modules, "child": child}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1")
    onnx.save(
        text_model("float[1,2] x", "y = Abs (x)  z = Abs (x)", "float[1,2] y, float[1,2] z"), folder / "model.onnx"
    )
    for number in range(5):
        np.savez(folder / f"{number}.npz", x=np.full((1, 2), times * (1 + number), np.float32))
    done: list[str] = []
    job: Any = SimpleNamespace(
        model=folder / "model.onnx",
        settings=settings,
        out=folder,
        result={"notes": []},
        calibration=child.SampleFiles(folder),
        stage_done=done.append,
        save_simulated=lambda names, run: calls.append(("simulated", names)),
    )
    runpy.run_path(str(Path(aimet.__file__).with_name("aimet_job.py")))["work"](job)
    return calls, SimpleNamespace(done=done, result=job.result)


def test_room_is_left_in_sixteen_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrated on the samples 1, 3 and 5, on 2 and 4, and on all."""
    found: list[list[float]] = []
    fixed: dict[str, Any] = {}

    def seen(sim: Any, samples: Any) -> None:
        found.append([float(one["x"].max()) for one in samples])
        ends = {"x": (0, max(found[-1])), "mask": (-1e4, max(found[-1])), "narrow": (0, max(found[-1]))}
        for name, one in sim.qc_quantize_op_dict.items():
            end = SimpleNamespace(min=ends.get(name, (0,))[0], max=ends.get(name, (0, 0))[-1])
            one.get_encodings = lambda name=name, end=end: {"float": None, "channels": [end, end]}.get(name, [end])
            one.set_fixed_encoding_range = lambda ends, name=name: fixed.__setitem__(name, ends)

    for scheme, count in (("percentile", 1), ("min_max", 4)):
        found.clear()
        wide = dict.fromkeys(("x", "mask", "float", "channels"), 16)
        run_job({**PLAIN, "scheme": scheme}, tmp_path, monkeypatch, {**wide, "narrow": 8}, seen)
        assert len(found) == count and found[-1] == found[0] == [1, 2, 3, 4, 5]
    assert found[1:3] == [[1, 3, 5], [2, 4]]
    assert fixed == {"x": (0, 6), "mask": (-1e4, 6)}


@each_row(("times", "has_float", "told"), (3276, True, (False, 8)), (3277, True, (True, 16)), (3276, False, (True, 16)))
def test_rows_are_in_float16_where_it_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, has_float: bool, told: Any
) -> None:
    found: dict[str, Any] = {}

    def seen(sim: Any, _samples: Any) -> None:
        wide = {name: 16 for name, one in sim.qc_quantize_op_dict.items() if one.set_bitwidth.call_args}
        found.update({name: (bool(one.enabled), wide.get(name, 8)) for name, one in sim.qc_quantize_op_dict.items()})

    settings = {**PLAIN, "floats": ["x", "gone"], "float16": has_float}
    run_job(settings, tmp_path, monkeypatch, None, seen, times)
    assert found == {"x": told, "y": (True, 8)}


def test_the_job_does_what_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {"param_type": "int8", "activation_type": "int16", "quant_scheme": "min_max"}
    simulate, export = (
        ("simulate", {**made, "config_file": "htp_v75"}),
        (*("export", str(tmp_path), "model"), {"encoding_version": "1.0.0", "export_int32_bias": True}),
    )
    nothing: dict[str, Any] = {}
    shared, calibrate = ("duplicate_shared_initializers", nothing), ("calibrate", nothing)
    simulated = ("simulated", ["y", "z"])
    calls, job = run_job(PLAIN, tmp_path, monkeypatch)
    assert calls == [("fold_all_batch_norms_to_weight", {}), shared, simulate, calibrate, export, simulated]
    assert job.done == ["start", "fold", "simulation", "calibrate", "export", "simulate"]
    assert job.result["notes"] == ["3 BatchNormalizations folded"]
    more = {"cle": True, "seq_mse": {"num_candidates": 7}, "adaround": {"num_iterations": 9}, "percentile": 99.0}
    calls, job = run_job({**PLAIN, **more, "lpbq": BLOCKS}, tmp_path, monkeypatch)
    assert calls[:2] == [("equalize_model", {}), shared] and calls[3:] == [
        ("set_lpbq_for_params", {"bitwidth": 4, "block_size": 32, "op_types": {"Conv", "Gemm", "MatMul"}}),
        *[("percentile", 99.0, {})] * 2,
        *(("apply_seq_mse", {"num_candidates": 7}), ("apply_adaround", {"num_iterations": 9})),
        *(calibrate, export, simulated),
    ]
    lite = {"percent": 5.0, "to": "int16"}
    calls, job = run_job({**PLAIN, "fold_batchnorm": False, "lite_mp": lite}, tmp_path, monkeypatch)
    flipped = ("flip_layers_to_higher_precision", 5.0, ("int8", "int16"), nothing)
    assert calls[3:] == [("analyze_per_layer_sensitivity", {}), flipped, calibrate, export, simulated]
    told = ["0 tensors in a wider type: ", "20.0 dB of the worst output, on 4 calibration samples"]
    assert job.result["sensitivity"] == {"y": 3.0} and job.result["notes"] == told
    calls, job = run_job({**PLAIN, "amp": {"decibels": 40.0}}, tmp_path, monkeypatch)
    kinds = [("int8", "int8"), ("int8", "int16")]
    assert calls[4:6] == [("analyze_mixed_precision_sensitivity", kinds, {}), ("apply_amp", False)]
    assert job.result["notes"][-1] == "20.0 dB of the worst output, of 40 asked for, on 4 calibration samples"


@each_row(
    ("backend", "sdk", "blocked"),
    ("qnn-htp", None, ("Conv", "Gemm", "MatMul")),
    ("ort-qnn", None, ("Gemm", "MatMul")),
    ("ort-qnn", "2.33", ()),
)
def test_blocks_are_made_for_layers_whose_blocks_are_taken(backend: str, sdk: str | None, blocked: Any) -> None:
    found, target = resolve_target(Request(model=Path("m.onnx"), target="sm8650", backend=backend, sdk=sdk))
    (aimet,) = found.quantizers(target)
    options = check_options(aimet.options(), {"lpbq": True})
    if blocked:
        asked_for = QuantizerAsked(precision="w4a16", target=target, options=options)
        assert aimet.plan(asked_for).settings["lpbq"]["operators"] == blocked
    else:
        with pytest.raises(UsageError, match="lpbq for this release"):
            aimet.plan(QuantizerAsked(precision="w4a16", target=target, options=options))


@each_row(
    ("precision", "options", "what"),
    ("w8a16", {"lpbq": True}, "LPBQ holds 4-bit weights"),
    ("w8a8", {"adaround": True, "seq_mse": True}, "both choose"),
    ("w8a8", {"scheme": "tf_enhanced", "seq_mse": True}, "from that one only"),
    ("w8a8", {"lite_mp": 10.0, "amp": 40.0}, "both choose which layers"),
    ("w8a16", {"lite_mp": 10.0}, "have 16 bits already"),
    ("w8a16", {"amp": 40.0}, "have 16 bits already"),
)
def test_options_that_exclude_each_other_are_refused(precision: str, options: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError) as refused:
        AIMET.plan(asked(precision, **options))
    assert what in refused.value.why


DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def installed() -> None:
    """As a user would; found again where it is there already."""
    install_aimet()


@pytest.mark.heavy
@pytest.mark.xdist_group("aimet")
@pytest.mark.usefixtures("installed")
def test_package_takes_aimet_by_itself_and_adds_int32_biases(tmp_path: Path) -> None:
    model = DATA / "aimet" / "cnn" / "model.onnx"
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(10, 1, 3, 16, 16)).astype(np.float32))
    options = [("aimet.cle", "true"), ("aimet.scheme", "tf_enhanced")]
    asked: Any = {"target": "sm8650", "backend": "qnn-htp", "sdk": "2.33", "precision": "w8a8", "options": options}
    made = deploykit.package(model, calibration=tmp_path / "x.npy", out=tmp_path / "out", **asked)
    assert made.package is not None and made.executed[0] == "quantize"
    codes = {finding.code for finding in made.findings}
    assert "DK221" in codes and not codes & {"DK220", "DK222"}
    told = json.loads((made.package / "manifest.json").read_text("utf-8"))["quantization"]
    assert told["toolchain"] == "aimet==2.42.0" and told["options"]["cle"] is True


@pytest.mark.heavy
@pytest.mark.xdist_group("aimet")
@pytest.mark.usefixtures("installed")
def test_a_last_state_may_be_all_that_is_read(tmp_path: Path) -> None:
    """AIMET takes the result that nobody reads away, and looked for its grid then."""
    body = "s, h = GRU <hidden_size = 8> (x, w, w)  y = Relu (h)"
    model = text_model("float[4,1,8] x", body, "float[1,1,8] y", w=np.ones((1, 24, 8), np.float32))
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "s.npz", x=np.random.default_rng(1).random((8, 4, 1, 8), np.float32))
    asked: Any = {"target": "sm8650", "backend": "qnn-htp", "sdk": "2.44", "precision": "w8a16"}
    assert deploykit.package(tmp_path / "m.onnx", calibration=tmp_path / "s.npz", out=tmp_path / "o", **asked).package


@pytest.mark.heavy
@pytest.mark.xdist_group("aimet")
@pytest.mark.usefixtures("installed")
def test_indices_in_floats_keep_their_rows(tmp_path: Path) -> None:
    """A step of 1 for what a Cast makes indices of: of the range alone, index 300 would become the 299 below."""
    table = np.random.default_rng(0).normal(size=(301, 8)).astype(np.float32)
    body = "i = Cast <to = 6> (ids)  g = Gather (table, i)  k = Cast <to = 6> (few)  y = Gather <axis = 2> (g, k)"
    body += "  m = Cast <to = 6> (parts)  z = Cast <to = 1> (m)"
    model = text_model("float[1,3] ids, float[1] few, float[1] parts", body, "float[1,3,1] y, float[1] z", table=table)
    onnx.save(model, tmp_path / "m.onnx")
    ids = np.random.default_rng(1).integers(0, 301, (20, 1, 3)).astype(np.float32)
    ids[0] = [300, 0, 299]
    count = np.arange(20, dtype=np.float32)[:, None]
    np.savez(tmp_path / "s.npz", ids=ids, few=count % 8, parts=count / 4)
    asked: Any = {"target": "sm8650", "backend": "qnn-htp", "sdk": "2.33", "precision": "w8a8"}
    made = deploykit.package(tmp_path / "m.onnx", calibration=tmp_path / "s.npz", out=tmp_path / "out", **asked)
    assert made.package is not None
    entries = read_encodings(made.package / "encodings/m.json").entries
    grids = [entries[name].value for name in ("ids", "few", "parts")]
    told = [(grid.bits, round(grid.scale.item(), 3)) for grid in grids if isinstance(grid, Affine)]
    assert told == [(16, 1.0), (16, 1.0), (8, 0.019)]  # the last ones are no whole numbers: 4.75 over 255 steps
