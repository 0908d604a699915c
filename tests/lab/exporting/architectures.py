"""The zoo as a table: what is built, and how it is exported; how to build one is known to the modules beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import detection, language, pictures, recurrent
from .sample import Subject


@dataclass(frozen=True)
class Architecture:
    """One row: ``exporter`` is torchscript or dynamo; ``simplify`` says whether ``onnxsim`` runs after it."""

    name: str
    group: str
    build: Callable[[], Subject]
    opset: int
    exporter: str = "torchscript"
    simplify: bool = True


LANGUAGE, DETECTION, PAIR = "language or speech", "detection or segmentation", "two inputs"
STATE, VISION = "recurrent or stateful", "vision"

ARCHITECTURES = (
    Architecture("distilbert", LANGUAGE, language.distilbert, 14),
    Architecture("roberta", LANGUAGE, language.roberta, 17, simplify=False),
    Architecture("deberta_v2", LANGUAGE, language.deberta, 17),
    Architecture("gpt2", LANGUAGE, language.gpt2, 16),
    Architecture("qwen2", LANGUAGE, language.qwen2, 17),
    Architecture("gemma", LANGUAGE, language.gemma, 18, exporter="dynamo", simplify=False),
    Architecture("t5_encoder", LANGUAGE, language.t5_encoder, 15),
    Architecture("whisper_encoder", LANGUAGE, language.whisper_encoder, 17),
    Architecture("whisper_step", STATE, language.whisper_step, 17),
    Architecture("wav2vec2", LANGUAGE, language.wav2vec2, 17, simplify=False),
    Architecture("qwen2_step", STATE, language.qwen2_step, 17),
    Architecture("gpt2_step", STATE, language.gpt2_step, 17),
    Architecture("rwkv_step", STATE, language.rwkv_step, 17),
    Architecture("gru_lstm", STATE, recurrent.gru_lstm, 17),
    Architecture("streaming_conv", STATE, recurrent.streaming, 17),
    Architecture("bert_cross_encoder", PAIR, language.bert_cross_encoder, 17),
    Architecture("clip", PAIR, pictures.clip, 17),
    Architecture("stereo", PAIR, pictures.stereo, 17),
    Architecture("tracker", PAIR, pictures.tracker, 17),
    Architecture("detr", DETECTION, detection.detr, 17, simplify=False),
    Architecture("rt_detr_v2", DETECTION, detection.rt_detr_v2, 16),
    Architecture("yolo", DETECTION, detection.yolo, 12),
    Architecture("ssd", DETECTION, detection.ssd, 13),
    Architecture("segformer", DETECTION, detection.segformer, 16),
    Architecture("upernet", DETECTION, detection.upernet, 17),
    Architecture("maskformer", DETECTION, detection.maskformer, 17),
    Architecture("resnet", VISION, pictures.resnet, 13),
    Architecture("efficientnet", VISION, pictures.efficientnet, 18, exporter="dynamo", simplify=False),
    Architecture("mobilenet_v3", VISION, pictures.mobilenet_v3, 18, exporter="dynamo", simplify=False),
    Architecture("convnext", VISION, pictures.convnext, 18, exporter="dynamo", simplify=False),
    Architecture("vit", VISION, pictures.vit, 18, exporter="dynamo", simplify=False),
    Architecture("swin", VISION, pictures.swin, 18, exporter="dynamo", simplify=False),
    Architecture("dinov2", VISION, pictures.dinov2, 17),
    Architecture("depth", VISION, pictures.depth, 17),
    Architecture("superres", VISION, pictures.superres, 17),
)
