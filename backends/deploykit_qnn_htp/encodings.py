"""The encodings that go into the package: completed, float entries in or out, in the version the converter reads.

Values only; the text is written by ``deploykit.encodings``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from deploykit.encodings.complete import complete as complete_set
from deploykit.encodings.formats.conversion import Conversion, OutcomeKind, convert
from deploykit.encodings.place import layouts
from deploykit.encodings.values import Encoding, EncodingSet, Float
from deploykit.model.collect import constant_value

if TYPE_CHECKING:
    from deploykit.backend.backend import Situation
    from deploykit_qnn_htp.draft import Candidate

__all__ = ["can_write", "complete", "written"]

_LARGEST_BIAS = 1 << 20
"""Elements of a stored tensor that is still read to derive an entry from its values."""


def complete(encodings: EncodingSet, situation: Situation, floats: frozenset[str]) -> EncodingSet:
    """Every integer entry there is or that follows: copies over data movement, int32 biases; no float entry.

    ``floats`` are the tensors meant to stay float; nothing is derived for them or through them.
    """
    tensors = situation.facts.tensors
    integers = {
        entry.name: entry
        for entry in encodings
        if entry.name in tensors and entry.name not in floats and not isinstance(entry.value, Float)
    }
    named = replace(encodings, entries=integers, float_tensors=floats)
    values = partial(constant_value, situation.model, limit=_LARGEST_BIAS)
    completed = complete_set(named, situation.facts, read_values=values).encodings
    return replace(completed, float_tensors=frozenset())


def can_write(encodings: EncodingSet, version: str) -> bool:
    """True when every entry can be said in that version."""
    return not convert(encodings, version).of(OutcomeKind.IMPOSSIBLE)


def written(candidate: Candidate) -> Conversion | None:
    """The encodings as the converter of this route gets them; None when it gets none."""
    draft, version = candidate.draft, candidate.version
    if draft.completed is None or version is None:
        return None
    encodings = draft.completed
    if candidate.route.explicit_float:
        floats = {
            n: Encoding(name=n, value=Float(dtype="float16"), is_param=_is_param(draft.situation, n))
            for n in sorted(draft.float_set)
        }
        encodings = replace(encodings, entries={**encodings.entries, **floats})
    conversion = convert(replace(encodings, float_tensors=frozenset()), version, layouts=layouts(draft.situation.facts))
    # The omit form cannot say which tensors are float, so they are named beside it.
    if draft.float_set and not conversion.float_tensors and not candidate.route.explicit_float:
        named = replace(conversion.encodings, float_tensors=draft.float_set)
        return replace(conversion, encodings=named)
    return conversion


def _is_param(situation: Situation, name: str) -> bool:
    fact = situation.facts.tensors.get(name)
    return fact is not None and fact.is_weight
