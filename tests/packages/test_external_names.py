"""External data that could lie beside the model in no package."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploykit import api
from deploykit.errors import InputError
from sample_models.networks import conv_net


@pytest.mark.parametrize("target", ["sm8650", "vek385"])
def test_data_with_the_name_of_the_model_itself_is_refused(tmp_path: Path, target: str) -> None:
    """A model that names itself as the file of its weights; found by an attack."""
    model = conv_net()
    stored = model.graph.initializer[0]
    stored.ClearField("raw_data")
    stored.ClearField("float_data")
    stored.data_location = 1
    stored.external_data.add(key="location", value="m.onnx")
    model.metadata_props.add(key="padding", value="x" * 100_000)  # the file is long enough for what it claims
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match="is the model itself"):
        api.package(tmp_path / "m.onnx", target=target, out=tmp_path / "out", compile=False)
    assert not (tmp_path / "out").exists()
