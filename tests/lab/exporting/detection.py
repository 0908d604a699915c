"""Detectors and segmenters with their post-processing inside: boxes in pixels, scores, labels, maps at full size."""

from __future__ import annotations

import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional

from .sample import Subject, picture

LABELS, PLACES = 6, 3


def _corners(boxes: Tensor) -> Tensor:
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([centre - 0.5 * size, centre + 0.5 * size], -1)


BACKBONE = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "layer_type": "basic"}


class DetrBoxes(nn.Module):
    """Probabilities without "no object", corners in pixels."""

    def __init__(self, model: nn.Module, side: int) -> None:
        super().__init__()
        self.model, self.side = model, side

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        result = self.model(pixel_values=pixels)
        return result.logits.softmax(-1)[..., :-1], _corners(result.pred_boxes) * self.side


def detr() -> Subject:
    config = hf.DetrConfig(
        backbone_config=hf.ResNetConfig(**BACKBONE, out_features=["stage4"]),
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_queries=12,
        num_labels=LABELS,
    )
    model = hf.DetrForObjectDetection(config)
    return Subject(
        module=DetrBoxes(model, 96),
        inputs={"pixels": picture(96, 96)},
        outputs=("scores", "boxes"),
        heads=("class_labels_classifier",),
    )


class Best(nn.Module):
    """RT-DETR's own post-processing: the best of all queries and labels."""

    def __init__(self, model: nn.Module, side: int, count: int) -> None:
        super().__init__()
        self.model, self.side, self.count = model, side, count

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        result = self.model(pixel_values=pixels)
        scores, best = result.logits.sigmoid().flatten(1).topk(self.count, dim=-1)
        boxes = _corners(result.pred_boxes) * self.side
        chosen = boxes.gather(1, (best // LABELS).unsqueeze(-1).expand(-1, -1, 4))
        return best % LABELS, chosen, scores


def rt_detr_v2() -> Subject:
    config = hf.RTDetrV2Config(
        backbone_config=hf.RTDetrResNetConfig(**BACKBONE, out_features=["stage2", "stage3", "stage4"]),
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        encoder_hidden_dim=16,
        encoder_in_channels=[8, 16, 16],
        feat_strides=[8, 16, 32],
        encoder_layers=1,
        encoder_ffn_dim=32,
        encoder_attention_heads=2,
        d_model=16,
        num_queries=16,
        decoder_in_channels=[16, 16, 16],
        decoder_ffn_dim=32,
        num_feature_levels=3,
        decoder_n_points=2,
        decoder_layers=2,
        decoder_attention_heads=2,
        num_labels=LABELS,
        anchor_image_size=[96, 96],
        hidden_expansion=0.5,
    )
    model = hf.RTDetrV2ForObjectDetection(config)
    return Subject(
        module=Best(model, 96, 8),
        inputs={"pixels": picture(96, 96)},
        outputs=("labels", "boxes", "scores"),
        heads=(
            "class_embed",
            "enc_score_head",
        ),
    )


class Conv(nn.Sequential):
    """Convolution, BatchNorm, SiLU."""

    def __init__(self, width: int, out: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(width, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out), nn.SiLU())


class C2f(nn.Module):
    """YOLOv8's stage: split, a bottleneck, everything concatenated."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        half = out // 2
        self.first, self.last = Conv(width, out), Conv(3 * half, out)
        self.inner = nn.Sequential(Conv(half, half, 3), Conv(half, half, 3))

    def forward(self, x: Tensor) -> Tensor:
        kept, worked = self.first(x).chunk(2, 1)
        return self.last(torch.cat([kept, worked, worked + self.inner(worked)], 1))


class Pooled(nn.Module):
    """SPPF: one pooling, three times."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = Conv(width, width // 2), Conv(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(functional.max_pool2d(parts[-1], 5, 1, 2))
        return self.last(torch.cat(parts, 1))


class Yolo(nn.Module):
    """YOLOv8's plan with two scales: distances as distributions, decoded to boxes in pixels."""

    def __init__(self, side: int, bins: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(Conv(3, 8, 3, 2), Conv(8, 16, 3, 2), C2f(16, 16))
        self.fine, self.coarse = (
            nn.Sequential(Conv(16, 24, 3, 2), C2f(24, 24)),
            nn.Sequential(Conv(24, 32, 3, 2), Pooled(32)),
        )
        self.up, self.down = C2f(56, 24), nn.Sequential(Conv(24, 24, 3, 2))
        self.last = C2f(56, 32)
        self.heads = nn.ModuleList(nn.Conv2d(width, 4 * bins + LABELS, 1) for width in (24, 32))
        self.bins, self.sizes = bins, ((side // 8, 8), (side // 16, 16))

    def _scales(self, x: Tensor) -> list[Tensor]:
        fine = self.fine(self.stem(x))
        coarse = self.coarse(fine)
        up = self.up(torch.cat([functional.interpolate(coarse, scale_factor=2.0, mode="nearest"), fine], 1))
        return [up, self.last(torch.cat([self.down(up), coarse], 1))]

    def forward(self, pixels: Tensor) -> tuple[Tensor]:
        raw = torch.cat([head(x).flatten(2) for head, x in zip(self.heads, self._scales(pixels), strict=True)], 2)
        distances, classes = raw.split([4 * self.bins, LABELS], 1)
        chance = distances.reshape(len(pixels), 4, self.bins, -1).transpose(1, 2).softmax(1)
        reach = (chance * torch.arange(self.bins, dtype=torch.float32).reshape(1, -1, 1, 1)).sum(1)
        anchors, strides = self._anchors()
        low, high = anchors - reach[:, :2], anchors + reach[:, 2:]
        boxes = torch.cat([(low + high) / 2, high - low], 1) * strides
        return (torch.cat([boxes, classes.sigmoid()], 1),)

    def _anchors(self) -> tuple[Tensor, Tensor]:
        places, strides = [], []
        for size, stride in self.sizes:
            line = torch.arange(size, dtype=torch.float32) + 0.5
            y, x = torch.meshgrid(line, line, indexing="ij")
            places.append(torch.stack([x, y]).reshape(1, 2, -1))
            strides.append(torch.full((1, 1, size * size), float(stride)))
        return torch.cat(places, 2), torch.cat(strides, 2)


def yolo() -> Subject:
    inputs = {"pixels": picture(96, 96, low=0.0, high=1.0)}
    return Subject(module=Yolo(96), inputs=inputs, outputs=("detections",))


class Ssd(nn.Module):
    """Depthwise convolutions with ReLU6, anchors on two scales, offsets decoded with exp."""

    def __init__(self, side: int, anchors: int = 3) -> None:
        super().__init__()
        self.fine = nn.Sequential(self._block(3, 8, 1), self._block(8, 16, 8), self._block(16, 24, 16))
        self.coarse = self._block(24, 32, 24)
        self.boxes = nn.ModuleList(nn.Conv2d(width, 4 * anchors, 3, 1, 1) for width in (24, 32))
        self.scores = nn.ModuleList(nn.Conv2d(width, (LABELS + 1) * anchors, 3, 1, 1) for width in (24, 32))
        priors = [self._priors(side // stride, stride / side, anchors) for stride in (8, 16)]
        self.register_buffer("priors", torch.cat(priors)[None])

    @staticmethod
    def _block(width: int, out: int, groups: int) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(width, width, 3, 2, 1, groups=groups, bias=False), nn.BatchNorm2d(width), nn.ReLU6()),
            *(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU6()),
        )

    @staticmethod
    def _priors(size: int, step: float, anchors: int) -> Tensor:
        line = (torch.arange(size) + 0.5) * step
        y, x = torch.meshgrid(line, line, indexing="ij")
        rows = [torch.stack([x, y, *(torch.full_like(x, step * 2**n),) * 2], -1) for n in range(anchors)]
        return torch.stack(rows, 2).reshape(-1, 4)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        fine = self.fine(pixels)
        maps = (fine, self.coarse(fine))
        offsets = torch.cat([self._rows(h(x), 4) for h, x in zip(self.boxes, maps, strict=True)], 1)
        scores = torch.cat([self._rows(h(x), LABELS + 1) for h, x in zip(self.scores, maps, strict=True)], 1)
        centre = self.priors[..., :2] + 0.1 * offsets[..., :2] * self.priors[..., 2:]
        size = self.priors[..., 2:] * torch.exp(0.2 * offsets[..., 2:])
        return scores.softmax(-1), _corners(torch.cat([centre, size], -1))

    @staticmethod
    def _rows(grid: Tensor, width: int) -> Tensor:
        return grid.permute(0, 2, 3, 1).reshape(len(grid), -1, width)


def ssd() -> Subject:
    model = Ssd(64)
    return Subject(module=model, inputs={"pixels": picture(64, 64)}, outputs=("scores", "boxes"), heads=("scores",))


class Upsampled(nn.Module):
    """A segmenter's logits at the picture's size."""

    def __init__(self, model: nn.Module, side: int) -> None:
        super().__init__()
        self.model, self.side = model, side

    def forward(self, pixels: Tensor) -> tuple[Tensor]:
        logits = self.model(pixel_values=pixels).logits
        return (functional.interpolate(logits, size=(self.side, self.side), mode="bilinear", align_corners=False),)


def segformer() -> Subject:
    config = hf.SegformerConfig(
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 4],
        sr_ratios=[4, 2, 2, 1],
        decoder_hidden_size=24,
        num_labels=PLACES,
        mlp_ratios=[2, 2, 2, 2],
    )
    module = Upsampled(hf.SegformerForSemanticSegmentation(config), 48)
    return Subject(module=module, inputs={"pixels": picture(64, 64)}, outputs=("map",))


def upernet() -> Subject:
    backbone = hf.ConvNextConfig(
        hidden_sizes=[8, 12, 16, 24], depths=[1, 1, 1, 1], out_features=["stage1", "stage2", "stage3", "stage4"]
    )
    config = hf.UperNetConfig(
        backbone_config=backbone, hidden_size=16, pool_scales=[1, 2], num_labels=PLACES, use_auxiliary_head=False
    )
    model = hf.UperNetForSemanticSegmentation(config)
    return Subject(module=Upsampled(model, 64), inputs={"pixels": picture(64, 64)}, outputs=("map",))


class MaskMap(nn.Module):
    """MaskFormer's semantic map: every query's labels times its mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor]:
        result = self.model(pixel_values=pixels)
        labels = result.class_queries_logits.softmax(-1)[..., :-1]
        return (torch.einsum("bqc,bqhw->bchw", labels, result.masks_queries_logits.sigmoid()),)


def maskformer() -> Subject:
    backbone = hf.SwinConfig(
        image_size=64,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 2, 2, 4],
        window_size=2,
        mlp_ratio=2.0,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    decoder = hf.DetrConfig(
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_queries=8,
    )
    config = hf.MaskFormerConfig(
        fpn_feature_size=32, mask_feature_size=8, backbone_config=backbone, decoder_config=decoder, num_labels=PLACES
    )
    model = hf.MaskFormerForInstanceSegmentation(config)
    return Subject(
        module=MaskMap(model), inputs={"pixels": picture(64, 64)}, outputs=("map",), heads=("class_predictor",)
    )
