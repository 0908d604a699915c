"""The numbers of an emulation as a package keeps them, and back from there. Plain values; nothing is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploykit.accuracy.judge.verdicts import Verdict
from deploykit.backend.status import Correctness, Right
from deploykit.errors import InputError
from deploykit_ort_qnn.rules.numerics import NumericScope

__all__ = ["NUMBERS", "correctness", "numbers_json", "numbers_scope"]

NUMBERS = "artifacts/numbers.json"


def numbers_json(scope: NumericScope) -> dict[str, Any]:
    """The JSON value of a comparison."""
    return {
        "schema": 1,
        "device": _verdict_json(scope.device),
        "quantization": _verdict_json(scope.quantization),
        "first_node": scope.first,
        "first_node_type": scope.first_type,
        "first_node_db": scope.first_db,
    }


def _verdict_json(verdict: Verdict | None) -> dict[str, Any] | None:
    return None if verdict is None else verdict.to_json()


def numbers_scope(value: Mapping[str, Any]) -> NumericScope:
    """What the rules look at, from the JSON value; raises InputError."""
    try:
        return NumericScope(
            device=_verdict(value["device"]),
            quantization=_verdict(value["quantization"]),
            first=value["first_node"],
            first_type=value["first_node_type"],
            first_db=value["first_node_db"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{NUMBERS}: not the numbers of a comparison", why=repr(error)) from None


def _verdict(value: Any) -> Verdict | None:
    return None if value is None else Verdict.from_json(value)


def correctness(scope: NumericScope) -> Correctness:
    """Right where the device computes what the file says and that is close to float, as far as either was judged."""
    if scope.device is None:
        return Correctness(why=f"the emulation failed: {scope.not_run}", broken=True)
    verdicts = [verdict for verdict in (scope.device, scope.quantization) if verdict is not None]
    deciding = min(verdicts, key=lambda verdict: (False, None, True).index(verdict.right))
    first = next(iter(deciding.numbers), None)
    return Correctness(
        state={True: Right.YES, False: Right.NO, None: Right.NOT_JUDGED}[deciding.right],
        label="" if first is None else str(first.label),
        count=0 if first is None else first.count,
        against="" if first is None else str(first.against),
        why=deciding.reason,
        numbers=tuple(number.to_json() for verdict in verdicts for number in verdict.numbers),
    )
