"""The tables of this backend, read once from ``data/``: typed rows with their sources. It decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from deploykit.errors import InputError
from deploykit.findings import Confidence
from deploykit.findings.records import Json, Names, field
from deploykit.tables.capabilities import ReleaseChange
from deploykit.tables.devices import Device, load_device_of_id, load_devices, own_devices
from deploykit.tables.reading import parse_rows, read_toml, structure
from deploykit.tables.sources import NotedRow, SourceFile, read_source_file, write_out

if TYPE_CHECKING:
    from deploykit.tables.known_errors import Catalog

__all__ = [
    "DATA",
    "Bound",
    "FormatRow",
    "Fp16Way",
    "Pass",
    "PrecisionRow",
    "Product",
    "ProviderOption",
    "QuarkOption",
    "Recipe",
    "Release",
    "ToldFact",
    "VaimlKey",
    "device_of_id",
    "devices",
    "known_errors",
    "operators_in",
    "product_of",
    "read_table",
    "releases",
    "rows",
    "source_file",
]


DATA = Path(__file__).parent / "data"


class QuarkOption(NotedRow):
    """One option of Quark; ``name`` is dotted if the option is in a dictionary.

    ``where`` is ``extra`` (extra_options), ``attribute`` of the global config, or ``new-api``. ``quark`` are the
    versions that read it, () for all versions examined. The compiler of VINT8 needs ``vint8_mandatory``, and takes
    ``vint8_chosen``, which keeps more of a model than the preset.
    """

    name: str
    where: str
    type: str
    effect: str
    quark: Names = ()
    values: Names = ()
    # The names of the methods behind the option.
    words: Names = ()
    vint8_mandatory: str = ""
    vint8_chosen: str = ""
    vint8_preset: Mapping[str, str] = {}
    status: str = ""
    renamed_to: str = ""


class ToldFact(NotedRow):
    """A fact for ``deploykit compat`` only; ``sdk`` is the release it is
    about, ``words`` are further names that find it.
    """

    feature: str
    text: str
    tool: str = "quark"
    products: Names = ()
    words: Names = ()
    status: str = ""
    sdk: str = ""


class Fp16Way(NotedRow):
    """One way from a float16 model to VINT8 with one release of Quark; ``valid``: ONNX Runtime loads the result."""

    quark: str
    way: str
    valid: bool
    effect: str


class ProviderOption(NotedRow):
    """One option of the execution provider, for the products that have it."""

    name: str
    products: Names
    type: str
    values: Names = ()
    default: str = ""
    status: str = ""


class Pass(NotedRow):
    """One pass of ``vitisai_config.json``; ``order`` is its position."""

    order: int
    name: str
    plugin: str
    purpose: str


class VaimlKey(ProviderOption):
    """One key of ``vaiml_config``; ``aliases`` are older spellings."""

    mandatory: str = ""
    aliases: Names = ()


class PrecisionRow(NotedRow):
    """One number format, and the products and devices that have it; ``routes.toml`` names its maker."""

    name: str
    products: Names
    devices: str
    activation: str = ""
    weight: str = ""
    scale: str = ""


class Bound(NotedRow):
    """The oldest NPU driver that one release of a product's execution provider accepts."""

    product: str
    ep_version: str
    driver_min: str


class Release(NotedRow):
    """One release of Vitis AI or Ryzen AI.

    ``quark`` describes the Quark that belongs to it; ``toolchain`` is the environment that deploykit uses for it, empty
    if none is known to fit. ``established`` is False if only its name is known. ``float16_warning`` is the vendor's
    warning about float16 models with the bundled Quark.
    """

    schema: int
    name: str
    product: str
    version: str
    established: bool = True
    quark: str = ""
    toolchain: str = ""
    float16_warning: str = ""
    changes: tuple[ReleaseChange, ...] = ()


class Opsets(NotedRow):
    """Bounds for operator sets of the default domain; 0 for no bound.

    ``full`` is the last set of which every operator is supported, ``last`` the last that is read at all.
    """

    full: int = 0
    last: int = 0


class Operators(NotedRow):
    """Operators listed for some number formats."""

    formats: Names
    operators: Names


def operators_in(table: Iterable[Operators], form: str) -> list[str]:
    """The operators that a table lists for a format, sorted."""
    return sorted({op for row in table if form in row.formats for op in row.operators})


class Product(NotedRow):
    """One product line.

    ``sdk`` names the SDK whose releases count, "" if deploykit does not package for the product. ``compiled`` describes
    where a model is compiled, ``needs`` what a compiling script needs. ``provider_target`` is the provider's option, ""
    if each device has its own; ``configured`` are the formats whose compiler reads a configuration file, which has to
    name the device if ``config_device`` is True. ``gap`` are operators without a mark in the vendor's support tables,
    ``miscompiled`` those reported to give wrong results. ``cpu_only`` take the whole model to the CPU.
    ``integer_options_since`` and ``foreign_qdq_since`` are releases, "" for always.
    """

    id: str
    sdk: str = ""
    name: str = ""
    compiled: str = ""
    needs: str = ""
    compiled_ahead: bool = False
    windows: bool = False
    provider_target: str = ""
    config_device: bool = False
    configured: Names = ()
    cpu_only: Names = ()
    power_of_two_only: bool = False
    integer_options_since: str = ""
    foreign_qdq_since: str = ""
    opset: Opsets
    gap: tuple[Operators, ...] = ()
    miscompiled: tuple[Operators, ...] = ()

    @property
    def driven(self) -> bool:
        """True for a product that deploykit packages for."""
        return bool(self.sdk)


class Recipe(NotedRow):
    """A name for several settings; ``extra`` holds dictionaries for keys inside one."""

    name: str
    effect: str
    words: Names = ()
    attributes: Json = field(default_factory=dict)
    extra: Json = field(default_factory=dict)


class FormatRow(NotedRow):
    """One format: its maker, and its stored types.

    ``activation`` is the stored type, "" for the model's own; ``zero_points`` are the possible ones, empty for any.
    ``whole_graph``: every operator is put on the grid. ``rung`` orders the formats that ``auto`` tries, 0 for none.
    """

    format: str
    maker: Literal["quark", "compiler"]
    why: str
    asked_as: Names = ()
    preset: str = ""
    with_exclusions: str = ""
    activation: str = ""
    zero_points: tuple[int, ...] = ()
    power_of_two: bool = False
    whole_graph: bool = False
    rung: int = 0


R = TypeVar("R", bound=NotedRow)


@cache
def source_file() -> SourceFile:
    """The short source names of the other files with their full names, and when they were compared with the rows."""
    return read_source_file(DATA / "sources.toml")


@cache
def read_table(file: str) -> Json:
    """One data file, with its sources spelled out."""
    table = read_toml(DATA / file, shipped=True)
    write_out(table, source_file().sources)
    return table


# The place of the rows of each kind: the file, and the list in it.
_LISTS: Mapping[type[NotedRow], tuple[str, str]] = {
    QuarkOption: ("quark.toml", "option"),
    Fp16Way: ("quark.toml", "way"),
    Recipe: ("quark.toml", "recipe"),
    ProviderOption: ("compiler.toml", "provider_option"),
    Pass: ("compiler.toml", "pass"),
    VaimlKey: ("compiler.toml", "key"),
    PrecisionRow: ("compiler.toml", "precision"),
    Bound: ("compiler.toml", "bound"),
    Product: ("products.toml", "product"),
    FormatRow: ("routes.toml", "route"),
    ToldFact: ("told.toml", "told"),
}


@cache
def rows(kind: type[R]) -> tuple[R, ...]:
    """All rows of one kind in the order of their file, with sources spelled out."""
    file, key = _LISTS[kind]
    table = read_table(file)
    if table.get("schema") != 1:
        raise InputError(f"{file}: schema: {table.get('schema')!r} is not known", next="schema 1 is read")
    return parse_rows(kind, table[key], where=f"{file}: {key}")


@cache
def devices() -> tuple[Device, ...]:
    """The devices of this backend, and the user's own."""
    return (*load_devices(DATA / "devices", source_file().sources), *own_devices("AMD"))


def device_of_id(name: str) -> Device | None:
    """The device of an id, read from its own file only, or None."""
    return load_device_of_id(DATA / "devices", name, source_file().sources)


@cache
def releases() -> tuple[Release, ...]:
    """The releases of both products."""
    names = sorted(path.name for path in (DATA / "releases").glob("*.toml"))
    return tuple(structure(Release, read_table(f"releases/{name}"), where=f"releases/{name}:") for name in names)


@cache
def products() -> Mapping[str, Product]:
    """The products in the table, by id."""
    return {product.id: product for product in rows(Product)}


@cache
def product_of(name: str) -> Product:
    """The product of a device by its fact ``product``; for another tool chain's device an empty one."""
    known = products().get(name)
    if known is not None:
        return known
    unknown = {"source": (), "confidence": Confidence.INFERRED}
    return Product(id=name, opset=Opsets(**unknown), **unknown)  # type: ignore[arg-type]


@cache
def known_errors() -> Catalog:
    """Every known error of these tools, including those without a message."""
    from deploykit.tables.known_errors import load_catalog

    return load_catalog(sorted((DATA / "known_errors").glob("*.toml")))
