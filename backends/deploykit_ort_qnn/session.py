"""Makes ONNX Runtime sessions on the QNN provider, inside a worker process; it decides no option and reads no model.

Only ``add_provider_for_devices`` puts a model on the provider: ``providers=[…]`` gives a CPU session without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

__all__ = ["EP_NAME", "NotOnProviderError", "cpu_session", "ir_library", "npu_session"]

EP_NAME = "QNNExecutionProvider"


class NotOnProviderError(Exception):
    """The session exists, but not on the wanted provider."""


def npu_session(
    model: str, *, options: Mapping[str, str], entries: Mapping[str, str], optimization: str = "all", log_level: int = 3
) -> Any:
    """A session whose first provider is the QNN one; raises what ONNX Runtime raises, or NotOnProviderError."""
    import onnxruntime_qnn as qnn

    ort.register_execution_provider_library(qnn.EP_NAME, qnn.get_library_path())
    # On a build machine the provider's one device is the CPU: never look for a device of type NPU.
    devices = [device for device in ort.get_ep_devices() if device.ep_name == qnn.EP_NAME][:1]
    if not devices:
        raise NotOnProviderError("the registered library offers no device")
    settings = _settings(entries, optimization, log_level)
    settings.add_provider_for_devices(devices, {"backend_path": qnn.get_qnn_htp_path(), **options})
    # Without this the Python wrapper answers a provider's error by opening the model on the CPU alone.
    session = ort.InferenceSession(model, sess_options=settings, enable_fallback=0)
    providers = session.get_providers()
    if not providers or providers[0] != EP_NAME:
        raise NotOnProviderError(f"the session's providers are {', '.join(providers) or 'none'}")
    return session


def ir_library() -> str:
    """The backend inside the wheel that writes a graph down instead of compiling it."""
    import onnxruntime_qnn as qnn

    return str(Path(qnn.LIB_DIR_FULL_PATH) / "libQnnIr.so")


def cpu_session(model: str, *, optimization: str = "none", log_level: int = 3) -> Any:
    """A session on the CPU provider; without optimizations every operator is computed as the model says."""
    settings = _settings({}, optimization, log_level)
    return ort.InferenceSession(model, sess_options=settings, providers=["CPUExecutionProvider"])


def _settings(entries: Mapping[str, str], optimization: str, log_level: int) -> Any:
    settings = ort.SessionOptions()
    settings.log_severity_level = log_level
    levels = ort.GraphOptimizationLevel
    settings.graph_optimization_level = {
        "none": levels.ORT_DISABLE_ALL,
        "basic": levels.ORT_ENABLE_BASIC,
        "extended": levels.ORT_ENABLE_EXTENDED,
        "all": levels.ORT_ENABLE_ALL,
    }[optimization]
    for key, value in entries.items():
        settings.add_session_config_entry(key, value)
    return settings
