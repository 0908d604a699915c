"""Runs old models with ONNX's own reference implementation, where ONNX Runtime no longer has their operators.

It is slow and meant for proofs on one or two samples; nothing is measured with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from deploykit.errors import InputError

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.accuracy.simulate.sessions import Feed

__all__ = ["reference_outputs"]


def reference_outputs(model: ModelProto, feeds: Sequence[Feed]) -> list[Feed]:
    """The outputs for each sample. Raises InputError where the reference cannot compute them either."""
    from onnx.reference import ReferenceEvaluator

    names = [output.name for output in model.graph.output]
    try:
        evaluator = ReferenceEvaluator(model)
        return [dict(zip(names, map(np.asarray, evaluator.run(None, dict(feed))), strict=True)) for feed in feeds]
    except Exception as error:  # it raises whatever numpy raises, and errors of its own
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{model.graph.name}: ONNX's reference does not run the model", why=why) from None
