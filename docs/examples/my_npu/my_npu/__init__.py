"""The smallest backend that has one of everything: device, option, rule, template, known error, probe."""

from __future__ import annotations

from my_npu.backend import backend

__all__ = ["backend"]
