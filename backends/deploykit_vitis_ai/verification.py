"""Judges a package on disk: configurations against the tables, the quantized model, and the compiler's summary."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from deploykit.backend.backend import Check, Verification
from deploykit.errors import InputError
from deploykit.findings.records import Json
from deploykit.model.collect import collect_facts
from deploykit.model.load import load_model
from deploykit.tables.reading import read_json
from deploykit_vitis_ai import configs
from deploykit_vitis_ai.config_keys import known_in, quark_keys
from deploykit_vitis_ai.inspection import InspectedModel, actual_types, inspect_quantized
from deploykit_vitis_ai.rules.quantized import RULES as QUANTIZED_RULES
from deploykit_vitis_ai.rules.summary import RULES as SUMMARY_RULES
from deploykit_vitis_ai.rules.summary import find_summary
from deploykit_vitis_ai.tables import QuarkOption, product_of, rows

__all__ = ["inspected", "verify"]


def verify(package: Path, manifest: Json) -> Verification:
    """The checks, the findings, and the intended and actual types of the quantized model, if it exists."""
    session = read_json(package / configs.SESSION)
    checks = [*_session_checks(package, session)]
    for path in sorted((package / "scripts").glob("*.py")):
        try:
            ast.parse(path.read_text("utf-8"))
            checks.append(Check("script-syntax", ok=True, detail=path.name))
        except (SyntaxError, UnicodeDecodeError) as error:
            checks.append(Check("script-syntax", ok=False, detail=f"{path.name}: {error}"))
    recipe = read_json(package / configs.RECIPE) if (package / configs.RECIPE).is_file() else None
    checks += _recipe_checks(package, recipe) if recipe is not None else []
    quantized = inspected(package)
    findings = () if quantized is None else QUANTIZED_RULES.run(quantized)
    summary = find_summary(package / str(session["provider_options"].get("cache_dir", "")))
    findings += () if summary is None else SUMMARY_RULES.run(summary)
    intended = dict(manifest.get("precision", {}).get("intended", {})) if quantized is not None else {}
    actual = dict(actual_types(quantized.facts, quantized.grids)) if quantized is not None else {}
    return Verification(tuple(checks), intended, actual=actual, findings=findings)


def _check(identifier: str, problems: list[str] | tuple[str, ...], good: str) -> Check:
    return Check(identifier, ok=not problems, detail="; ".join(problems) if problems else good)


def _session_checks(package: Path, session: Json) -> Iterator[Check]:
    options = session["provider_options"]
    stem = PurePosixPath(session["model"]).stem
    key = options.get("cache_key")
    wrong = [] if key == stem else [f"cache_key {key!r} is not the stem of {session['model']}"]
    yield _check("cache-key", wrong, f"cache_key is {stem}, the stem of the compiled model")
    marked = "random_data" in session["model"]
    unmarked = [] if marked == session["not_for_production"] else ["random data is not marked in the model's name"]
    yield _check("random-data-marked", unmarked, "no random data" if not marked else "the name says random data")
    config = options.get("config_file")
    lost = [] if config is None or (package / config).is_file() else [f"{config} is not there"]
    yield _check("provider-files", lost, "every file the provider options name is there")
    path, product = package / configs.CONFIG, str(session["product"])
    if path.is_file():
        problems = list(configs.config_problems(read_json(path), product=product))
        yield _check("vitisai-config", problems, "three top-level keys, passes in order, every key known")
    elif product_of(product).config_device:
        yield _check("vitisai-config", [f"{configs.CONFIG} is missing; this product needs it"], "")


def _recipe_checks(package: Path, recipe: Json) -> list[Check]:
    given = {**recipe["attributes"], **recipe["extra_options"]}
    version = str(recipe["quark"])
    # Every key that is set, with its dictionary's name.
    known, names = quark_keys(), list[str]()
    for name, value in given.items():
        inside = isinstance(value, dict) and name not in known
        names += [f"{name}.{inner}" for inner in value] if inside else [name]
    read = {name for name, key in known.items() if known_in(key, version)}
    unknown = [f"{name}: Quark would ignore it" for name in names if name not in read]
    mandatory = [
        f"{row.name} is not {row.vint8_mandatory}"
        for row in rows(QuarkOption)
        if row.vint8_mandatory
        and recipe["preset"] == "VINT8"
        and given.get(row.name) is not (row.vint8_mandatory == "true")
    ]
    lost = [name for name in recipe["calibration"].get("files", ()) if not (package / name).is_file()]
    return [
        _check("quark-options", unknown, "every option is on the allow-list"),
        _check("quark-mandatory", mandatory, "the options that the compiler needs are set"),
        _check("calibration-files", lost, "every calibration file of the recipe is there"),
    ]


def inspected(package: Path) -> InspectedModel | None:
    """What the package's recipe has made; None before that, and without a recipe."""
    if not (package / configs.RECIPE).is_file():
        return None
    session, recipe = read_json(package / configs.SESSION), read_json(package / configs.RECIPE)
    path = package / str(session["model"])
    if not path.is_file():
        return None
    source = None
    with suppress(InputError):
        source = collect_facts(load_model(package / str(recipe["source"])))
    return inspect_quantized(
        path,
        precision=str(recipe["precision"]),
        excluded=frozenset(recipe["attributes"].get("nodes_to_exclude", ())),
        source=source,
        last_opset=product_of(str(session["product"])).opset.last or None,
        float16_source=bool(recipe.get("float32_model") or recipe["attributes"].get("convert_fp16_to_fp32")),
    )
