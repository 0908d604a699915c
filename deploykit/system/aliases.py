"""Names of types that stand in many signatures: JSON, arrays, and who hears how it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Arrays", "Json", "Numbers", "Tell", "silent"]

Json: TypeAlias = Mapping[str, Any]
"""What a JSON object holds, or an object that is to become one: a record, a manifest, options."""
Numbers: TypeAlias = "npt.NDArray[Any]"
"""An array of any type."""
Arrays: TypeAlias = Mapping[str, Numbers]
"""Arrays by name: what a model is fed, and what it gives."""
Tell: TypeAlias = Callable[[str], None]
"""Is told one line at a time."""


def silent(*_told: object) -> None:
    """A `Tell` where nobody listens."""
