"""Which methods for better weights a quantizer has here, and what a candidate's name with one of them asks for.

It runs nothing; the methods are tried by ``deploykit.flow.learned_weights``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.flow.learned_weights import Learning

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deploykit.backend.quantizers import Quantizer
    from deploykit.flow.quantizing.choosing import Picked

__all__ = ["SECONDS", "asked_of", "learning_with"]

SECONDS = 900.0
"""What all methods together may take: none is begun after that, and one that takes as long by itself is ended."""

_PRECISION = "w8a16"


def learning_with(picked: Picked, taken: Iterable[str] = ()) -> Learning:
    """The methods of a quantizer; where it has none and a better one does, what to install.

    None where the user chose himself: ``taken`` are the names of the quantizer's options that he set.
    """
    methods = picked.quantizer.weight_methods(_PRECISION)
    if methods:
        if {name for one in methods for name in one.options} & {name.replace("-", "_") for name in taken}:
            return Learning()
        return Learning(methods=tuple(one.name for one in methods), seconds=SECONDS)
    if picked.better is None:
        return Learning()
    spec = picked.better.spec
    return Learning(
        missing=f"{picked.quantizer.id} has no method for it, and {spec.id} ({spec.disk_mb} MiB) is not installed",
        install=f"deploykit toolchain install {spec.name}",
    )


def asked_of(quantizer: Quantizer, name: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """``w8a16+SeqMSE`` as the precision and the options of the quantizer; a name without a method as it is."""
    precision, _, method = name.partition("+")
    if not method:
        return precision, ()
    found = next(one for one in quantizer.weight_methods(precision) if one.name == method)
    return precision, tuple(found.options.items())
