"""Vision: convolutional nets, transformers, dense prediction, and two pictures or a picture and words at once."""

from __future__ import annotations

import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional

from .language import LENGTH, WORDS, Take, mask, tokens
from .sample import Subject, picture

SIDE = 48


def _classified(model: nn.Module, side: int = SIDE) -> Subject:
    inputs = {"pixel_values": picture(side, side)}
    return Subject(module=Take(model, tuple(inputs), ("logits",)), inputs=inputs, outputs=("logits",))


def resnet() -> Subject:
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24], depths=[1, 2, 1], layer_type="basic", num_labels=10
    )
    return _classified(hf.ResNetForImageClassification(config))


def efficientnet() -> Subject:
    config = hf.EfficientNetConfig(
        width_coefficient=0.25,
        depth_coefficient=0.5,
        image_size=SIDE,
        in_channels=[32, 32, 64, 96],
        out_channels=[32, 64, 96, 192],
        kernel_sizes=[3, 3, 5, 3],
        strides=[1, 2, 2, 1],
        num_block_repeats=[1, 1, 2, 1],
        expand_ratios=[1, 3, 3, 3],
        hidden_dim=320,
        num_labels=10,
        depthwise_padding=[],
    )
    return _classified(hf.EfficientNetForImageClassification(config))


def convnext() -> Subject:
    config = hf.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], num_labels=10, image_size=64)
    return _classified(hf.ConvNextForImageClassification(config), 64)


def vit() -> Subject:
    config = hf.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=10,
    )
    return _classified(hf.ViTForImageClassification(config), 32)


def dinov2() -> Subject:
    config = hf.Dinov2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        mlp_ratio=2,
        image_size=56,
        patch_size=14,
        num_labels=10,
    )
    return _classified(hf.Dinov2ForImageClassification(config), 56)


def swin() -> Subject:
    config = hf.SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        mlp_ratio=2.0,
        num_labels=10,
    )
    return _classified(hf.SwinForImageClassification(config), 32)


class Squeeze(nn.Module):
    """Squeeze and excitation with HardSigmoid."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, width // 4, 1),
            nn.ReLU(),
            nn.Conv2d(width // 4, width, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


class Inverted(nn.Module):
    """MobileNetV3's block: widened, depthwise, squeezed, narrowed."""

    def __init__(self, width: int, inner: int, out: int, kernel: int, stride: int, *, gated: bool, hard: bool) -> None:
        super().__init__()
        act = nn.Hardswish if hard else nn.ReLU
        self.body = nn.Sequential(
            *(nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), act()),
            nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner, bias=False),
            *(nn.BatchNorm2d(inner), act(), Squeeze(inner) if gated else nn.Identity()),
            *(nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        self.adds = stride == 1 and width == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


class MobileNetV3(nn.Module):
    """The small variant's sequence of blocks, at a third of its width."""

    def __init__(self, labels: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish())
        self.blocks = nn.Sequential(
            Inverted(8, 8, 8, 3, 2, gated=True, hard=False),
            Inverted(8, 32, 12, 3, 2, gated=False, hard=False),
            Inverted(12, 40, 12, 3, 1, gated=False, hard=False),
            Inverted(12, 40, 16, 5, 2, gated=True, hard=True),
            Inverted(16, 64, 16, 5, 1, gated=True, hard=True),
        )
        self.head = nn.Sequential(nn.Conv2d(16, 64, 1, bias=False), nn.BatchNorm2d(64), nn.Hardswish())
        self.labels = nn.Sequential(nn.Linear(64, 96), nn.Hardswish(), nn.Linear(96, labels))

    def forward(self, pixels: Tensor) -> tuple[Tensor]:
        return (self.labels(self.head(self.blocks(self.stem(pixels))).mean((2, 3))),)


def mobilenet_v3() -> Subject:
    return Subject(module=MobileNetV3(), inputs={"pixels": picture(64, 64)}, outputs=("logits",))


class SuperResolution(nn.Module):
    """FSRCNN's kind: PReLU everywhere, pixels shuffled at the end and added to an interpolated picture."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, width, 5, padding=2), nn.PReLU(width)),
            *(nn.Conv2d(width, 8, 1), nn.PReLU(8)),
            *(nn.Conv2d(8, 8, 3, padding=1), nn.PReLU(8), nn.Conv2d(8, 8, 3, padding=1), nn.PReLU(8)),
            *(nn.Conv2d(8, width, 1), nn.PReLU(width), nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2)),
        )

    def forward(self, pixels: Tensor) -> tuple[Tensor]:
        wide = functional.interpolate(pixels, scale_factor=2.0, mode="bilinear", align_corners=False)
        return ((self.body(pixels) + wide).clamp(0, 1),)


def superres() -> Subject:
    return Subject(module=SuperResolution(), inputs={"pixels": picture(24, 24, low=0.0, high=1.0)}, outputs=("wide",))


def depth() -> Subject:
    """DPT on a ViT: reassembled tokens, transposed convolutions, fusion with resizing."""
    config = hf.DPTConfig(
        hidden_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
        is_hybrid=False,
        readout_type="project",
    )
    inputs, outputs = {"pixel_values": picture(32, 32)}, ("predicted_depth",)
    module = Take(hf.DPTForDepthEstimation(config), tuple(inputs), outputs)
    return Subject(module=module, inputs=inputs, outputs=("depth",))


class Clip(nn.Module):
    """Both towers, and how well picture and words fit."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor, pixels: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        result = self.model(input_ids=words, pixel_values=pixels, attention_mask=mask)
        return result.logits_per_image, result.text_embeds, result.image_embeds


def clip() -> Subject:
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**tower, "vocab_size": WORDS, "max_position_embeddings": LENGTH, "eos_token_id": WORDS - 1}
    config = hf.CLIPConfig(
        text_config=text, vision_config={**tower, "image_size": 32, "patch_size": 8}, projection_dim=24
    )
    return Subject(
        module=Clip(hf.CLIPModel(config)),
        inputs={"input_ids": tokens(WORDS, LENGTH), "pixel_values": picture(32, 32), "attention_mask": mask(LENGTH, 8)},
        outputs=("logits_per_image", "text_embeds", "image_embeds"),
    )


class Stereo(nn.Module):
    """Two pictures through one encoder; a volume of shifted products; the expected shift of every pixel."""

    def __init__(self, width: int = 12, shifts: int = 6) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.LeakyReLU(0.1)),
            *(nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width), nn.LeakyReLU(0.1)),
        )
        self.cost = nn.Sequential(nn.Conv2d(shifts, 16, 3, 1, 1), nn.LeakyReLU(0.1), nn.Conv2d(16, shifts, 3, 1, 1))
        self.shifts = shifts

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor]:
        a, b = self.encoder(left), self.encoder(right)
        moved = [functional.pad(b, (n, 0))[..., : b.shape[-1]] for n in range(self.shifts)]
        volume = torch.stack([(a * other).mean(1) for other in moved], 1)
        chance = self.cost(volume).softmax(1)
        places = torch.arange(self.shifts, dtype=torch.float32).reshape(1, -1, 1, 1)
        shift = (chance * places).sum(1, keepdim=True)
        return (functional.interpolate(shift, scale_factor=2.0, mode="bilinear", align_corners=False),)


def stereo() -> Subject:
    both = {"left": picture(32, 48), "right": picture(32, 48)}
    return Subject(module=Stereo(), inputs=both, outputs=("disparity",))


class Tracker(nn.Module):
    """A Siamese tracker: the template's features, pooled to a kernel, weigh those of the search region."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU6()),
            *(nn.Conv2d(width, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU6()),
        )
        self.score, self.box = nn.Conv2d(width, 1, 3, 1, 1), nn.Conv2d(width, 4, 3, 1, 1)

    def forward(self, template: Tensor, search: Tensor) -> tuple[Tensor, Tensor]:
        kernel, region = self.encoder(template), self.encoder(search)
        rows, columns = kernel.flatten(2), region.flatten(2)
        alike = torch.softmax(rows.transpose(1, 2) @ columns / rows.shape[1] ** 0.5, 1)
        mixed = (rows @ alike).reshape(region.shape) + region
        return torch.sigmoid(self.score(mixed)), torch.exp(self.box(mixed) * 0.2)


def tracker() -> Subject:
    both = {"template": picture(24, 24), "search": picture(48, 48)}
    return Subject(module=Tracker(), inputs=both, outputs=("score", "box"))
