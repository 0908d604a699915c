"""Published networks, rebuilt with random weights: their shapes decide how long a chip takes, not their numbers.

A name is the one that qualcomm/ai-hub-models uses in its results; shapes are those of its own code (v0.47.0). A network
that cannot be rebuilt from a public library with the same layers is not in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import nn

__all__ = ["MODELS", "Published", "name_operators"]

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt a, SymInt b, SymInt c,"
    " SymInt d, SymInt e, SymInt f, SymInt g, SymInt h, bool i) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float a, SymInt b, SymInt c, int d, bool e) -> Tensor",
)


def name_operators() -> None:
    """Torchvision's compiled operators load only with the torch that they were built for; its networks need none."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _OPERATORS:
        if not hasattr(torch.ops.torchvision, schema.partition("(")[0]):
            library.define(schema)
    _KEPT.append(library)


_KEPT: list[Any] = []  # a library's operators go when it does


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One network: how to build it, the inputs by name, and the family whose error it counts to."""

    build: Callable[[], nn.Module]
    inputs: Mapping[str, tuple[int, ...]]
    family: Literal["cnn", "attention"]
    component: str = ""
    tokens: bool = False  # integer inputs
    of: str = ""  # the publisher's name, where a component has one of its own here


def _vision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        name_operators()
        import torchvision.models as found

        make: Callable[..., nn.Module] = found.get_model
        return make(name, weights=None, **options)

    return build


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        name_operators()
        import timm

        made: nn.Module = timm.create_model(name, pretrained=False, exportable=True, **options)
        return made

    return build


class _First(nn.Module):
    """A model of transformers with tensors in and its first output out."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        answer = self.model(**dict(zip(self.names, given, strict=True)), return_dict=False)
        first = answer[0] if isinstance(answer, tuple) else answer
        assert isinstance(first, torch.Tensor)
        return first


def _hf(kind: str, config: str, names: tuple[str, ...], **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        name_operators()
        import transformers

        settings = getattr(transformers, config)(**options)
        settings._attn_implementation = "eager"
        return _First(getattr(transformers, kind)(settings), names)

    return build


def _yolo(name: str, classes: int | None = None) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        name_operators()
        from ultralytics.nn.tasks import DetectionModel, SegmentationModel

        kind = SegmentationModel if name.endswith("-seg") else DetectionModel
        model: nn.Module = kind(f"{name}.yaml", nc=classes, verbose=False)
        head = model.model[-1]  # type: ignore[index, union-attr]
        head.export, head.format = True, "onnx"  # type: ignore[union-attr]
        return model

    return build


class _Unet(nn.Module):
    """The U-Net of milesial/Pytorch-UNet as its paper draws it, with transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (64, 128, 256, 512, 1024)
        self.first = self._pair(3, 64)
        self.down = nn.ModuleList(self._pair(a, b) for a, b in pairwise(sizes))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(sizes))
        self.up = nn.ModuleList(self._pair(b, a) for a, b in pairwise(sizes))
        self.last = nn.Conv2d(64, 2, 1)

    @staticmethod
    def _pair(a: int, b: int) -> nn.Sequential:
        one = [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        return nn.Sequential(*one, nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [self.first(x)]
        for down in self.down:
            kept.append(down(nn.functional.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for grow, up in zip(reversed(self.grow), reversed(self.up), strict=True):
            x = up(torch.cat([kept.pop(), grow(x)], 1))
        return self.last(x)  # type: ignore[no-any-return]


class _Rrdb(nn.Module):
    """Real-ESRGAN's network (RRDBNet, 23 blocks, four times)."""

    class _Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(64 + 32 * i, 32 if i < 4 else 64, 3, padding=1) for i in range(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = [x]
            for conv in self.convs[:-1]:
                parts.append(nn.functional.leaky_relu(conv(torch.cat(parts, 1)), 0.2))
            return self.convs[-1](torch.cat(parts, 1)) * 0.2 + x  # type: ignore[no-any-return]

    def __init__(self, blocks: int = 23) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3, padding=1)
        self.body = nn.ModuleList(nn.Sequential(*(self._Dense() for _ in range(3))) for _ in range(blocks))
        self.after, self.up1, self.up2, self.high = (nn.Conv2d(64, 64, 3, padding=1) for _ in range(4))
        self.last = nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = start = self.first(x)
        for block in self.body:
            x = block(x) * 0.2 + x
        x = self.after(x) + start
        for up in (self.up1, self.up2):
            x = nn.functional.leaky_relu(up(nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")), 0.2)
        return self.last(nn.functional.leaky_relu(self.high(x), 0.2))  # type: ignore[no-any-return]


def _picture(size: int, width: int = 0) -> dict[str, tuple[int, ...]]:
    return {"image": (1, 3, size, width or size)}


def _cnn(build: Callable[[], nn.Module], inputs: Mapping[str, tuple[int, ...]] | None = None) -> Published:
    return Published(build=build, inputs=inputs or _picture(224), family="cnn")


def _attention(build: Callable[[], nn.Module], inputs: Mapping[str, tuple[int, ...]] | None = None) -> Published:
    return Published(build=build, inputs=inputs or _picture(224), family="attention")


def _detr(backbone: str) -> Callable[[], nn.Module]:
    options = {"use_timm_backbone": True, "use_pretrained_backbone": False, "backbone": backbone}
    return _hf("DetrForObjectDetection", "DetrConfig", ("pixel_values",), **options)


def _encoder(**sizes: int) -> Published:
    def build() -> nn.Module:
        name_operators()
        from transformers import WhisperConfig
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        settings = WhisperConfig(**sizes)
        settings._attn_implementation = "eager"
        return _First(WhisperEncoder(settings), ("input_features",))

    mel = {"mel": (1, 80, 3000)}
    return Published(build=build, inputs=mel, family="attention", component="HfWhisperEncoder")


def _text(build: Callable[[], nn.Module], length: int) -> Published:
    return Published(build=build, inputs={"ids": (1, length), "mask": (1, length)}, family="attention", tokens=True)


_TOKENS = ("input_ids", "attention_mask")
_VIDEO = {"video": (1, 3, 16, 112, 112)}
_TORCHVISION_224 = (
    *("resnet18", "resnet50", "resnet101", "densenet121", "googlenet", "mobilenet_v2", "mobilenet_v3_large"),
    *("mobilenet_v3_small", "squeezenet1_1", "regnet_y_800mf", "efficientnet_b0", "convnext_tiny", "convnext_base"),
)

MODELS: Mapping[str, Published] = {
    **{name: _cnn(_vision(name)) for name in _TORCHVISION_224},
    "resnext50": _cnn(_vision("resnext50_32x4d")),
    "resnext101": _cnn(_vision("resnext101_32x8d")),
    "wideresnet50": _cnn(_vision("wide_resnet50_2")),
    "regnet": _cnn(_vision("regnet_x_3_2gf")),
    "mnasnet05": _cnn(_vision("mnasnet0_5")),
    "shufflenet_v2": _cnn(_vision("shufflenet_v2_x0_5")),
    "inception_v3": _cnn(_vision("inception_v3", init_weights=False)),
    "efficientnet_b4": _cnn(_vision("efficientnet_b4")),
    "efficientnet_v2_s": _cnn(_vision("efficientnet_v2_s")),
    "fcn_resnet50": _cnn(_vision("fcn_resnet50", weights_backbone=None), _picture(520)),
    "resnet_3d": _cnn(_vision("r3d_18"), _VIDEO),
    "resnet_mixed": _cnn(_vision("mc3_18"), _VIDEO),
    "resnet_2plus1d": _cnn(_vision("r2plus1d_18"), _VIDEO),
    "vit": _attention(_vision("vit_b_16")),
    "dla102x": _cnn(_timm("dla102x")),
    "nasnet": _cnn(_timm("nasnetalarge")),
    "efficientformer": _attention(_timm("efficientformer_l1")),
    "efficientvit_b2_cls": _attention(_timm("efficientvit_b2")),
    "efficientvit_l2_cls": _attention(_timm("efficientvit_l2")),
    "levit": _attention(_timm("levit_128s")),
    "beit": _attention(_timm("beit_base_patch16_224")),
    "mobile_vit": _attention(_timm("mobilevit_s"), _picture(256)),
    "unet_segmentation": _cnn(_Unet, _picture(640, 1280)),
    "real_esrgan_x4plus": _cnn(_Rrdb, _picture(128)),
    "yolov3": _cnn(_yolo("yolov3-tiny"), _picture(640)),
    "yolov5": _cnn(_yolo("yolov5m"), _picture(640)),
    "yolov8_det": _cnn(_yolo("yolov8n"), _picture(640)),
    "yolov10_det": _attention(_yolo("yolov10n"), _picture(640)),
    "yolov11_det": _attention(_yolo("yolo11n"), _picture(640)),
    "fastsam_s": _cnn(_yolo("yolov8s-seg", 1), _picture(640)),
    "fastsam_x": _cnn(_yolo("yolov8x-seg", 1), _picture(640)),
    "yolov8_seg": _cnn(_yolo("yolov8n-seg"), _picture(640)),
    "bert_base_uncased_hf": _text(_hf("BertForMaskedLM", "BertConfig", _TOKENS), 384),
    "distil_bert_base_uncased_hf": _text(_hf("DistilBertForMaskedLM", "DistilBertConfig", _TOKENS), 384),
    "electra_bert_base_discrim_google": _text(
        _hf(
            "ElectraForPreTraining",
            "ElectraConfig",
            _TOKENS,
            embedding_size=768,
            hidden_size=768,
            intermediate_size=3072,
            num_attention_heads=12,
        ),
        384,
    ),
    "albert_base_v2_hf": _text(
        _hf(
            "AlbertForMaskedLM",
            "AlbertConfig",
            _TOKENS,
            embedding_size=128,
            hidden_size=768,
            intermediate_size=3072,
            num_attention_heads=12,
        ),
        384,
    ),
    "mobile_bert_uncased_google": _text(_hf("MobileBertForMaskedLM", "MobileBertConfig", _TOKENS), 384),
    "segformer_base": _attention(
        _hf("SegformerForSemanticSegmentation", "SegformerConfig", ("pixel_values",), num_labels=150), _picture(512)
    ),
    "depth_anything": _attention(
        _hf("DepthAnythingForDepthEstimation", "DepthAnythingConfig", ("pixel_values",)), _picture(518)
    ),
    "detr_resnet50": _attention(_detr("resnet50"), _picture(640)),
    "detr_resnet101": _attention(_detr("resnet101"), _picture(640)),
    "depth_anything_v2": _attention(
        _hf("DepthAnythingForDepthEstimation", "DepthAnythingConfig", ("pixel_values",)), _picture(518)
    ),
    "whisper_base": _encoder(d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048),
    "whisper_small": _encoder(d_model=768, encoder_layers=12, encoder_attention_heads=12, encoder_ffn_dim=3072),
    "whisper_tiny": _encoder(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536),
}
