"""The configurations of a package as JSON values: Quark's recipe,
``vitisai_config.json``, the session; and their check.

Nothing is written here; every key comes from the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from deploykit.accuracy.samples.calibration import Calibration
from deploykit.accuracy.samples.inputs import InputSpec
from deploykit.findings.records import Json
from deploykit.model.patterns import casts_of_indices
from deploykit_vitis_ai.draft import QuarkDraft
from deploykit_vitis_ai.tables import Pass, QuarkOption, VaimlKey, product_of, rows

__all__ = [
    "CACHE",
    "CONFIG",
    "RECIPE",
    "SESSION",
    "VALIDATION",
    "calibration_entry",
    "compiled_model",
    "config_problems",
    "float_model",
    "quantize_recipe",
    "session_config",
    "validation_recipe",
    "vitisai_config",
]

CONFIG = "config/vitisai_config.json"
RECIPE = "config/quantize.json"
SESSION = "config/session.json"
VALIDATION = "config/validation_only_bf16.json"
CACHE = "artifacts/cache"
# The calibration samples that the quantizer does not get, if they are to be measured on.
HOLD_OUT = {"one_in": 5, "most": 8}
# The most bytes of weights that fit into one file.
_PROTOBUF_ROOM = 1_900_000_000
_VINT8 = "VINT8"
TOP_LEVEL = ("passes", "target", "targets")


def float_model(draft: QuarkDraft) -> str:
    """The package path of the model as the user gave it."""
    return f"model/{draft.situation.request.model.name}"


def compiled_model(draft: QuarkDraft) -> str:
    """The package path of the model that the compiler gets; its stem is the cache key.

    The name of a model calibrated with random data says so.
    """
    if not draft.needs_quark:
        return float_model(draft)
    stem = PurePosixPath(draft.situation.request.model.name).stem
    mark = "_random_data" if draft.random_data else ""
    return f"artifacts/{stem}_{draft.precision}{mark}.onnx"


def quantize_recipe(draft: QuarkDraft, calibration: Json, inputs: tuple[InputSpec, ...]) -> Json:
    """The instructions of ``scripts/quantize.py``; ``calibration`` is its ``calibration`` entry without the inputs."""
    preset, way = "" if draft.route is None else draft.route.preset, draft.float16_way
    given: dict[str, dict[str, Any]] = {"attribute": {}, "extra": {}}
    for option in rows(QuarkOption) if preset == _VINT8 else ():
        if option.where in given and (value := option.vint8_mandatory or option.vint8_chosen):
            given[option.where][option.name] = value == "true"
    attributes = given["attribute"]
    if draft.facts.weight_bytes > _PROTOBUF_ROOM:
        attributes["use_external_data_format"] = True
    indices = [node.name for name in draft.facts.inputs for node in casts_of_indices(draft.facts, name) if node.name]
    if excluded := [*draft.exclusions.names(draft.facts), *indices]:
        attributes["nodes_to_exclude"] = excluded
    recipe: dict[str, Any] = {
        "schema": 1,
        "quark": draft.toolchain.partition("==")[2],
        "precision": draft.precision,
        "preset": preset,
        "source": float_model(draft),
        "output": compiled_model(draft),
        "attributes": attributes | draft.options.attributes,
        "extra_options": given["extra"] | {"UseRandomData": draft.random_data} | draft.options.extra,
        "calibration": _calibration(draft, calibration, inputs),
        "not_for_production": draft.random_data,
    }
    # The way observed to work for a float16 source with this Quark, if there is one.
    if draft.source == "float16" and way is not None:
        if way.way == "convert_fp16_to_fp32":
            recipe["attributes"]["convert_fp16_to_fp32"] = True
        else:
            stem = PurePosixPath(draft.situation.request.model.name).stem
            recipe["float32_model"] = f"artifacts/{stem}_float32.onnx"
            if draft.keep_float16:
                recipe["float32_subgraphs"] = _float32_parts(draft)
    return recipe


def _float32_parts(draft: QuarkDraft) -> list[list[list[str]]]:
    """The parts that become float32, as pairs of starts and ends: one up to the last quantized nodes if the excluded
    nodes are all behind them; else one for each quantized node.
    """
    facts, kept = draft.facts, draft.exclusions.indices
    quantized = [node for node in facts.nodes if node.index not in kept]
    ends = [
        node
        for node in quantized
        if all(reader.index in kept for o in node.outputs for reader in facts.consumers_of(o))
    ]
    behind = {reader.index for index in kept for o in facts.nodes[index].outputs for reader in facts.consumers_of(o)}
    if behind <= kept:
        return [[[], [node.name for node in ends]]]
    return [[[node.name], [node.name]] for node in quantized]


def _calibration(draft: QuarkDraft, entry: Json, inputs: tuple[InputSpec, ...]) -> Json:
    """The entry with the inputs as the quantizer is fed: a float16 source gets float32 after its conversion."""
    held = {"hold_out": HOLD_OUT} if draft.hold_out and entry["kind"] != "random" else {}
    converted = draft.source == "float16" and draft.float16_way is not None and not draft.keep_float16
    fed = {
        spec.name: {
            "shape": list(spec.shape),
            "dtype": "float32" if converted and spec.dtype == "float16" else spec.dtype,
            **({"given": list(spec.given)} if spec.given else {}),
        }
        for spec in inputs
    }
    return {**entry, **held, "inputs": fed}


def validation_recipe(draft: QuarkDraft, inputs: tuple[InputSpec, ...], calibration: Json) -> Json:
    """The recipe of a BF16 model with Casts, to look at the accuracy on a CPU. The compiler never gets this model.

    Quark asks for data or the random-data flag although BF16 values do not depend on them.
    """
    stem = PurePosixPath(draft.situation.request.model.name).stem
    random = calibration["kind"] == "random"
    return {
        "schema": 1,
        "quark": draft.toolchain.partition("==")[2],
        "precision": "bf16",
        "preset": "BF16",
        "source": float_model(draft),
        "output": f"artifacts/{stem}_validation_only_bf16.onnx",
        "attributes": {},
        "extra_options": {"BF16QDQToCast": True, "UseRandomData": random},
        "calibration": _calibration(draft, calibration, inputs),
        "not_for_production": True,
        "purpose": "validation only: shows BF16 rounding on a CPU; the compiler takes the float32 model",
    }


def calibration_entry(calibration: Calibration | None, names: Mapping[Any, str], *, random: bool) -> Json:
    """The ``calibration`` entry of a recipe; ``names`` maps the user's files to their package paths."""
    if calibration is None or random:
        return {"kind": "random"}
    entry: dict[str, Any] = {"kind": calibration.kind}
    if calibration.kind == "reader":
        return entry | {"reader": calibration.reader}
    entry["files"] = [names[path] for path in calibration.files if path in names]
    if calibration.recipe is not None:
        entry["recipe"] = calibration.recipe.to_json()
    return entry


def vitisai_config(draft: QuarkDraft) -> Json | None:
    """The compiler's configuration; None for a format whose compiler takes provider options only."""
    if draft.precision not in draft.product.configured:
        return None
    wanted = [row for row in rows(Pass) if draft.options.cpu_partition or row.name in ("init", "vaiml_partition")]
    listed = [{"name": row.name, "plugin": row.plugin} for row in wanted]
    # The type of the float parts: the bf16 key is on by default, so it is switched off for float16.
    conversions = dict[str, Any]()
    asked = draft.options.vaiml.get("enable_f32_to_f16_conversion") is True
    if draft.precision == "fp16" or asked or draft.keep_float16:
        conversions = {"enable_f32_to_bf16_conversion": False, "enable_f32_to_f16_conversion": True}
    elif draft.precision in ("bf16", "mixed"):
        conversions = {"enable_f32_to_bf16_conversion": True}
    own = {row.name for row in rows(VaimlKey) if draft.product.id in row.products}
    values = {"device": draft.device_facts["config_device"]} if draft.product.config_device else {}
    values |= {name: value for name, value in conversions.items() if name in own} | draft.options.vaiml
    if draft.precision == "mixed":
        given, needed = values.get("fe_args", ""), "match-power-of-two-quant-kernel=1"
        values["fe_args"] = given if needed in given.split() else f"{given} {needed}".strip()
    next(entry for entry in listed if entry["name"] == "vaiml_partition")["vaiml_config"] = values
    return {
        "passes": listed,
        "target": "VAIML",
        "targets": [{"name": "VAIML", "pass": [row.name for row in wanted]}],
    }


def session_config(draft: QuarkDraft) -> Json:
    """The settings with which compile.py and run.py open a session; paths are relative to the package."""
    model = compiled_model(draft)
    options = {"cache_dir": CACHE, "cache_key": PurePosixPath(model).stem}
    configured = vitisai_config(draft) is not None
    if configured:
        options["config_file"] = CONFIG
    if draft.product.provider_target:
        options["target"] = draft.product.provider_target
    elif not configured:
        options |= {"target": draft.device_facts["provider_target"], "enable_cache_file_io_in_mem": "0"}
        if "xclbin" in draft.device_facts:
            options["xclbin"] = draft.device_facts["xclbin"].replace("\\", "/")
    return {
        "schema": 1,
        "product": draft.product.id,
        "model": model,
        "float_model": float_model(draft),
        "providers": ["VitisAIExecutionProvider"],
        "provider_options": options | draft.options.provider,
        "not_for_production": draft.random_data and draft.needs_quark,
    }


def config_problems(config: Json, *, product: str) -> Iterator[str]:
    """Yields the errors in a ``vitisai_config.json``, by dotted path."""
    for key in TOP_LEVEL:
        if key not in config:
            yield f"{key}: missing; with passes alone the provider finds no target"
    yield from (f"{key}: unknown key" for key in config if key not in TOP_LEVEL)
    passes, targets = config.get("passes", []), config.get("targets", [])
    listed = [entry.get("name") for entry in passes]
    order = [row.name for row in rows(Pass) if row.name in listed]
    if listed != order:
        yield f"passes: {listed} is not in the order {order}"
    plugins = {row.name: row.plugin for row in rows(Pass)}
    known = {name: row for row in rows(VaimlKey) for name in (row.name, *row.aliases)}
    kinds = {"bool": bool, "int": int, "string": str, "enum": str}
    for entry in passes:
        if plugins.get(entry.get("name")) != entry.get("plugin"):
            yield f"passes.{entry.get('name')}.plugin: {entry.get('plugin')!r}"
        for name, value in entry.get("vaiml_config", {}).items():
            row = known.get(name)
            if row is None:
                yield f"vaiml_config.{name}: unknown key, the compiler would ignore it"
            elif product not in row.products:
                yield f"vaiml_config.{name}: not a key of this product"
            elif row.type in kinds and not isinstance(value, kinds[row.type]):
                yield f"vaiml_config.{name}: {row.type} is expected, not {type(value).__name__}"
    names = [target.get("name") for target in targets]
    if config.get("target") not in names:
        yield f"target: {config.get('target')!r} is not one of targets {names}"
    for target in targets:
        if target.get("pass") != listed:
            yield f"targets.{target.get('name')}.pass: {target.get('pass')} differs from the passes {listed}"
    partition: Json = next((entry for entry in passes if entry.get("name") == "vaiml_partition"), {})
    if product_of(product).config_device and "device" not in partition.get("vaiml_config", {}):
        yield "passes.vaiml_partition.vaiml_config.device: missing; this product needs it"
