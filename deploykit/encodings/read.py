"""The one way from files to encodings on a graph: an AIMET file or a QDQ model, and a list of float tensors.

Every command that takes a path to encodings reads it here, so that all refuse the same things. The list of float
tensors is ``{"schema": 1, "float_tensors": ["name", …]}``; a bare JSON list or one name per line is read as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from deploykit.encodings.formats.aimet import read_encodings
from deploykit.encodings.formats.grids import json_name
from deploykit.encodings.place import place
from deploykit.encodings.values import EncodingSet, Float
from deploykit.errors import InputError
from deploykit.model.facts import GraphFacts
from deploykit.model.load import load_model
from deploykit.model.weights import weight
from deploykit.system.files import read_regular
from deploykit.tables.reading import parse_json

__all__ = ["float_tensors_to_json", "read_given", "read_placed", "with_float_tensors"]

_LIMIT = 64 << 20
_SCHEMA = 1


def float_tensors_to_json(names: Iterable[str]) -> str:
    """The text of a list of float tensors: names sorted, ending in a newline."""
    return json.dumps({"schema": _SCHEMA, "float_tensors": sorted(names)}, indent=1, ensure_ascii=False) + "\n"


def read_float_tensors(path: Path) -> frozenset[str]:
    """The names in a list of float tensors; InputError names the file and what is wrong with it."""
    data = read_regular(path, limit=_LIMIT)
    if data.lstrip()[:1] not in (b"{", b"["):
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8", why=str(error), next="save the file as UTF-8") from None
        return frozenset(line.strip() for line in text.splitlines() if line.strip())
    document = parse_json(data, where=str(path))
    names = document
    if isinstance(document, dict):
        schema, names = document.get("schema", _SCHEMA), document.get("float_tensors")
        if schema != _SCHEMA:
            raise InputError(f"{path}: schema {schema!r} is not known", why=f"this release reads schema {_SCHEMA}")
    if not isinstance(names, list):
        raise InputError(
            f"{path}: 'float_tensors' must be a list of names, not {json_name(names)}",
            next="a list of names, or one name per line, is enough",
        )
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise InputError(
                f"{path}: item {index} must be a tensor's name, not {json_name(name) if name != '' else 'empty'}"
            )
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path}: {twice!r} is listed twice")
    return frozenset(names)


def with_float_tensors(encodings: EncodingSet, names: Iterable[str]) -> EncodingSet:
    """The encodings with these tensors meant to be float16.

    InputError where one of them has an integer entry as well.
    """
    wanted = frozenset(names)
    for name in sorted(wanted):
        entry = encodings.get(name)
        if entry is not None and not isinstance(entry.value, Float):
            raise InputError(
                f"{encodings.source or 'encodings'}: {name!r} has an entry of {entry.dtype}, but is listed as float",
                why="a tensor has one type",
                next="take the name off the list of float tensors, or the entry out of the file",
            )
    return replace(encodings, float_tensors=encodings.float_tensors | wanted)


def read_given(path: Path, *, float_tensors: Path | None = None) -> EncodingSet:
    """The encodings in an AIMET file or a QDQ model (``.onnx``), and the names in the list of float tensors.

    Raises InputError for files that cannot be read, where the list names a tensor that has an integer entry, and for a
    float model in place of a QDQ model: it would make everything float without a word.
    """
    if path.suffix.lower() == ".onnx":
        from deploykit.encodings.qdq import read_qdq

        model = load_model(path)
        encodings = read_qdq(model.proto, source=str(path), read_tensor=partial(weight, model))
        if not encodings.entries:
            raise InputError(
                f"{path}: a model without QuantizeLinear and DequantizeLinear nodes",
                why="it says of no tensor how it is quantized",
                next="give an encodings file, or the quantized model",
            )
    else:
        encodings = read_encodings(path)
    return encodings if float_tensors is None else with_float_tensors(encodings, read_float_tensors(float_tensors))


def read_placed(
    path: Path, facts: GraphFacts, *, float_tensors: Path | None = None, infer_blocks: bool = False
) -> EncodingSet:
    """What ``read_given`` reads, placed on a graph; ``infer_blocks``: see ``place``.

    Raises InputError as ``read_given`` does, and where a list of scales does not fit its tensor.
    """
    return place(read_given(path, float_tensors=float_tensors), facts, infer_blocks=infer_blocks)
