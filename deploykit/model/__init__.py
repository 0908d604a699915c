"""Reads ONNX models: the graph at once, weights on demand, and nothing outside the model's own folder.

Importing it is cheap: onnx and numpy are imported on use. It judges files, never what a device makes of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deploykit.model.load import Model, load_model, wrap_proto
    from deploykit.model.values import ExternalFile
    from deploykit.model.weights import weight

__all__ = ["ExternalFile", "Model", "load_model", "weight", "wrap_proto"]

_WHERE = {"ExternalFile": "values", "weight": "weights"}


def __getattr__(name: str) -> Any:
    """What is offered here, out of the file that has it: rules about graphs need no numpy."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE.get(name, 'load')}"), name)
