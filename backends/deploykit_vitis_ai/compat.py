"""Every table of this backend as rows for ``deploykit compat``, including old and ignored spellings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from msgspec.structs import replace

from deploykit.tables.capabilities import CompatRow, Status, compat_row
from deploykit.tables.sources import NotedRow
from deploykit_vitis_ai import tables
from deploykit_vitis_ai.config_keys import further_keys, quark_recipes
from deploykit_vitis_ai.tables import QuarkOption, product_of, rows

__all__ = ["compat_rows"]

_GONE = ("absent", "dead", "superseded")


def compat_rows() -> Iterator[CompatRow]:
    """All rows, table by table."""
    for option in rows(tables.QuarkOption):
        presets = ", ".join(f"{version} {value}" for version, value in option.vint8_preset.items())
        yield _row(
            f"quark option {option.name}",
            option,
            option.effect,
            option.where,
            f"VINT8 needs {option.vint8_mandatory}" if option.vint8_mandatory else "",
            f"VINT8 preset: {presets}" if presets else "",
            f"write {option.renamed_to}" if option.renamed_to else "",
            status=option.status,
            words=(*option.values, *option.words),
        )
    yield from _quark_keys()
    for recipe in quark_recipes().values():
        sets = [*recipe.attributes, *(f"{name}.{key}" for name, inner in recipe.extra.items() for key in inner)]
        told = f"--option {recipe.name}=true sets {', '.join(sets)}"
        yield _row(f"quark recipe {recipe.name}", recipe, recipe.effect, told, words=recipe.words)
    for way in rows(tables.Fp16Way):
        feature = f"fp16 float16 source model to vint8 by {way.way}"
        yield _row(feature, way, way.effect, sdk=way.quark, status="" if way.valid else "absent")
    yield from _provider()
    for row in rows(tables.PrecisionRow):
        shape = f"activations {row.activation}, weights {row.weight}" if row.activation else ""
        feature = f"precision {row.name.lower()} {row.name}"
        yield _row(feature, row, row.devices, shape, row.scale, tool="compiler", products=row.products)
    for fact in rows(tables.ToldFact):
        more = {"products": fact.products, "words": fact.words, "status": fact.status, "sdk": fact.sdk}
        yield _row(fact.feature, fact, fact.text, tool=fact.tool, **more)
    for bound in rows(tables.Bound):
        note = f"NPU driver at least {bound.driver_min}"
        yield _row("npu driver", bound, note, tool="driver", sdk=bound.ep_version, products=(bound.product,))
    for release in tables.releases():
        if release.established:
            notes = (f"Quark {release.quark}", *(change.text for change in release.changes))
            row = _row(f"release {release.name}", release, *notes, tool=release.name, sdk=release.version)
            yield replace(row, since=release.version, until=release.version)


def _row(
    feature: str,
    row: NotedRow,
    *notes: str,
    tool: str = "quark",
    status: str = "",
    products: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    sdk: str = "",
) -> CompatRow:
    return compat_row(
        "vitis-ai",
        feature,
        row,
        *notes,
        row.note,
        tool=tool,
        sdk=sdk,
        status=Status.UNSUPPORTED if status in _GONE else Status.SUPPORTED,
        arch=", ".join(product_of(product).name or product for product in products),
        words=words,
    )


_TYPES = {"bool": "true or false", "int": "a whole number", "float": "a number", "text": "text", "list": "a list"}


def _quark_keys() -> Iterator[CompatRow]:
    """Yields the further keys of Quark, one row for all keys with the same dictionary, type and versions."""

    def alike(key: QuarkOption) -> tuple[str, str, tuple[str, ...]]:
        return key.name.rpartition(".")[0] or key.where, key.type, key.quark

    for (place, kind, readers), found in groupby(sorted(further_keys(), key=alike), key=alike):
        keys = tuple(found)
        words = _TYPES.get(kind, "JSON" if kind == "json" else "an object of Python's: in quantize.py only")
        names = tuple(key.name for key in keys)
        yield _row(
            " ".join(("quark options", place, kind, *readers)),
            keys[0],
            f"--option {names[0]}=…, {words}",
            f"read by {', '.join(readers)} alone" if readers else "",
            f"what it does is in Quark's documentation: {', '.join(names)}",
            words=names,
        )


def _provider() -> Iterator[CompatRow]:
    """Yields the options of the execution provider, and the passes and keys of its configuration."""
    for option in rows(tables.ProviderOption):
        yield _row(
            f"provider option {option.name}",
            option,
            option.status,
            f"one of {', '.join(option.values)}" if option.values else option.type,
            f"default {option.default}" if option.default else "",
            tool="VitisAIExecutionProvider",
            status=option.status,
            products=option.products,
        )
    for step in rows(tables.Pass):
        notes = (f"{step.order}: {step.plugin}", step.purpose)
        yield _row(f"vitisai_config.json pass {step.name}", step, *notes, tool="vitisai_config.json")
    for key in rows(tables.VaimlKey):
        yield _row(
            " ".join(("vaiml_config", key.name, *key.aliases)),
            key,
            f"one of {', '.join(key.values)}" if key.values else key.type,
            f"default {key.default}" if key.default else "",
            f"mandatory: {key.mandatory}" if key.mandatory else "",
            f"also written {', '.join(key.aliases)}" if key.aliases else "",
            tool="vitisai_config.json",
            products=key.products,
        )
