"""The smallest backend that packages: one device, one rule, one option, one script."""

from __future__ import annotations

from my_npu.backend import backend

__all__ = ["backend"]
