"""Sums of what is made and nobody reads: answers as JSON has them, and files, so that a change of them is noticed.

Prose, sources, times and what tells one machine from another are left out, and of decimals all but their size:
processors round otherwise.
"""

import json
import math
import platform
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx

NOISE = {"schema", "source", "sources", "facts", "seconds", "digest", "target", "confidence", "slug", "summary"}
_OF_A_MACHINE = "peak_mb|libraries|release|serial|temperature|trend"
_NOISE = re.compile(rf"{'|'.join(NOISE)}|{_OF_A_MACHINE}|deploykit|sha256|bytes|processor_seconds|per_second|p|\w+_us")
_DECIMAL = re.compile(
    rf"{re.escape(platform.release())}|-?\b\d+\.\d+(?:e[-+]?\d+)?|-?\b\d+e-?\d+\b|\b[0-9a-f]{{16,}}\b|\S*/\.scratch\S*"
)


def flat(value: Any, digits: int = 4) -> str:
    """JSON without what is empty, and without what says where a fact comes from."""
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if key not in NOISE and one not in (None, "", [], {})}
        return "{" + ", ".join(f"{key}: {flat(one, digits)}" for key, one in kept.items()) + "}"
    if isinstance(value, list):
        return "[" + " ".join(flat(one, digits) for one in value) + "]"
    return f"{value:#.{digits}g}" if isinstance(value, float) else str(value)


def sum_of(text: str) -> str:
    return f"~{zlib.crc32(text.encode()) & 0xFFFF:04x}"


def rough(value: Any) -> str:
    """JSON, or a text, in short: numbers to a quarter of a decade, of several words those that name something."""
    if isinstance(value, dict):
        told = (f"{key}: {rough(one)}" for key, one in value.items() if not _NOISE.fullmatch(str(key)))
        return "{" + ", ".join(told) + "}"
    if isinstance(value, list | tuple):
        return "[" + " ".join(map(rough, value)) + "]"
    if isinstance(value, float):
        sign = "-" if value < 0 else ""
        return f"{sign}{round(4 * math.log10(abs(value)))}q" if 1e-9 < abs(value) < math.inf else "."
    words = _DECIMAL.sub(".", str(value)).split()
    return " ".join(words if len(words) < 2 else (word for word in words if re.search(r"[\d_/']", word)))


def files_in(folder: Path) -> Iterator[str]:
    """A line for each file below it."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        told = ""
        if path.suffix == ".onnx":
            told = _graph(path)
        elif path.suffix in (".json", ".encodings", ".sarif"):
            with suppress(ValueError):
                told = rough(json.loads(path.read_bytes()))
        elif path.suffix in (".html", ".md", ".py", ".sh", ".toml", ".txt", ".xml", ".yml"):
            told = rough(re.sub(r"(?s)<(style|script)\b.*?</\1>|<[^>]*>", " ", path.read_text("utf-8")))
        yield f"{path.relative_to(folder)} {told}"


def _graph(path: Path) -> str:
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except Exception:  # some are written to be refused
        return ""
    nodes = (f"{one.op_type} {one.input} {one.output} {[each.name for each in one.attribute]}" for one in graph.node)
    ends = (f"{one.name} {one.type.tensor_type.elem_type}" for one in (*graph.input, *graph.output))
    return " ".join([*nodes, *ends, *(f"{one.name} {one.data_type} {one.dims}" for one in graph.initializer)])
