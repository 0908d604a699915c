"""The numbers of emulator against CPU as a package keeps them, and back from there. Plain values; nothing is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploykit.errors import InputError
from deploykit_ort_qnn.rules.numerics import NumericScope

__all__ = ["NUMBERS", "numbers_json", "numbers_scope"]

NUMBERS = "artifacts/numbers.json"


def numbers_json(scope: NumericScope) -> dict[str, Any]:
    """The JSON value of a comparison."""
    return {
        "schema": 1,
        "compared": "emulator against ONNX Runtime on the CPU, the same model",
        "threshold_db": scope.threshold_db,
        "outputs": {name: dict(numbers) for name, numbers in sorted(scope.outputs.items())},
        "failed": list(scope.failed),
        "first_node": scope.first,
        "first_node_type": scope.first_type,
        "first_node_db": scope.first_db,
    }


def numbers_scope(value: Mapping[str, Any]) -> NumericScope:
    """What the rules look at, from the JSON value; raises InputError."""
    try:
        return NumericScope(
            outputs=value["outputs"],
            threshold_db=float(value["threshold_db"]),
            failed=tuple(value["failed"]),
            first=value["first_node"],
            first_type=value["first_node_type"],
            first_db=value["first_node_db"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{NUMBERS}: not the numbers of a comparison", why=repr(error)) from None
