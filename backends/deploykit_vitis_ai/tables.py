"""The tables of this backend, read once from ``data/``: typed rows that carry their source. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from deploykit.errors import InputError
from deploykit.findings import Confidence
from deploykit.tables.capabilities import Change
from deploykit.tables.devices import Device, load_device_of_id, load_devices
from deploykit.tables.reading import parse_rows, read_toml, structure
from deploykit.tables.sources import read_source_file, read_sources, write_out

__all__ = [
    "DATA",
    "Bound",
    "Constraint",
    "EnvVar",
    "Fp16Way",
    "Metric",
    "Mix",
    "Pass",
    "PrecisionRow",
    "Preset",
    "ProviderOption",
    "QuarkOption",
    "QuarkRelease",
    "Release",
    "Sourced",
    "ToolFile",
    "VaimlKey",
    "constraints",
    "device_of_id",
    "devices",
    "driver_bounds",
    "env_vars",
    "fp16_ways",
    "metrics",
    "mixes",
    "passes",
    "precisions",
    "presets",
    "provider_options",
    "quark_options",
    "quark_releases",
    "read_rows",
    "read_table",
    "releases",
    "source_dates",
    "sources",
    "tool_files",
    "vaiml_keys",
]

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """What every row has: who says so, how sure that is, and remarks."""

    source: tuple[str, ...]
    confidence: Confidence
    note: str = ""
    contradicts: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarkOption(Sourced):
    """One option of Quark. ``where``: ``extra`` (extra_options), ``attribute`` of the global config, or ``new-api``."""

    name: str
    where: str
    type: str
    effect: str
    values: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    """Names of methods that the option stands for."""
    vint8_mandatory: str = ""
    vint8_preset: Mapping[str, str] = field(default_factory=dict)
    status: str = ""
    renamed_to: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Sourced):
    """One number that Quark's evaluation prints, with the spellings that find it."""

    name: str
    words: tuple[str, ...]
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset(Sourced):
    """One preset of Quark and what its models look like; counts and cosine are those of one small convolution net."""

    name: str
    activation: str
    weight: str
    target: str
    domain: str = ""
    activation_zero_point: str = ""
    scale: str = ""
    q_count: int | None = None
    dq_count: int | None = None
    cos: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarkRelease(Sourced):
    """One release of Quark: what its metadata asks for; ``run`` says whether it was tried."""

    version: str
    python: str
    onnx: str
    numpy: str
    onnxruntime: str
    torch_declared: bool
    run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp16Way(Sourced):
    """One way from a float16 model to VINT8 with one release of Quark; ``valid``: ONNX Runtime loads what comes out."""

    quark: str
    way: str
    valid: bool
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOption(Sourced):
    """One option of the execution provider, for the products it belongs to."""

    name: str
    products: tuple[str, ...]
    type: str
    values: tuple[str, ...] = ()
    default: str = ""
    status: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvVar(Sourced):
    """One environment variable; ``status`` is ``dead`` where it has no effect any more."""

    name: str
    products: tuple[str, ...]
    status: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFile(Sourced):
    """One file that a tool writes or reads, with words that are found in it."""

    name: str
    tool: str
    effect: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass(Sourced):
    """One pass of ``vitisai_config.json``; ``order`` matters."""

    order: int
    name: str
    plugin: str
    purpose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VaimlKey(Sourced):
    """One key of ``vaiml_config``; ``aliases`` are older spellings."""

    name: str
    products: tuple[str, ...]
    type: str
    values: tuple[str, ...] = ()
    default: str = ""
    mandatory: str = ""
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix(Sourced):
    """What the compiler needs to be told for one kind of model."""

    model: str
    f32_to_bf16: str
    f32_to_f16: str
    match_power_of_two: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRow(Sourced):
    """One number format, and the products and devices that have it; what makes it stands in ``routes.toml``."""

    name: str
    products: tuple[str, ...]
    devices: str
    activation: str = ""
    weight: str = ""
    scale: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint(Sourced):
    """What a compiler asks of a model, in words."""

    subject: str
    product: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound(Sourced):
    """The oldest NPU driver that one release of a product's execution provider accepts."""

    product: str
    ep_version: str
    driver_min: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(Sourced):
    """One release of Vitis AI or Ryzen AI.

    ``quark`` is what is known of the Quark that belongs to it, in words; ``toolchain`` is the environment that
    deploykit uses for it, empty where none is known to fit. ``established`` is False where nothing is known at all.
    ``float16_warning`` is what the vendor says against float16 models with the Quark that it bundles.
    """

    schema: int
    name: str
    product: str
    version: str
    established: bool = True
    quark: str = ""
    toolchain: str = ""
    float16_warning: str = ""
    changes: tuple[Change, ...] = ()


R = TypeVar("R", bound=Sourced)


@cache
def sources() -> Mapping[str, str]:
    """What the short source names of the other files stand for."""
    return read_sources(DATA / "sources.toml")


def source_dates() -> Mapping[str, str]:
    """When the sources were last compared with the rows."""
    return read_source_file(DATA / "sources.toml").dates


@cache
def read_table(file: str) -> dict[str, Any]:
    """One data file, its sources written out."""
    table = read_toml(DATA / file)
    write_out(table, sources())
    return table


def read_rows(kind: type[R], file: str, key: str) -> tuple[R, ...]:
    """The rows of one list of one data file, their sources spelled out."""
    table = read_table(file)
    if table.get("schema") != 1:
        raise InputError(f"{file}: schema: {table.get('schema')!r} is not known", next="schema 1 is read")
    return parse_rows(kind, table.get(key, []), where=f"{file}: {key}")


@cache
def quark_options() -> tuple[QuarkOption, ...]:
    """The allow-list of Quark's options, names that Quark ignores included (their ``status`` says so)."""
    return read_rows(QuarkOption, "quark/options.toml", "option")


@cache
def metrics() -> tuple[Metric, ...]:
    """What Quark's evaluation prints."""
    return read_rows(Metric, "quark/metrics.toml", "metric")


@cache
def presets() -> tuple[Preset, ...]:
    """Quark's presets."""
    return read_rows(Preset, "quark/presets.toml", "preset")


@cache
def quark_releases() -> tuple[QuarkRelease, ...]:
    """Quark's releases."""
    return read_rows(QuarkRelease, "quark/releases.toml", "release")


@cache
def fp16_ways() -> tuple[Fp16Way, ...]:
    """What each tried release of Quark makes of float16 models."""
    return read_rows(Fp16Way, "quark/fp16.toml", "way")


@cache
def provider_options() -> tuple[ProviderOption, ...]:
    """The options of the execution provider, old spellings included."""
    return read_rows(ProviderOption, "provider_options.toml", "option")


@cache
def env_vars() -> tuple[EnvVar, ...]:
    """The environment variables, dead ones included."""
    return read_rows(EnvVar, "env_vars.toml", "variable")


@cache
def tool_files() -> tuple[ToolFile, ...]:
    """The files of the tools."""
    return read_rows(ToolFile, "files.toml", "file")


@cache
def passes() -> tuple[Pass, ...]:
    """The passes of ``vitisai_config.json`` in their order."""
    return tuple(sorted(read_rows(Pass, "vaiml_config.toml", "pass"), key=lambda row: row.order))


@cache
def vaiml_keys() -> tuple[VaimlKey, ...]:
    """The keys of ``vaiml_config``."""
    return read_rows(VaimlKey, "vaiml_config.toml", "key")


@cache
def mixes() -> tuple[Mix, ...]:
    """Compiler options per kind of model."""
    return read_rows(Mix, "mixed_precision.toml", "mix")


@cache
def precisions() -> tuple[PrecisionRow, ...]:
    """Number formats."""
    return read_rows(PrecisionRow, "precisions.toml", "precision")


@cache
def constraints() -> tuple[Constraint, ...]:
    """What the compilers ask of a model."""
    return read_rows(Constraint, "constraints.toml", "constraint")


@cache
def driver_bounds() -> tuple[Bound, ...]:
    """Driver bounds, release by release."""
    return read_rows(Bound, "drivers.toml", "bound")


@cache
def devices() -> tuple[Device, ...]:
    """The devices of this backend."""
    return load_devices(DATA / "devices", sources())


def device_of_id(name: str) -> Device | None:
    """The device of that id, from its own file alone, or None."""
    return load_device_of_id(DATA / "devices", name, sources())


@cache
def releases() -> tuple[Release, ...]:
    """The releases of both products."""
    names = sorted(path.name for path in (DATA / "releases").glob("*.toml"))
    return tuple(structure(Release, read_table(f"releases/{name}"), where=f"releases/{name}:") for name in names)
