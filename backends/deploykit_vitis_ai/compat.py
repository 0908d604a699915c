"""Every table of this backend as rows for ``deploykit compat``, old and ignored spellings included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from deploykit.tables.capabilities import CompatRow, Status
from deploykit_vitis_ai import tables
from deploykit_vitis_ai.config_keys import QuarkKey, further_keys, quark_recipes
from deploykit_vitis_ai.tables import product_of

__all__ = ["compat_rows"]

_GONE = ("absent", "dead", "superseded")


def compat_rows() -> Iterator[CompatRow]:
    """All rows, table by table."""
    yield from _quark_options()
    yield from _quark_keys()
    for recipe in quark_recipes().values():
        sets = [*recipe.attributes, *(f"{name}.{key}" for name, inner in recipe.extra.items() for key in inner)]
        note = f"{recipe.effect}; --option {recipe.name}=true sets {', '.join(sets)}"
        yield _row(f"quark recipe {recipe.name}", recipe, tool="quark", note=note, words=recipe.words)
    for metric in tables.rows(tables.Metric):
        yield _row(f"metric {metric.name}", metric, tool="quark", note=metric.effect, words=metric.words)
    yield from _presets()
    yield from _quark_releases()
    for way in tables.rows(tables.Fp16Way):
        status = "" if way.valid else "absent"
        feature = f"fp16 float16 source model to vint8 by {way.way}"
        yield _row(feature, way, tool="quark", note=way.effect, sdk=way.quark, status=status)
    yield from _provider_options()
    yield from _vaiml()
    yield from _env_vars()
    for file in tables.rows(tables.ToolFile):
        yield _row(f"file {file.name}", file, tool=file.tool, note=file.effect, words=file.words)
    yield from _formats()
    yield from _releases()


def _row(
    feature: str,
    row: tables.Sourced,
    *,
    tool: str,
    note: str,
    status: str = "",
    sdk: str = "",
    arch: str = "",
    words: tuple[str, ...] = (),
) -> CompatRow:
    return CompatRow(
        feature=feature,
        backend="vitis-ai",
        tool=tool,
        sdk=sdk,
        status=Status.UNSUPPORTED if status in _GONE else Status.SUPPORTED,
        since="",
        until="",
        note="; ".join(part for part in (note, row.note) if part),
        source=row.source,
        confidence=row.confidence,
        arch=arch,
        contradicts=row.contradicts,
        words=words,
    )


def _products(names: tuple[str, ...]) -> str:
    return ", ".join(product_of(product).name or product for product in names)


def _quark_options() -> Iterator[CompatRow]:
    for option in tables.rows(tables.QuarkOption):
        mandatory = f"VINT8 needs {option.vint8_mandatory}" if option.vint8_mandatory else ""
        presets = ", ".join(f"{version} {value}" for version, value in option.vint8_preset.items())
        parts = [option.effect, option.where, mandatory, f"VINT8 preset: {presets}" if presets else ""]
        parts += [f"write {option.renamed_to}"] if option.renamed_to else []
        note = "; ".join(part for part in parts if part)
        yield _row(
            f"quark option {option.name}",
            option,
            tool="quark",
            note=note,
            status=option.status,
            words=(*option.values, *option.words),
        )


_TYPES = {"bool": "true or false", "int": "a whole number", "float": "a number", "text": "text", "list": "a list"}


def _quark_keys() -> Iterator[CompatRow]:
    """What is known of further keys, a row for all that have type, dictionary and readers in common."""
    for alike, found in groupby(sorted(further_keys(), key=_alike), key=_alike):
        keys = tuple(found)
        place, kind, readers = alike
        words = _TYPES.get(kind, "JSON" if kind == "json" else "an object of Python's: in quantize.py only")
        by = f"; read by {', '.join(readers)} alone" if readers else ""
        names = tuple(key.name for key in keys)
        yield _row(
            " ".join(("quark options", place, kind, *readers)),
            keys[0],
            tool="quark",
            note=f"--option {names[0]}=…, {words}{by}; what it does is in Quark's documentation: {', '.join(names)}",
            words=(*names, *(name.rpartition(".")[2] for name in names)),
        )


def _alike(key: QuarkKey) -> tuple[str, str, tuple[str, ...]]:
    return key.name.rpartition(".")[0] or key.where, key.type, key.quark


def _presets() -> Iterator[CompatRow]:
    for preset in tables.rows(tables.Preset):
        shape = f"activations {preset.activation}, weights {preset.weight}"
        scale = f", scale {preset.scale}" if preset.scale else ""
        domain = f", Q/DQ in {preset.domain}" if preset.domain else ""
        note = f"{shape}{scale}{domain}; for {preset.target}"
        yield _row(f"quark preset {preset.name.lower()} {preset.name}", preset, tool="quark", note=note)


def _quark_releases() -> Iterator[CompatRow]:
    for release in tables.rows(tables.QuarkRelease):
        tried = "run" if release.run else "metadata only"
        note = f"Python {release.python}, onnx {release.onnx}, numpy {release.numpy}, {tried}"
        yield _row("quark release", release, tool="quark", note=note, sdk=release.version)


def _provider_options() -> Iterator[CompatRow]:
    for option in tables.rows(tables.ProviderOption):
        values = f"one of {', '.join(option.values)}" if option.values else option.type
        default = f"default {option.default}" if option.default else ""
        note = "; ".join(part for part in (option.status, values, default) if part)
        yield _row(
            f"provider option {option.name}",
            option,
            tool="VitisAIExecutionProvider",
            note=note,
            status=option.status,
            arch=_products(option.products),
        )


def _vaiml() -> Iterator[CompatRow]:
    for step in tables.rows(tables.Pass):
        note = f"{step.order}: {step.plugin}; {step.purpose}"
        yield _row(f"vitisai_config.json pass {step.name}", step, tool="vitisai_config.json", note=note)
    for key in tables.rows(tables.VaimlKey):
        values = f"one of {', '.join(key.values)}" if key.values else key.type
        default = f"default {key.default}" if key.default else ""
        needed = f"mandatory: {key.mandatory}" if key.mandatory else ""
        aliases = f"also written {', '.join(key.aliases)}" if key.aliases else ""
        note = "; ".join(part for part in (values, default, needed, aliases) if part)
        arch = _products(key.products)
        feature = " ".join(("vaiml_config", key.name, *key.aliases))
        yield _row(feature, key, tool="vitisai_config.json", note=note, arch=arch)


def _env_vars() -> Iterator[CompatRow]:
    for variable in tables.rows(tables.EnvVar):
        arch = _products(variable.products)
        note = "without effect" if variable.status == "dead" else "environment variable"
        yield _row(f"env {variable.name}", variable, tool="environment", note=note, status=variable.status, arch=arch)


def _formats() -> Iterator[CompatRow]:
    for row in tables.rows(tables.PrecisionRow):
        shape = f"activations {row.activation}, weights {row.weight}" if row.activation else ""
        note = "; ".join(part for part in (row.devices, shape, row.scale) if part)
        feature = f"precision {row.name.lower()} {row.name}"
        yield _row(feature, row, tool="compiler", note=note, arch=_products(row.products))
    for mix in tables.rows(tables.Mix):
        note = (
            f"enable_f32_to_bf16_conversion {mix.f32_to_bf16}, enable_f32_to_f16_conversion {mix.f32_to_f16}, "
            f"match-power-of-two-quant-kernel {mix.match_power_of_two}"
        )
        yield _row(f"mixed precision {mix.model}", mix, tool="vitisai_config.json", note=note)
    for rule in tables.rows(tables.Constraint):
        arch = _products((rule.product,))
        yield _row(f"constraint {rule.subject}", rule, tool="compiler", note=rule.text, arch=arch)


def _releases() -> Iterator[CompatRow]:
    for bound in tables.rows(tables.Bound):
        note = f"NPU driver at least {bound.driver_min}"
        yield _row(
            "npu driver", bound, tool="driver", note=note, sdk=bound.ep_version, arch=_products((bound.product,))
        )
    for release in tables.releases():
        if not release.established:
            continue
        changes = "; ".join(change.text for change in release.changes)
        note = "; ".join(part for part in (f"Quark {release.quark}", changes) if part)
        row = _row(f"release {release.name}", release, tool=release.name, note=note, sdk=release.version)
        yield replace(row, since=release.version, until=release.version)
