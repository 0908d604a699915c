"""What is asked of this backend and it does not do. That inputs need fixed shapes is a rule of the core (DK001)."""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.backend.backend import Situation
from deploykit.findings import SubjectKind
from deploykit.findings.rules import Found, Registry

__all__ = ["INT8", "PRECISIONS", "RULES"]

INT8 = "w8a8"
PRECISIONS = ("fp16", INT8)
"""What is offered for a float model, the default first. A model with quantizers inside is taken as it is."""

RULES: Registry[Situation] = Registry("openvino-npu")


@RULES.rule(
    "OVN001",
    "precision-not-offered",
    "error",
    sources=["docs.openvino.ai 2023.3, NPU Device, Supported Inference Data Types"],
)
def check_precision(situation: Situation) -> Iterator[Found]:
    """A precision that this backend does not make.

    NNCF's post-training quantization makes 8-bit weights and activations; in float the NPU computes in float16.

    Fix: ask for fp16 or w8a8
    """
    asked = situation.request.precision
    if asked is not None and asked not in PRECISIONS:
        yield Found(kind=SubjectKind.MODEL, name=situation.request.model.name, message=f"{asked} is not offered")


@RULES.rule(
    "OVN002",
    "no-calibration-data",
    "error",
    sources=["docs.openvino.ai, Basic Quantization Flow: a calibration dataset is needed"],
)
def check_calibration(situation: Situation) -> Iterator[Found]:
    """INT8 is asked of a float model, and there is no data to calibrate with.

    Ranges that were measured on made-up data clip real data.

    Fix: give --calibration
    """
    request = situation.request
    if request.precision == INT8 and request.calibration is None and not situation.facts.is_qdq:
        yield Found(kind=SubjectKind.MODEL, name=request.model.name, message="w8a8 without calibration data")


@RULES.rule("OVN003", "encodings-not-used", "error", sources=["docs.openvino.ai, Model Formats: ONNX"])
def check_encodings(situation: Situation) -> Iterator[Found]:
    """Encodings beside the model.

    OpenVINO reads quantizers that stand in the model; a file beside it changes nothing.

    Fix: write them into the model with 'deploykit encodings apply', and leave out --encodings
    """
    if situation.encodings is not None:
        yield Found(kind=SubjectKind.MODEL, name=situation.request.model.name, message="encodings were given")
