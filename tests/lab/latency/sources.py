"""Published networks built by the very code that published them, from checkouts beside each other; no weights are read.

The band of 53 networks was fitted to them too. `--sources` names the folder: each checkout goes by its repository.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock, patch

import torch
import yaml
from torch import nn

from latency.models import Published, name_operators

__all__ = ["sourced_models"]


# Kernel and pooling of the branches of each block, as published.
_SINET = [
    *([[3, 1], [5, 1]], [[3, 1], [3, 1]], [[3, 1], [5, 1]], [[3, 1], [3, 1]], [[5, 1], [3, 2]]),
    *([[5, 2], [3, 4]], [[3, 1], [3, 1]], [[5, 1], [5, 1]], [[3, 2], [3, 4]], [[3, 1], [5, 2]]),
]


class _Normalized(nn.Module):
    """With the mean and deviation of ImageNet taken off inside, as published."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("deviation", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def forward(self, image: torch.Tensor) -> Any:
        return self.model((image - self.mean) / self.deviation)


class _Attributes(dict[str, Any]):
    """A YAML file as code reads a configuration of yacs."""

    def __getattr__(self, name: str) -> Any:
        found = self[name]
        return _Attributes(found) if isinstance(found, dict) else found


# What the networks themselves need of none of these; and the classes of qai_hub_models that they inherit from.
_ABSENT = {"qai_hub_models", "tflite", "loguru", "tabulate", "pycocotools", "pandas", "seaborn", "addict", "matplotlib"}
_ABSENT |= {"tensorboard", "thop", "requests", "psutil", "scipy", "tqdm", "skimage", "imageio", "cv2"}
_BASES = {"BaseModel", "SelfieSegmentor", "Yolo", "RepaintModel"}


class _Base(nn.Module):
    def __init__(self, model: nn.Module | None = None) -> None:
        super().__init__()
        if model is not None:
            self.model = model


class _Hollow(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """What of the publisher's package is not network is not there; its base class is a plain module."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        hollow = name.partition(".")[0] in _ABSENT
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if hollow else None

    def create_module(self, spec: Any) -> ModuleType:
        class Hollow(ModuleType):
            def __getattr__(self, name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                return _Base if name in _BASES else MagicMock(name=name)

        return Hollow(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


@contextmanager
def _code(folder: Path, *paths: str) -> Iterator[None]:
    """Inside, what lies in ``folder`` can be imported and weights are neither fetched nor loaded."""
    name_operators()
    before = set(sys.modules)
    hollow = _Hollow()
    with ExitStack() as stack:
        stack.enter_context(patch.object(sys, "path", [*(str(folder / path) for path in paths or ("",)), *sys.path]))
        stack.enter_context(chdir(folder))
        stack.enter_context(patch.object(sys, "meta_path", [*sys.meta_path, hollow]))
        for name in ("torch.load", "torch.hub.load_state_dict_from_url", "torch.utils.model_zoo.load_url"):
            stack.enter_context(patch(name, lambda *_, **__: {}))
        stack.enter_context(patch.object(nn.Module, "load_state_dict", lambda *_, **__: None))
        yield
    for name in sorted(set(sys.modules) - before, key=len, reverse=True):  # a package's path asks its parent's
        module = sys.modules[name]
        places = [getattr(module, "__file__", None) or "", *(getattr(module, "__path__", None) or [])]
        if any(place.startswith(str(folder)) for place in places) or isinstance(module.__loader__, _Hollow):
            del sys.modules[name]


def sourced_models(sources: Path) -> Mapping[str, Published]:
    """Those whose checkout is in the folder, by the publisher's names."""
    sources = sources.resolve()

    def built(
        repository: str, module: str, make: Callable[[Any], nn.Module], *paths: str, normal: bool = True
    ) -> Callable[[], nn.Module]:
        def build() -> nn.Module:
            with _code(sources / repository, *paths):
                model = make(importlib.import_module(module))
            return _Normalized(model) if normal else model

        return build

    def net(build: Callable[[], nn.Module], *shape: int, component: str = "", of: str = "") -> Published:
        inputs = {"image": (1, *(shape if len(shape) == 3 else (3, *shape)))}
        return Published(build=build, inputs=inputs, family="cnn", component=component, of=of)

    def ffnet(name: str) -> Callable[[], nn.Module]:
        return built("FFNet", "models", lambda _: sys.modules["models.model_registry"].model_entrypoint(name)())

    def configured(file: str) -> _Attributes:
        return _Attributes(yaml.safe_load(Path(file).read_text()))

    def midas(module: Any) -> nn.Module:
        import timm

        encoder = timm.create_model("tf_efficientnet_lite3", pretrained=False, exportable=True)
        encoder.act1 = nn.Identity()  # timm keeps it inside of bn1
        with patch("torch.hub.load", lambda *_, **__: encoder):
            made: nn.Module = module.MidasNet_small(
                None, features=64, backbone="efficientnet_lite3", exportable=True, blocks={"expand": True}
            )
        return made

    def segmentron(module: Any) -> nn.Module:
        settings = sys.modules["segmentron.config"].cfg
        settings.update_from_file("configs/pascal_voc_deeplabv3_plus.yaml")
        made: nn.Module = module.get_segmentation_model()
        return made

    def deepbox(module: Any) -> nn.Module:
        from torchvision.models import vgg19_bn

        made: nn.Module = module.Model(features=vgg19_bn(weights=None).features, bins=2)
        return made

    def published(name: str, kind: str, *given: Any, **named: bool) -> Callable[[], nn.Module]:
        module = f"qai_hub_models.models.{name}.model"
        return built("ai-hub-models", module, lambda found: getattr(found, kind)(*given, **named), normal=False)

    blaze = "MediaPipePyTorch"
    city = (1024, 2048)
    return {
        "ffnet_40s": net(ffnet("segmentation_ffnet40S_dBBB_mobile"), *city),
        "ffnet_54s": net(ffnet("segmentation_ffnet54S_dBBB_mobile"), *city),
        "ffnet_78s": net(ffnet("segmentation_ffnet78S_dBBB_mobile"), *city),
        "ffnet_78s_lowres": net(ffnet("segmentation_ffnet78S_BCC_mobile_pre_down"), 512, 1024),
        "ffnet_122ns_lowres": net(ffnet("segmentation_ffnet122NS_CCC_mobile_pre_down"), 512, 1024),
        "ddrnet23_slim": net(
            built(
                "DDRNet.pytorch",
                "ddrnet_23_slim",
                lambda m: m.DualResNet(m.BasicBlock, [2, 2, 2, 2], 19, 32, 128, 64, augment=False),
                "lib/models",
            ),
            *city,
        ),
        "pidnet": net(built("PIDNet", "models.pidnet", lambda m: m.get_pred_model("pidnet-s", 19)), *city),
        "bisenet": net(built("BiSeNet", "model.build_BiSeNet", lambda m: m.BiSeNet(12, "resnet18")), 720, 960),
        "cavaface": net(
            built("cavaface", "backbone.resnet_irse", lambda m: m.IR_SE_100([112, 112]), normal=False), 112, 112
        ),
        "posenet_mobilenet": net(
            built("posenet-pytorch", "posenet.models.mobilenet_v1", lambda m: m.MobileNetV1(101, 16), normal=False),
            *(513, 257),
        ),
        "yamnet": net(
            built("torch_audioset", "torch_audioset.yamnet.model", lambda m: m.YAMNet(), normal=False), 1, 96, 64
        ),
        "mediapipe_face": net(
            built(blaze, "blazeface_landmark", lambda m: m.BlazeFaceLandmark(), normal=False),
            *(192, 192),
            component="FaceLandmarkDetector",
        ),
        "mediapipe_pose": net(
            built(blaze, "blazepose_landmark", lambda m: m.BlazePoseLandmark(), normal=False),
            *(256, 256),
            component="PoseLandmarkDetector",
        ),
        "mediapipe_pose_detector": net(
            built(blaze, "blazepose", lambda m: m.BlazePose(), normal=False),
            *(128, 128),
            component="PoseDetector",
            of="mediapipe_pose",
        ),
        "midas": net(built("MiDaS", "midas.midas_net_custom", midas), 256, 256),
        "hrnet_pose": net(
            built(
                "deep-high-resolution-net.pytorch",
                "models.pose_hrnet",
                lambda m: m.PoseHighResolutionNet(configured("experiments/coco/hrnet/w32_256x192_adam_lr1e-3.yaml")),
                "lib",
            ),
            *(256, 192),
        ),
        "hrnet_face": net(
            built(
                "HRNet-Facial-Landmark-Detection",
                "lib.models.hrnet",
                lambda m: m.HighResolutionNet(configured("experiments/cofw/face_alignment_cofw_hrnet_w18.yaml")),
            ),
            *(256, 256),
        ),
        "deeplabv3_plus_mobilenet": net(
            built(
                "pytorch-deeplab-xception",
                "modeling.deeplab",
                lambda m: m.DeepLab(backbone="mobilenet", sync_bn=False, num_classes=21),
            ),
            *(520, 520),
        ),
        "deepbox": net(built("3D-BoundingBox", "torch_lib.Model", deepbox), 224, 224, component="VGG3DDetection"),
        "face_attrib_net": net(
            published(
                "face_attrib_net",
                "FaceAttribNet",
                64,
                [2, 6, 3],
                eye_openness_enable=True,
                eyeglasses_enable=True,
                sunglasses_enable=True,
                face_mask_enable=True,
            ),
            *(128, 128),
        ),
        "face_det_lite": net(published("face_det_lite", "FaceDetLite"), 1, 480, 640),
        "foot_track_net": net(published("foot_track_net", "FootTrackNet"), 480, 640),
        "salsanext": net(
            built("SalsaNext", "modules.SalsaNext", lambda m: m.SalsaNext(20), "train/tasks/semantic", normal=False),
            *(5, 64, 2048),
        ),
        "bgnet": net(built("BGNet", "net.bgnet", lambda m: m.Net()), 416, 416),
        "sinet": net(
            built(
                "ext_portrait_segmentation",
                "models.SINet",
                lambda m: m.SINet(classes=2, p=2, q=8, config=_SINET, chnn=1),
            ),
            *(224, 224),
        ),
        "xlsr": net(
            built(
                "aimet-model-zoo",
                "aimet_zoo_torch.common.super_resolution.models",
                lambda m: m.XLSRRelease(scaling_factor=4),
                normal=False,
            ),
            *(128, 128),
        ),
        "deeplab_xception": net(built("SegmenTron", "segmentron.models.model_zoo", segmentron), 480, 520),
        "facemap_3dmm": net(
            built(
                "ai-hub-models",
                "qai_hub_models.models.facemap_3dmm.resnet_score_rgb",
                lambda m: m.resnet18_wd2(pretrained=False),
                normal=False,
            ),
            *(128, 128),
        ),
    }
