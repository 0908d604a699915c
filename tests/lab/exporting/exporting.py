"""A subject to an ONNX file, compared with torch; quantizes nothing."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

from .architectures import Architecture
from .sample import Subject, settle

Feed = dict[str, np.ndarray]


def built(architecture: Architecture) -> Subject:
    """The same module on every call."""
    torch.manual_seed(0)
    subject = architecture.build()
    rng = np.random.default_rng(0)
    settle(subject, [subject.feed(rng) for _ in range(4)])
    return subject


def export(architecture: Architecture, subject: Subject, feeds: list[Feed], path: Path) -> dict[str, Any]:
    """Writes the model and says how it was made, and how far it is from torch on the first sample."""
    example = tuple(torch.from_numpy(value) for value in feeds[0].values())
    common: dict[str, Any] = {
        "input_names": list(subject.inputs),
        "output_names": list(subject.outputs),
        "opset_version": architecture.opset,
    }
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = subject.module(*example)
        if architecture.exporter == "dynamo":
            torch.onnx.export(
                subject.module, example, str(path), dynamo=True, external_data=False, verbose=False, **common
            )
        else:
            torch.onnx.export(subject.module, example, str(path), dynamo=False, **common)
    model = onnx.load(path)
    if architecture.simplify:
        import onnxsim

        model, checked = onnxsim.simplify(model)
        assert checked
    _strip(model)
    onnx.save(model, path)
    found = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds[0])
    errors = [float(np.abs(a - b.numpy()).max()) for a, b in zip(found, expected, strict=True)]
    return {
        "exporter": architecture.exporter,
        "opset": architecture.opset,
        "simplified": architecture.simplify,
        "nodes": len(model.graph.node),
        "largest_difference_to_torch": dict(zip(subject.outputs, errors, strict=True)),
        "operators": dict(Counter(node.op_type for node in model.graph.node).most_common()),
    }


def _strip(model: onnx.ModelProto) -> None:
    """Takes out what exporters note about source lines: it holds paths of this machine and half of the bytes."""
    model.doc_string = ""
    for part in (model.graph, *model.graph.node):
        part.doc_string = ""
        del part.metadata_props[:]
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
