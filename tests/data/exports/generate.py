"""Writes the exports of this folder; run by hand with torch 2.13, transformers and onnx, in no environment of the tests.

``python generate.py``: each model by torchscript (`_script`), by dynamo (`_dynamo`) and by dynamo with an open batch
(`_batch`). Weights are random (seed 0). Notes of the exporter about source files are taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn
from transformers import ConvNextConfig, ConvNextModel, SamVisionConfig, SwinConfig, SwinModel, ViTConfig, ViTModel
from transformers.models.sam.modeling_sam import SamVisionEncoder

HERE = Path(__file__).parent


class Last(nn.Module):
    """The last hidden state alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).last_hidden_state


class Shuffle(nn.Module):
    """A pixel shuffle written out."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.wide(x)
        n, c, h, w = y.shape
        y = y.view(n, c // 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3)
        return self.last(y.reshape(n, c // 4, h * 2, w * 2))


class SpaceToDepth(nn.Module):
    """The opposite, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        y = x.view(n, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 1, 2, 4)
        return self.conv(y.reshape(n, c * 4, h // 2, w // 2))


class Focus(nn.Module):
    """The same by slices, as detectors have it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x[..., row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.conv(torch.cat(parts, 1))


def vit() -> nn.Module:
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
    )
    return Last(ViTModel(config, add_pooling_layer=False))


def swin() -> nn.Module:
    config = SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
    return Last(SwinModel(config, add_pooling_layer=False))


def convnext() -> nn.Module:
    return Last(ConvNextModel(ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, image_size=32)))


def sam() -> nn.Module:
    config = SamVisionConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=64,
        patch_size=8,
        window_size=3,
        global_attn_indexes=[1],
        output_channels=16,
        mlp_dim=64,
    )
    return Last(SamVisionEncoder(config))


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "shuffle": (Shuffle, 16),
    "space_to_depth": (SpaceToDepth, 16),
    "focus": (Focus, 16),
    "vit": (vit, 32),
    "swin": (swin, 32),
    "convnext": (convnext, 32),
    "sam": (sam, 64),
}
DYNAMO = {"dynamo": True, "opset_version": 18, "external_data": False}


def ways(x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, dict[str, Any]]]:
    yield "script", x, {"dynamo": False, "opset_version": 17}
    yield "dynamo", x, DYNAMO
    yield "batch", torch.cat([x, x]), {**DYNAMO, "dynamic_shapes": ({0: torch.export.Dim("batch")},)}


def stripped(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without what the exporter notes of source files and versions."""
    graph = model.graph
    for item in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        item.ClearField("metadata_props")
        item.ClearField("doc_string")
    return model


for name, (make, size) in MODELS.items():
    torch.manual_seed(0)
    model = make().eval()
    for way, x, options in ways(torch.randn(1, 3, size, size)):
        path = HERE / f"{name}_{way}.onnx"
        try:
            torch.onnx.export(model, (x,), path, input_names=["x"], output_names=["y"], **options)
        except Exception as error:  # torch 2.13 cannot export every model by dynamo
            print(path.name, "not exported:", str(error).splitlines()[0])
            continue
        onnx.save(stripped(onnx.load(path)), path)
