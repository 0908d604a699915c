"""Networks that no constant and no band was fitted to: listed before any of them was compiled, used for nothing else.

Built as those of `latency/sources.py`; Track-Anything and YOLOv6 carry the publisher's own patches (`patches/*.diff`).
"""

from __future__ import annotations

import importlib
import json
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from torch import nn

from latency.models import Published
from latency.sources import _Attributes, _code, _Normalized

__all__ = ["unseen_models"]


class _Called(nn.Module):
    """A network by one of its methods."""

    def __init__(self, model: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *given: torch.Tensor) -> Any:
        return self.call(self.model, *given)


def _normal(image: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = _Normalized(nn.Identity())(image)
    return made


def _key(model: Any, image: torch.Tensor, *, shrinkage: bool) -> Any:
    key, shrunk, selection, f16, f8, f4 = model.encode_key(_normal(image), need_ek=True, need_sk=shrinkage)
    return (key, shrunk, selection, f16) if shrinkage else (key, selection, f16, f8, f4)


def _value(model: Any, image: torch.Tensor, mask: torch.Tensor, f16: torch.Tensor, hidden: torch.Tensor) -> Any:
    both = torch.cat([1 - mask, mask], dim=0).clamp(1e-7, 1 - 1e-7)
    share = torch.softmax(torch.log(both / (1 - both)), dim=0)
    return share, *model.encode_value(_normal(image), f16, hidden, share[1:].unsqueeze(0), is_deep_update=True)


def _segment(model: Any, f16: Any, f8: Any, f4: Any, memory: Any, hidden: Any) -> Any:
    hidden, _, share = model.segment((f16, f8, f4), memory, hidden, h_out=True, strip_bg=False)
    return share[0], hidden


def _own_norm(feature: torch.Tensor) -> torch.Tensor:
    """AOT-GAN's, as the publisher patches it."""
    mean = feature.mean((2, 3), keepdim=True)
    count = feature.shape[2] * feature.shape[3]
    deviation = torch.sqrt(torch.sum((feature - mean) ** 2 / (count - 1), (2, 3), keepdim=True)) + 1e-9
    return 5 * (2 * (feature - mean) / deviation - 1)


def _hub(name: str) -> Any:
    return importlib.import_module(f"qai_hub_models.models.{name}.model")


def _found(name: str) -> Any:
    return importlib.import_module(name)


def _palm() -> nn.Module:
    made: nn.Module = _hub("mediapipe_hand_gesture").PalmDetector(
        _found("blazepalm").BlazePalm(), torch.rand(2944, 4) + 0.1
    )
    return made


def _gpunet() -> nn.Module:
    layers = json.loads(Path("GPUNet/configs/batch1/GV100/0.65ms.json").read_text())
    made: nn.Module = _found("models.gpunet_builder").GPUNet_Builder().get_model(layers)
    return made


def _keypoints() -> nn.Module:
    told = yaml.safe_load(Path("first-order-model/config/vox-256.yaml").read_text())["model_params"]
    make = _found("modules.keypoint_detector").KPDetector
    detector: nn.Module = _hub("fomm").FOMMDetector(make(**told["kp_detector_params"], **told["common_params"]))
    return detector


def _yolov6() -> nn.Module:
    told = runpy.run_path("YOLOv6/configs/yolov6n.py")
    settings = _Attributes(model=told["model"], training_mode="repvgg")
    model = _found("yolov6.models.yolo").Model(settings, channels=3, num_classes=80).eval()
    model = _found("yolov6.utils.torch_utils").fuse_model(model)
    for layer in model.modules():
        if hasattr(layer, "switch_to_deploy"):
            layer.switch_to_deploy()
    model.export = True
    made: nn.Module = _hub("yolov6").YoloV6(model)
    return made


def _yolov7() -> nn.Module:
    model = _found("models.yolo").Model("yolov7/cfg/training/yolov7-tiny.yaml").eval().fuse()
    model.traced = True
    head = model.model[-1]
    kept = {name: value for name, value in head.state_dict().items() if name.startswith(("anchor_grid", "m."))}
    detector = _hub("yolov7")._YoloV7Detector.from_yolov7_state_dict(kept, (640, 640), head.stride)
    for number, grid in enumerate(kept["anchor_grid"]):
        getattr(detector, f"anchor_grid_{number}").data.copy_(grid)
    made: nn.Module = _hub("yolov7").YoloV7(model, detector)
    return made


def _yolox() -> nn.Module:
    nets = _found("yolox.models")
    model = nets.YOLOX(nets.YOLOPAFPN(0.33, 0.5), nets.YOLOXHead(80, 0.5)).eval()
    made: nn.Module = _hub("yolox").YoloX(model)
    return made


def _yolor() -> nn.Module:
    model = _found("models.models").Darknet("yolor/cfg/yolor_p6.cfg", 1280).eval()
    made: nn.Module = _hub("yolor").YoloR(model)
    return made


def _aotgan() -> nn.Module:
    module = _found("model.aotgan")
    module.my_layer_norm = _own_norm
    generator = module.InpaintGenerator(SimpleNamespace(rates=[1, 2, 4, 8], block_num=8))
    made: nn.Module = _hub("aotgan").AOTGAN(generator)
    return made


def unseen_models(sources: Path) -> Mapping[str, Published]:
    """Those whose checkouts are in the folder, by the publisher's names."""
    sources = sources.resolve()

    def built(make: Callable[[], nn.Module], *paths: str) -> Callable[[], nn.Module]:
        def build() -> nn.Module:
            with torch.no_grad(), _code(sources, *paths, "ai-hub-models"):
                return make()

        return build

    def net(
        build: Callable[[], nn.Module],
        *shape: int,
        component: str = "",
        of: str = "",
        more: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Published:
        first = {"image": (1, 3, *shape)} if shape else {}
        return Published(build=build, inputs={**first, **(more or {})}, family="cnn", component=component, of=of)

    def track(call: Callable[..., Any], **options: Any) -> Callable[[], nn.Module]:
        def make() -> nn.Module:
            told = yaml.safe_load(Path("Track-Anything/tracker/config/config.yaml").read_text())
            model = _found("model.network").XMem(told, None).eval()
            return _Called(model, lambda *given: call(*given, **options))

        return built(make, "Track-Anything/tracker")

    blaze = "MediaPipePyTorch"
    wide, deep = (1, 1024, 20, 36), (1, 1, 64, 20, 36)
    tracked = {"f16": wide, "f8": (1, 512, 40, 72), "f4": (1, 256, 80, 144), "memory": (1, 1, 512, 20, 36)}
    return {
        "mediapipe_hand_detector": net(
            built(lambda: _found("blazepalm").BlazePalm(), blaze),
            *(256, 256),
            component="HandDetector",
            of="mediapipe_hand",
        ),
        "mediapipe_hand_landmark": net(
            built(lambda: _found("blazehand_landmark").BlazeHandLandmark(), blaze),
            *(256, 256),
            component="HandLandmarkDetector",
            of="mediapipe_hand",
        ),
        "gear_guard_net": net(built(lambda: _hub("gear_guard_net").GearGuardNet.from_pretrained()), 320, 192),
        "mediapipe_selfie": net(built(lambda: _hub("mediapipe_selfie").MediapipeSelfie()), 256, 256),
        "mediapipe_hand_gesture_landmark": net(
            built(lambda: _hub("mediapipe_hand_gesture").HandLandmarkDetector()),
            *(224, 224),
            component="HandLandmarkDetector",
            of="mediapipe_hand_gesture",
        ),
        "mediapipe_hand_gesture_palm": net(
            built(_palm, blaze), 256, 256, component="PalmDetector", of="mediapipe_hand_gesture"
        ),
        "gpunet": net(built(_gpunet, "GPUNet"), 224, 224),
        "fomm_detector": net(built(_keypoints, "first-order-model"), 256, 256, component="FOMMDetector", of="fomm"),
        "track_anything_key_shrunk": net(
            track(_key, shrinkage=True),
            *(320, 576),
            component="TrackAnythingEncodeKeyWithShrinkage",
            of="track_anything",
        ),
        "track_anything_key": net(
            track(_key, shrinkage=False),
            *(320, 576),
            component="TrackAnythingEncodeKeyWithoutShrinkage",
            of="track_anything",
        ),
        "yolov6": net(built(_yolov6, "YOLOv6"), 640, 640),
        "yolov7": net(built(_yolov7, "yolov7"), 640, 640),
        "yolox": net(built(_yolox, "YOLOX"), 640, 640),
        "track_anything_value": net(
            track(_value),
            *(320, 576),
            component="TrackAnythingEncodeValue",
            of="track_anything",
            more={"mask": (1, 320, 576), "f16": wide, "hidden": deep},
        ),
        "track_anything_segment": net(
            track(_segment),
            component="TrackAnythingSegment",
            of="track_anything",
            more={**tracked, "hidden": deep},
        ),
        "yolor": net(built(_yolor, "yolor"), 640, 640),
        "aotgan": net(built(_aotgan, "AOT-GAN-for-Inpainting/src"), 512, 512, more={"mask": (1, 1, 512, 512)}),
    }
