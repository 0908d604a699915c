"""Every key of Quark's can be set, in the dictionary where Quark reads it; what Quark would ignore is refused."""

from __future__ import annotations

from typing import Any

import pytest

from deploykit.errors import UsageError
from deploykit_vitis_ai.config_keys import ChosenOptions, check_quark_version, parse_options, quark_keys, quark_recipes
from tables import each_row


def chosen(*pairs: tuple[str, str]) -> ChosenOptions:
    return parse_options(pairs, product="versal_ai_edge_gen2")


@each_row(
    ("key", "value", "where", "stored"),
    [
        ("calibrate_method", "PowerOfTwoMethod.MinMSE", "attributes", {"calibrate_method": "PowerOfTwoMethod.MinMSE"}),
        ("quark.include_cle", "true", "attributes", {"include_cle": True}),
        ("op_types_to_quantize", "Conv,Gemm", "attributes", {"op_types_to_quantize": ["Conv", "Gemm"]}),
        ("FastFinetune.OptimAlgorithm", "adaquant", "extra", {"FastFinetune": {"OptimAlgorithm": "adaquant"}}),
        ("FastFinetune.LearningRate", "1e-5", "extra", {"FastFinetune": {"LearningRate": 1e-5}}),
        ("NumIterations", "200", "extra", {"FastFinetune": {"NumIterations": 200}}),
        ("PercentileCandidates", "[99.9, 99.99]", "extra", {"PercentileCandidates": [99.9, 99.99]}),
        ("RemoveQDQBetweenOps", '[["Conv", "Relu"]]', "extra", {"RemoveQDQBetweenOps": [["Conv", "Relu"]]}),
        (
            "RandomDataReaderInputShape",
            '{"x": [1, 3]}',
            "extra",
            {"RandomDataReaderInputShape": {"x": [1, 3]}},
        ),
        ("CalibDataSize", "64", "extra", {"CalibDataSize": 64}),
        ("WeightSymmetric", "true", "extra", {"WeightSymmetric": True}),
        ("GPTQParams.WeightSymmetric", "true", "extra", {"GPTQParams": {"WeightSymmetric": True}}),
        ("OptimizeModel", "true", "attributes", {"optimize_model": True}),
    ],
)
def test_a_key_is_stored_where_quark_reads_it(key: str, value: str, where: str, stored: dict[str, Any]) -> None:
    assert getattr(chosen((key, value)), where) == stored


@each_row(
    ("key", "value", "told"),
    [
        ("calibrate_method", "MinMSE", "did you mean PowerOfTwoMethod.MinMSE or ExtendedCalibrationMethod.MinMSE"),
        ("calibrate_method", "PowerOfTwoMethod.MinMse", "did you mean PowerOfTwoMethod.MinMSE"),
        ("FastFinetune.OptimAlgorithm", "adaruond", "did you mean adaround"),
        ("FastFinetune.NumIteration", "5", "did you mean FastFinetune.NumIterations"),
        ("NumIteration", "5", "FastFinetune.NumIterations"),
        ("inclde_cle", "true", "did you mean include_cle"),
        ("DataSize", "5", "say AutoMixprecision.DataSize or FastFinetune.DataSize"),
        ("CLESteps", "two", "a whole number is expected"),
        ("SmoothAlpha", "much", "a number is expected"),
        ("AlignConcat", "1", "true or false is expected"),
        ("SimplifyModelOptions", "fast", "list or dictionary"),
        ("EvalDataReader", "my:Reader", "cannot be typed"),
        ("adaround", "yes", "true or false is expected"),
    ],
)
def test_what_quark_would_ignore_is_one_error_with_what_was_meant(key: str, value: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        chosen((key, value))
    assert told in f"{refused.value.what} {refused.value.why} {refused.value.next}"


@pytest.mark.parametrize(("version", "read"), [("0.13", True), ("0.12.post1", False), ("0.11.2", False)])
def test_a_key_that_this_version_does_not_read_is_refused(version: str, read: bool) -> None:
    made = chosen(("AdjustWeightScaleForInt32Bias", "true"))
    if read:
        check_quark_version(made, version)
        return
    with pytest.raises(UsageError, match=f"Quark {version} does not read it") as refused:
        check_quark_version(made, version)
    assert "0.13 do" in refused.value.why


@pytest.mark.parametrize("name", ["adaround", "adaquant", "cle"])
def test_a_recipe_sets_what_quarks_preset_of_that_name_sets(name: str) -> None:
    made = chosen((name, "true"))
    recipe = quark_recipes()[name]
    assert made.attributes == dict(recipe.attributes)
    assert made.extra == dict(recipe.extra)
    for place, inner in recipe.extra.items():
        assert all(f"{place}.{key}" in quark_keys() for key in inner)
    assert set(recipe.attributes) <= set(quark_keys())
    off = chosen((name, "false"))
    assert (off.attributes, off.extra) == ({}, {})


@pytest.mark.parametrize("first", [True, False])
def test_what_is_set_beside_a_recipe_wins_in_either_order(first: bool) -> None:
    pairs = [("adaround", "true"), ("FastFinetune.NumIterations", "50")]
    made = chosen(*(pairs if first else pairs[::-1]))
    assert made.extra["FastFinetune"]["NumIterations"] == 50
    assert made.extra["FastFinetune"]["OptimAlgorithm"] == "adaround"
    assert made.attributes == {"include_fast_ft": True}
