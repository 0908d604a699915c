"""The two product lines that are packaged for, from ``data/products/``; it asks for no device and decides nothing.

What differs between them is data. A device of another tool chain has a product about which nothing is known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from deploykit.findings import Confidence
from deploykit.tables.reading import structure
from deploykit_vitis_ai.tables import DATA, Sourced, read_table

__all__ = ["Operators", "Opsets", "Product", "product_of", "products"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opsets(Sourced):
    """Operator sets of the default domain; 0 for a bound that does not exist.

    ``full`` is the last one with every operator, ``last`` the last that is read at all, ``resize_from`` the first
    whose Resize is taken.
    """

    full: int = 0
    last: int = 0
    recommended: int = 0
    resize_from: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators(Sourced):
    """Operators about which something holds in some number formats."""

    formats: tuple[str, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Product(Sourced):
    """One product line.

    ``sdk`` names the SDK whose releases count, "" where deploykit drives none. ``compiled`` says where a model is
    compiled, ``needs`` what a compiling script needs. ``provider_target`` is the provider's option, "" where each
    device has its own; ``configured`` are the formats whose compiler reads a configuration file, which has to name
    the device where ``config_device`` says so. ``gap`` are operators without a mark in the vendor's tables,
    ``miscompiled`` those reported to give wrong results. ``cpu_only`` take the whole model to the CPU.
    ``integer_options_since`` and ``foreign_qdq_since`` are releases, "" for always.
    """

    schema: int
    id: str
    sdk: str = ""
    name: str = ""
    compiled: str = ""
    needs: str = ""
    compiled_ahead: bool = False
    windows: bool = False
    provider_target: str = ""
    config_device: bool = False
    configured: tuple[str, ...] = ()
    dynamic_batch: tuple[str, ...] = ()
    cpu_only: tuple[str, ...] = ()
    power_of_two_only: bool = False
    integer_options_since: str = ""
    foreign_qdq_since: str = ""
    opset: Opsets
    gap: tuple[Operators, ...] = ()
    miscompiled: tuple[Operators, ...] = ()

    @property
    def driven(self) -> bool:
        """True for a product that is packaged for."""
        return bool(self.sdk)

    def without(self, form: str) -> tuple[str, ...]:
        """The operators that a format does not have on this product's NPU, sorted."""
        return tuple(sorted({op for row in self.gap if form in row.formats for op in row.operators}))

    def miscompiles(self, form: str) -> tuple[str, ...]:
        """The operators that were reported to give wrong results in a format, sorted."""
        return tuple(sorted({op for row in self.miscompiled if form in row.formats for op in row.operators}))


@cache
def products() -> Mapping[str, Product]:
    """The products that are packaged for, by id."""
    names = sorted(path.name for path in (DATA / "products").glob("*.toml"))
    rows = (structure(Product, read_table(f"products/{name}"), where=f"products/{name}:") for name in names)
    return {product.id: product for product in rows}


@cache
def product_of(name: str) -> Product:
    """The product of a device by its fact ``product``; for another tool chain's one about which nothing is known."""
    known = products().get(name)
    if known is not None:
        return known
    unknown = {"source": (), "confidence": Confidence.INFERRED}
    return Product(schema=1, id=name, opset=Opsets(**unknown), **unknown)  # type: ignore[arg-type]
