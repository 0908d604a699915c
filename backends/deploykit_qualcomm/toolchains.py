"""The environments of AIMET and of onnxruntime-qnn as data; both Qualcomm backends may offer them."""

from __future__ import annotations

from pathlib import Path

from deploykit.contract.toolchains import load_toolchains
from deploykit.system import ToolchainSpec

__all__ = ["qualcomm_toolchains"]


def qualcomm_toolchains(backend: str) -> tuple[ToolchainSpec, ...]:
    """Every toolchain file of the shared tables, offered by the backend of that id."""
    return load_toolchains(Path(__file__).parent / "data" / "toolchains", backend=backend)
