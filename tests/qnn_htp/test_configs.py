from __future__ import annotations

from typing import Any

import pytest

from deploykit.errors import DefectError, UsageError
from deploykit_qnn_htp.commands import Argv, Paths
from deploykit_qnn_htp.configs import build_configs, parse_settings
from deploykit_qualcomm.devices import qualcomm_device
from deploykit_qualcomm.tables import load_sdk_table
from tables import each_row

Options = tuple[tuple[str, str], ...]


def configs(options: Options = (), version: str = "2.41", device: str = "sa8775p") -> dict[str, Any]:
    sdk, found = load_sdk_table(version), qualcomm_device(device)
    return build_configs(parse_settings(options, sdk, found), sdk, found, Paths("model"))


def test_soc_model_and_dsp_arch_are_always_explicit() -> None:
    made = configs(version="2.33.0", device="sm8650")
    assert made["config/htp_prepare.json"]["devices"] == [{"soc_model": 57, "dsp_arch": "v75"}]
    assert made["config/htp_prepare.json"]["graphs"] == [{"graph_names": ["model"], "vtcm_mb": 8}]
    assert made["config/backend_config.json"]["backend_extensions"]["config_file_path"] == "config/htp_prepare.json"
    assert made["config/run_config.json"]["backend_extensions"]["config_file_path"] == "config/htp_run.json"


def test_the_configuration_of_aimet_4086() -> None:
    made = configs(
        (
            ("fp16_relaxed_precision", "1"),
            ("vtcm_mb", "8"),
            ("O", "3"),
            ("finalize_config", '{"P": 3}'),
            ("device_id", "0"),
            ("soc_id", "52"),
            ("context_priority", "normal"),
        )
    )
    inner = made["config/htp_prepare.json"]
    assert inner["graphs"] == [
        {"graph_names": ["model"], "vtcm_mb": 8, "fp16_relaxed_precision": 1, "O": 3, "finalize_config": {"P": 3}}
    ]
    assert inner["devices"] == [{"soc_model": 52, "dsp_arch": "v73", "device_id": 0, "soc_id": 52}]
    assert made["config/backend_config.json"]["context_configs"] == {"context_priority": "normal"}


def test_soc_id_only_where_that_version_takes_it() -> None:
    with pytest.raises(UsageError, match="soc_id") as refused:
        configs((("soc_id", "52"),), version="2.48.0")
    assert "soc_model" in str(refused.value)


def test_run_time_keys_go_to_the_run_file_only() -> None:
    made = configs((("perf_profile", "balanced"), ("rpc_control_latency", "100")))
    assert made["config/htp_run.json"]["devices"][0]["cores"][0] == {
        "perf_profile": "balanced",
        "rpc_control_latency": 100,
    }
    assert "cores" not in made["config/htp_prepare.json"]["devices"][0]


@each_row(
    ("key", "value", "says"),
    [
        ("vtcm_mb", "16", "8 MB"),
        ("vtcm_mb", "eight", "whole number"),
        ("vtcm_mb", "-1", "from 0 on"),
        ("O", "4", "1 .. 3"),
        ("fp16_relaxed_precision", "2", "0, 1"),
        ("dsp_arch", "v99", "v68"),
        ("finalize_config", "3", "object"),
        ("finalize_config", "{", "object"),
        ("weights_packing", "perhaps", "true or false"),
        ("soc_model", "618", "Android"),
        ("vtcm_mbb", "8", "vtcm_mb"),
        ("core_id", "0", "in full"),
        ("graph_names", "x", "itself"),
        ("async_init", "1", "unknown"),
        ("lora_weight_sharing", "true", "unsupported"),
    ],
)
def test_what_is_wrong_is_refused_with_the_reason(key: str, value: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        configs(((key, value),), version="2.33.0")
    assert says in str(refused.value)


def test_a_key_comes_with_its_version() -> None:
    made = configs((("lora_weight_sharing", "true"),), version="2.39.0")
    assert made["config/htp_prepare.json"]["context"] == {"lora_weight_sharing": True}


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
