"""Records what AIMET's QuantAnalyzer says of some models, beside this file: one JSON per model.

Needs aimet-onnx 2.42 (which brings onnx and onnxruntime). The models, encodings and samples are those of this
repository, and the score is the signal-to-noise ratio of the worst output, in dB, over all samples together.

    python record.py [--only vit,resnet]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
from aimet_onnx import QuantizationSimModel
from aimet_onnx.quant_analyzer import QuantAnalyzer
from aimet_onnx.quantsim import load_encodings_to_sim

HERE = Path(__file__).parent
DATA = HERE.parent
ZOO = ("vit", "resnet", "segformer")


def detr():
    stored = np.load(DATA / "aimet" / "detr" / "w8a8.io.npz")
    feeds = [
        {key.split(":", 1)[1]: stored[key] for key in stored.files if key.startswith(f"input.{index}:")}
        for index in (0, 1)
    ]
    return onnx.load(DATA / "aimet" / "detr" / "model.onnx"), DATA / "aimet" / "detr" / "w8a8.v1.0.0.encodings", feeds


def from_zoo(name, folder):
    with zipfile.ZipFile(DATA / "zoo" / f"{name}.zip") as archive:
        archive.extractall(folder)
    stored = np.load(folder / "held_out.npz")
    feeds = [{key: stored[key][index] for key in stored.files} for index in range(2)]
    return onnx.load(folder / "model.onnx"), folder / "w8a16.v1.0.0.encodings", feeds


def worst_db(reference, got):
    """The least signal-to-noise ratio of the outputs, over all samples; 200 where nothing differs."""
    found = []
    for index in range(len(reference[0])):
        wanted = np.concatenate([np.asarray(outputs[index], np.float64).ravel() for outputs in reference])
        given = np.concatenate([np.asarray(outputs[index], np.float64).ravel() for outputs in got])
        noise = float(((wanted - given) ** 2).sum())
        found.append(10 * np.log10(float((wanted**2).sum()) / noise) if noise > 0 else 200.0)
    return float(min(found))


def own_tensors(op, sim):
    """The tensors whose quantizers AIMET switches for a layer. Tensors that share a quantizer are switched with it."""
    entering = [product.name for product in op.inputs if not product.producer and not product.is_parm]
    names = [*entering, *(product.name for product in op.outputs), *op.parameters]
    known = sim.qc_quantize_op_dict
    return [name for name in names if name in known and known[name].enabled]


def record(name, model, encodings, feeds):
    activation = 8 if "w8a8" in encodings.name else 16
    sim = QuantizationSimModel(
        model, param_type="int8", activation_type=f"int{activation}", quant_scheme="min_max", config_file="htp_v73"
    )
    load_encodings_to_sim(sim, str(encodings), strict=False)
    layers = {}
    for op in sim.connected_graph.ordered_ops:
        if any(QuantAnalyzer._get_op_quantizers(op, sim)):
            layers.setdefault(op.name_op, set()).update(own_tensors(op, sim))
    switched = [quantizer for quantizer in sim.qc_quantize_op_dict.values() if quantizer.enabled]
    for quantizer in switched:
        quantizer.enabled = False
    reference = [sim.session.run(None, feed) for feed in feeds]
    for quantizer in switched:
        quantizer.enabled = True

    def score(session):
        return worst_db(reference, [session.run(None, feed) for feed in feeds])

    analyzer = QuantAnalyzer(sim.model, None, lambda: None, score)
    whole = score(sim.session)
    alone = analyzer.perform_per_layer_analysis_by_enabling_quantizers(sim)
    without = analyzer.perform_per_layer_analysis_by_disabling_quantizers(sim)
    rows = {
        layer: {"tensors": sorted(tensors), "alone_db": alone[layer], "without_db": without[layer]}
        for layer, tensors in layers.items()
    }
    made_by = {
        "script": "record.py",
        "aimet-onnx": importlib.metadata.version("aimet-onnx"),
        "onnxruntime": importlib.metadata.version("onnxruntime"),
        "calls": "QuantAnalyzer.perform_per_layer_analysis_by_enabling_quantizers, …_by_disabling_quantizers",
        "score": "signal-to-noise ratio of the worst output over both samples, dB; 200 for no difference",
        "encodings": str(encodings.name),
    }
    text = json.dumps({"made_by": made_by, "all_quantized_db": whole, "layers": rows}, indent=1)
    (HERE / f"{name}.json").write_text(text + "\n")
    print(name, len(rows), "layers", round(whole, 2), "dB")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="detr," + ",".join(ZOO))
    wanted = parser.parse_args().only.split(",")
    if "detr" in wanted:
        record("detr", *detr())
    for name in ZOO:
        if name in wanted:
            with tempfile.TemporaryDirectory() as folder:
                record(name, *from_zoo(name, Path(folder)))


if __name__ == "__main__":
    main()
