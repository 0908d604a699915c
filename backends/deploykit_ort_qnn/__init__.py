"""The ort-qnn backend: ONNX Runtime's QNN provider."""

from deploykit_ort_qnn.backend import OrtQnn

__all__ = ["backend"]

backend = OrtQnn()
"""The object that the entry point ``deploykit.backends`` names."""
