"""What nobody foresaw is the model's fault where the model is none, and a defect where it is one."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from deploykit.errors import InputError, UsageError
from deploykit.model.load import blaming, what_is_wrong


def model(path: Path, **attributes: Any) -> Path:
    node = helper.make_node("Softmax", ["x"], ["y"], name="n", **attributes)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize(("attributes", "sound"), [({"axis": 1}, True), ({"axis": 9}, False), ({"axis": [1]}, False)])
def test_a_model_is_judged_when_something_stumbled(attributes: dict[str, object], sound: bool, tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", **attributes)
    assert (what_is_wrong(path) == "") is sound
    with pytest.raises(KeyError if sound else InputError, match=r"stumbled"), blaming(path):
        raise KeyError("stumbled")


def test_what_was_said_on_purpose_goes_on_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="as asked"), blaming(model(tmp_path / "m.onnx", axis=9)):
        raise UsageError("as asked")
