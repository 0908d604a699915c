"""Reads ONNX models: the graph at once, weights on demand, and nothing outside the model's own folder.

Importing it is cheap; onnx and numpy are imported on use. It judges files, never what a device makes of them.
"""

from deploykit.model.load import Model, load_model, wrap_proto
from deploykit.model.values import ExternalFile
from deploykit.model.weights import iter_weights, weight

__all__ = ["ExternalFile", "Model", "iter_weights", "load_model", "weight", "wrap_proto"]
