"""The same model exported by torchscript, by dynamo and with an open batch gets the same answer on every backend."""

from pathlib import Path
from typing import Any

import onnx
import pytest

from deploykit.backend.backend import Request, SharedWork
from deploykit.flow.plan import Decision, decide
from deploykit.flow.read import read_situation

EXPORTS = Path(__file__).parents[1] / "data" / "exports"
TARGETS = [
    ("qnn-htp", "sm8650", "2.33"),
    ("qnn-htp", "sm8650", "2.44"),
    ("ort-qnn", "sm8650", None),
    ("vitis-ai", "strix", None),
]
SIX_DIMENSIONS = ("shuffle", "space_to_depth", "swin", "sam")
"""What exporters write with six, and devices take with five at most."""
MODELS = sorted({path.stem.rpartition("_")[0] for path in EXPORTS.glob("*.onnx")})


def decided(path: Path, target: tuple[str, str, str | None]) -> Decision[Any, Any]:
    backend, device, sdk = target
    found, situation = read_situation(Request(model=path, target=device, backend=backend, sdk=sdk))
    return decide(found, situation, SharedWork(), lambda line: None)


# One of them decides every third model's exports in the README's tests; all are for the machine that has the time.
@pytest.mark.parametrize(
    ("target", "names"),
    [(TARGETS[1], MODELS[::3]), *(pytest.param(target, MODELS, marks=pytest.mark.heavy) for target in TARGETS)],
)
def test_how_it_was_exported_makes_no_difference(target: tuple[str, str, str | None], names: list[str]) -> None:
    for name in names:
        decisions = [decided(path, target) for path in sorted(EXPORTS.glob(f"{name}_*.onnx"))]
        for decision in decisions:
            blocking = [finding.message for finding in decision.plan.findings if finding.blocks]
            assert decision.plan.feasible and not blocking, name
            if name in SIX_DIMENSIONS and target[1] == "sm8650":
                inferred = onnx.shape_inference.infer_shapes(decision.chosen.situation.model.proto)
                assert max(len(item.type.tensor_type.shape.dim) for item in inferred.graph.value_info) <= 5, name
        assert len({decision.plan.route.id for decision in decisions if decision.plan.route is not None}) == 1, name
