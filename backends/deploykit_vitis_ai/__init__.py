"""The vitis-ai backend: AMD Versal AI Edge Gen 2 and Ryzen AI."""

from deploykit_vitis_ai.backend import backend

__all__ = ["backend"]
