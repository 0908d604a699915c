"""Intel NPUs through OpenVINO: INT8 by NNCF, compiled for the CPU here, for the NPU where there is one."""

from __future__ import annotations

from deploykit_openvino.backend import backend

__all__ = ["backend"]
