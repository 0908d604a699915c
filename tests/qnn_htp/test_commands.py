from __future__ import annotations

import pytest

from deploykit.errors import DefectError
from deploykit_qnn_htp.commands import Argv
from deploykit_qualcomm.tables import load_sdk_table
from tables import each_row


def test_a_flag_that_the_table_lists_is_rendered() -> None:
    argv = Argv("qnn-onnx-converter", load_sdk_table("2.33.0"))
    argv.add("--input_network", "model/a b.onnx").add("--float_fallback").add("--float_bitwidth", "16")
    assert argv.words == (
        "qnn-onnx-converter",
        "--input_network",
        "model/a b.onnx",
        "--float_fallback",
        "--float_bitwidth",
        "16",
    )


@each_row(
    ("tool", "version", "flag", "values"),
    [
        ("qnn-onnx-converter", "2.33.0", "--use_quantize_v2", ()),  # absent below 2.35
        ("qnn-onnx-converter", "2.35.0", "--use_quantize_v2", ()),  # contradicted, so unknown
        ("qnn-onnx-converter", "2.33.0", "--no_such_flag", ()),
        ("qairt-converter", "2.44.0", "--input_list", ("x",)),  # listed as not accepted
        ("qnn-onnx-converter", "2.33.0", "--float_fallback", ("16",)),  # a switch takes no value
        ("qnn-onnx-converter", "2.33.0", "--float_bitwidth", ()),  # a value is needed
        ("qnn-onnx-converter", "2.33.0", "--float_bitwidth", ("17",)),  # not one of 16, 32
        ("no-such-tool", "2.33.0", "--help", ()),
    ],
)
def test_what_the_table_does_not_list_is_a_defect(tool: str, version: str, flag: str, values: tuple[str, ...]) -> None:
    with pytest.raises(DefectError):
        Argv(tool, load_sdk_table(version)).add(flag, *values)


def test_quantizer_v2_is_rendered_from_2_37_on() -> None:
    for version in ("2.37.0", "2.44.0", "2.50.0"):
        assert "--use_quantize_v2" in Argv("qnn-onnx-converter", load_sdk_table(version)).add("--use_quantize_v2").words
