"""What rewrites make of a model and its encodings, without a proof, and what they did it to."""

from collections.abc import Iterable
from typing import Any

from deploykit.encodings.values import EncodingSet
from deploykit.rewrites.contract import Transform


def applied(
    changes: Iterable[Transform], model: Any, encodings: EncodingSet
) -> tuple[Any, EncodingSet, dict[str, tuple[str, ...]]]:
    """Each after the other, and by name the nodes that it found; for one that changes grids the tensors that it did."""
    done = {}
    for change in changes:
        found, before = change.match(model, encodings), encodings
        if not found:
            continue
        made = change.apply(model, encodings, found)
        assert made.encodings is not None
        model, encodings = made.model, made.encodings
        regrids = tuple(name for name, one in encodings.entries.items() if one is not before.entries.get(name))
        done[change.name] = tuple(node for site in found.sites for node in site.nodes) or regrids
    return model, encodings, done


def regridded(change: Transform, model: Any, encodings: EncodingSet) -> tuple[EncodingSet, tuple[str, ...]]:
    """The encodings after a change of grids, and the names of the tensors that got another one."""
    _, changed, done = applied([change], model, encodings)
    return changed, done.get(change.name, ())
