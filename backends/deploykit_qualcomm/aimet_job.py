"""The script of AIMET's job. It runs in AIMET's own environment, beside the core's ``child.py``, without deploykit.

It folds, equalizes, simulates, calibrates, improves weights, mixes precisions
and exports, by ``settings`` in ``job.json``.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import child

child.tell("starting")

import numpy as np  # noqa: E402 (the line above is shown while the libraries load)
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from aimet_onnx import QuantizationSimModel, apply_adaround, apply_seq_mse  # noqa: E402
from aimet_onnx.batch_norm_fold import fold_all_batch_norms_to_weight  # noqa: E402
from aimet_onnx.cross_layer_equalization import equalize_model  # noqa: E402
from aimet_onnx.lite_mp import flip_layers_to_higher_precision  # noqa: E402
from aimet_onnx.mixed_precision import analyze_mixed_precision_sensitivity, apply_amp  # noqa: E402
from aimet_onnx.quant_analyzer import analyze_per_layer_sensitivity  # noqa: E402
from aimet_onnx.quantsim import set_lpbq_for_params  # noqa: E402
from aimet_onnx.utils import duplicate_shared_initializers  # noqa: E402

__all__ = ["main"]

_LARGE = 1_900_000_000
_SCORED = 4
"""The number of samples that each run of a sensitivity analysis is scored on."""


def prepared(job: child.ChildJob) -> Any:
    """The float model for AIMET: BatchNormalization folded, channels equalized, no weight shared."""
    model = onnx.load(job.model)
    settings = job.settings
    if settings["cle"]:
        child.tell("equalizing")
        equalize_model(model)  # folds BatchNormalization itself
        job.stage_done("equalize")
    elif settings["fold_batchnorm"]:
        child.tell("folding BatchNormalization")
        pairs = fold_all_batch_norms_to_weight(model)
        job.result["notes"].append(f"{sum(map(len, pairs))} BatchNormalizations folded")
        job.stage_done("fold")
    duplicate_shared_initializers(model.graph)
    return model


def tie_states(sim: Any) -> None:
    """Ties the grids of a recurrent layer's states to that of its first output that exists.

    AIMET 2.42 takes the first output and crashes if it is left out.
    """
    spared = [node for node in sim.model.model.graph.node if not node.output[0]]
    for node in spared:
        node.output[0] = next(filter(None, node.output))
    _tie_states(sim)
    for node in spared:
        node.output[0] = ""


_tie_states: Any = getattr(QuantizationSimModel, "_tie_rnn_hidden_state_quantizers", None)
QuantizationSimModel._tie_rnn_hidden_state_quantizers = tie_states


def simulation(model: Any, settings: Any) -> Any:
    """QuantSim with the chip's configuration and the requested widths."""
    sim = QuantizationSimModel(
        model,
        param_type=settings["param_type"],
        activation_type=settings["activation_type"],
        quant_scheme=settings["scheme"],
        config_file=settings["configuration"],
    )
    if lpbq := settings["lpbq"]:
        set_lpbq_for_params(sim, bitwidth=4, block_size=lpbq["block_size"], op_types=set(lpbq["operators"]))
    if settings["percentile"] is not None:
        for name in sim.activation_names + sim.input_quantizers_name:
            quantizers = sim.qc_quantize_op_dict[name]._tensor_quantizer
            for quantizer in quantizers if isinstance(quantizers, list) else [quantizers]:
                quantizer.setPercentileValue(float(settings["percentile"]))
    return sim


def hold_indices(job: child.ChildJob, sim: Any) -> None:
    """Gives float inputs a 16-bit grid with step 1 if only a Cast reads them
    and all samples are 16-bit integers (indices).

    This step holds each index exactly; with any other step the Cast truncates some to the one below.
    """
    graph = onnx.load(job.model, load_external_data=False).graph
    for value in graph.input:
        quantizer = sim.qc_quantize_op_dict.get(value.name)
        readers = {node.op_type for node in graph.node if value.name in node.input}
        # Lazily: samples that not only a Cast reads, such as pictures, are not looked at.
        seen = (feed[value.name] for feed in job.calibration)
        whole = (np.array_equal(one, np.clip(np.round(one), 0, 65535)) for one in seen)
        if quantizer and readers == {"Cast"} and all(whole):
            quantizer.set_bitwidth(16)
            quantizer.set_fixed_encoding_range((0, 65535))


class Score:
    """The signal-to-noise ratio of a session's worst output against the float model's, in decibels.

    Each output counts with its own signal, so that a large one does not hide a small one.
    """

    def __init__(self, job: child.ChildJob, stage: str) -> None:
        self._feeds = job.calibration.named("")[:_SCORED]
        session = onnxruntime.InferenceSession(str(job.model), providers=["CPUExecutionProvider"])
        self._wanted = [session.run(None, feed) for feed in self._feeds]
        self._stage, self._done = stage, 0

    def __call__(self, session: Any) -> float:
        self._done += 1
        child.tell(self._stage, self._done)
        made = [session.run(None, feed) for feed in self._feeds]
        return min(self._decibels(at, made) for at in range(len(self._wanted[0])))

    def _decibels(self, at: int, made: Any) -> float:
        rows = zip(self._wanted, made, strict=True)
        pairs = [(np.asarray(want[at], np.float64), np.asarray(got[at], np.float64)) for want, got in rows]
        signal = sum(float((want**2).sum()) for want, _ in pairs)
        noise = sum(float(((want - got) ** 2).sum()) for want, got in pairs)
        return 10 * float(np.log10(max(signal, 1e-30) / max(noise, signal * 1e-15, 1e-30)))


def mix(job: child.ChildJob, sim: Any) -> None:
    """Raises layers to a wider type: a share of them by QuantAnalyzer (LiteMP), or the fewest that reach a
    ratio (AMP).
    """
    lite, amp = job.settings["lite_mp"], job.settings["amp"]
    if lite is None and amp is None:
        return
    kinds = [(job.settings["param_type"], width) for width in ("int8", "int16")]
    score = Score(job, "analyzing layers" if lite is not None else "searching mixed precisions")
    before = {name: _type_of(quantizer) for name, quantizer in sim.qc_quantize_op_dict.items()}
    if lite is not None:
        scores = analyze_per_layer_sensitivity(sim, score)
        wide = "float16" if lite["to"] == "float16" else kinds[1]
        flip_layers_to_higher_precision(sim, scores, lite["percent"], wide)
        job.result["sensitivity"] = {str(layer): float(score) for layer, score in scores.items()}
        job.stage_done("lite_mp")
    else:
        found = analyze_mixed_precision_sensitivity(sim, kinds, score, job.calibration)
        apply_amp(sim, found, lambda session: score(session) >= amp["decibels"])
        job.stage_done("amp")
    raised = [name for name, quantizer in sim.qc_quantize_op_dict.items() if before[name] != _type_of(quantizer)]
    sim.compute_encodings(job.calibration)
    asked = f", of {amp['decibels']:g} asked for" if amp is not None else ""
    job.result["notes"] += [
        f"{len(raised)} tensors in a wider type: {', '.join(raised[:20])}",
        f"{score(sim.session):.1f} dB of the worst output{asked}, on {_SCORED} calibration samples",
    ]
    job.stage_done("calibrate again")


def _type_of(quantizer: Any) -> tuple[Any, int]:
    return quantizer.data_type, quantizer.bitwidth


def leave_room(job: child.ChildJob, sim: Any) -> None:
    """Widens 16-bit ranges as ``child.with_room`` says, if they are the full ranges of all samples."""
    wide = [one for one in sim.qc_quantize_op_dict.values() if one.enabled and one.bitwidth == 16]
    if not wide or len(job.calibration) < 2 or job.settings["scheme"] != "min_max":
        return
    halves = []
    for half in (0, 1):
        sim.compute_encodings(job.calibration[half::2])
        halves.append([[(end.min, end.max) for end in one.get_encodings() or ()] for one in wide])
    sim.compute_encodings(job.calibration)
    for quantizer, one, other in zip(wide, *halves, strict=True):
        if len(one) == 1:
            quantizer.set_fixed_encoding_range(child.with_room(*one, *other))
            quantizer.compute_encodings()
    job.stage_done("room")


def export(job: child.ChildJob, sim: Any) -> None:
    """Exports the model without quantizers, in one file if it fits, and its encodings with int32 biases."""
    child.tell("exporting")
    sim.export(str(job.out), "model", encoding_version=job.settings["encoding_version"], export_int32_bias=True)
    path, data = job.out / "model.onnx", job.out / "model.data"
    model = onnx.load(path)
    if data.is_file() and model.ByteSize() < _LARGE:
        onnx.save(model, path)
        data.unlink()
    job.stage_done("export")


def work(job: child.ChildJob) -> None:
    """Runs all steps of the job."""
    job.result["versions"] = {
        "aimet-onnx": version("aimet-onnx"),
        "onnx": onnx.__version__,
        "onnxruntime": onnxruntime.__version__,
        "torch": version("torch"),
    }
    job.stage_done("start")
    np.random.seed(0)
    model = prepared(job)
    names = [value.name for value in model.graph.output]
    child.tell("building the simulation")
    factors = {name for node in model.graph.node if node.op_type in ("Resize", "Upsample") for name in node.input[1:]}
    sim = simulation(model, job.settings)
    for quantizer in filter(None, map(sim.qc_quantize_op_dict.get, factors)):
        quantizer.enabled = False  # no device rounds a factor, and here it would move whole pictures
    if job.settings["lpbq"] and not any(one.quant_info.blockSize for one in sim.qc_quantize_op_dict.values()):
        raise ValueError("no weight takes a whole number of blocks: set a smaller block_size")
    job.stage_done("simulation")
    hold_indices(job, sim)
    if job.settings["floats"]:
        # ``floats`` stay float16 if the chip has it and their samples are far below its limit; else they get 16 bits.
        floats, fits = job.settings["floats"], job.settings["float16"]
        fits &= all(np.abs(feed[name]).max() < 2**14 for feed in job.calibration for name in {*floats} & {*feed})
        for quantizer in filter(None, map(sim.qc_quantize_op_dict.get, floats)):
            if fits:
                quantizer.enabled = False
            else:
                quantizer.set_bitwidth(16)
    # The methods for better weights, if requested; both freeze the encodings of the weights they changed.
    for name, apply, told in (
        ("seq_mse", apply_seq_mse, "searching weight scales"),
        ("adaround", apply_adaround, "learning to round weights"),
    ):
        if job.settings[name]:
            child.tell(told)
            apply(sim, job.calibration.named(told), **job.settings[name])
            job.stage_done(name)
    sim.compute_encodings(job.calibration)
    job.stage_done("calibrate")
    mix(job, sim)
    leave_room(job, sim)
    export(job, sim)
    job.save_simulated(names, lambda feed: sim.session.run(None, feed))
    job.stage_done("simulate")


def main() -> int:
    """Runs the job in the current folder and gives its exit status."""
    status: int = child.main(work)
    return status


if __name__ == "__main__":
    sys.exit(main())
