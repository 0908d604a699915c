"""The environments of AIMET, of onnxruntime-qnn and of older compilers as data; both backends may offer them."""

from __future__ import annotations

from pathlib import Path

from deploykit.backend.toolchains import load_toolchains
from deploykit.system.specs import ToolchainSpec

__all__ = ["qualcomm_toolchains"]


def qualcomm_toolchains(backend: str) -> tuple[ToolchainSpec, ...]:
    """Every toolchain file of the shared tables, offered by the backend of that id."""
    here = Path(__file__).parent
    return load_toolchains(here / "data" / "toolchains", backend=backend, files=here)
