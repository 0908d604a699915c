"""Bad files, made from good ones by chance: bytes, JSON, text and .npz archives with something wrong in them."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from copy import deepcopy
from typing import Any

__all__ = ["ODD_NUMBERS", "ODD_TEXTS", "broken_bytes", "broken_json", "broken_lines", "broken_npz", "json_with_change"]

ODD_NUMBERS = (0, 1, -1, 2, 7, 2**31, -(2**31), 2**63 - 1, -(2**63), 4096, 1 << 40)
ODD_TEXTS = (
    "",
    " ",
    "a" * 5000,
    "../../etc/passwd",
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    "<script>x</script>",
    "{{ 7 * 7 }}",
    "\u202e\x1b[31m",
    "a\nb\r\tc",
    "é\u0301\U0001f600",
    "con",
    "-rf",
    "%s%n",
    "x",
)
_ODD_VALUES: tuple[Any, ...] = (None, True, [], {}, [[]], {"a": {}}, "", "x", -1, 0, 0.5, 1e308, 10**40, [None])
_ODD_JSON = ('{"a":' * 3000, "[" * 100_000, "1" * 6000, "NaN", '"\\ud800"', '{"a":1,"a":2}', "1e999", "", "\ufeff{}")
_ODD_LINES = (b"\x00" * 40, b"\xff\xfe" * 9, b"a" * 200_000, b"(" * 3000, b"error " * 2000, b"\r\r\r", b"\x1b]0;x\x07")


def broken_bytes(chance: random.Random, good: bytes) -> bytes:
    """A file of which bits are changed, parts are cut out, doubled or overwritten, or which ends early."""
    data = bytearray(good)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        at, length = chance.randrange(len(data) + 1), chance.choice((1, 2, 4, 8, chance.randrange(1, 64)))
        match chance.choice(("flip", "flip", "cut", "double", "end", "set", "number", "insert")):
            case "flip" if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case "cut":
                del data[at : at + length]
            case "double":
                data[at:at] = data[at : at + length * 8]
            case "end" if chance.random() < 0.3:
                del data[at:]
            case "set":
                data[at : at + length] = bytes([chance.randrange(256)]) * length
            case "number":
                form, size = chance.choice((("<i", 4), ("<I", 4), ("<q", 8), ("<h", 2)))
                bits = 8 * size
                value = chance.choice((0, 1, -1, (1 << (bits - 1)) - 1, -(1 << (bits - 1)), len(data), 65535))
                packed = struct.pack(form, value % (1 << (bits - 1)) if form == "<I" else _fits(value, bits))
                data[at : at + size] = packed
            case _:
                data[at:at] = chance.randbytes(length)
    return bytes(data)


def _fits(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def json_with_change(chance: random.Random, value: Any) -> Any:
    """The value with odd values in it, things taken out, renamed or doubled, a few times over."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        holder, key = _somewhere(chance, value)
        if holder is None:
            return deepcopy(chance.choice(_ODD_VALUES))
        match chance.choice(("odd", "odd", "near", "near", "gone", "renamed", "twice")):
            case "gone":
                del holder[key]
            case "renamed" if isinstance(holder, dict):
                holder[chance.choice(ODD_TEXTS)] = holder.pop(key)
            case "twice" if isinstance(holder, list):
                holder.append(deepcopy(holder[key]))
            case "near":
                holder[key] = _near(chance, holder[key])
            case _:
                holder[key] = deepcopy(chance.choice((*_ODD_VALUES, *ODD_TEXTS, *ODD_NUMBERS)))
    return value


def _near(chance: random.Random, value: Any) -> Any:
    """Something of the same kind, so that what only looks at kinds lets it pass."""
    match value:
        case bool():
            return not value
        case int():
            return chance.choice((-value, value + 1, value - 1, value * 1000, *ODD_NUMBERS))
        case float():
            return chance.choice((-value, 0.0, value * 1e30, value * 1e-30, 5e-324, 1.7e308))
        case str():
            return chance.choice((value.upper(), value[:-1], f"{value}x", value * 40, *ODD_TEXTS))
        case list():
            return chance.choice((value[:1], value[::-1], value * 3, [value]))
        case dict():
            return dict(list(value.items())[: len(value) // 2])
    return value


def broken_json(chance: random.Random, good: bytes) -> bytes:
    """JSON that says something wrong, or that is none."""
    if chance.random() < 0.05:
        return chance.choice(_ODD_JSON).encode("utf-8", "surrogatepass")
    if chance.random() < 0.15:
        return broken_bytes(chance, good)
    return json.dumps(json_with_change(chance, json.loads(good))).encode()


def _somewhere(chance: random.Random, value: Any) -> tuple[Any, Any]:
    """A container inside ``value`` and one of its keys; (None, None) where it holds nothing."""
    holder, key = None, None
    while isinstance(value, dict | list) and value:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        holder, key = value, chance.choice(keys)
        value = value[key]
        if chance.random() < 0.15:
            break
    return holder, key


def broken_lines(chance: random.Random, good: bytes) -> bytes:
    """Text with lines doubled, swapped, cut, made long, or with bytes in them that are no text."""
    lines = good.split(b"\n")
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(lines))
        match chance.choice(("odd", "twice", "swap", "join", "bytes", "repeat")):
            case "odd":
                lines.insert(at, chance.choice(_ODD_LINES))
            case "twice":
                lines[at:at] = lines[at : at + 9]
            case "swap":
                other = chance.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case "join":
                lines[at : at + 20] = [b" ".join(lines[at : at + 20])]
            case "repeat":
                lines[at] = (lines[at][: chance.randrange(1, 40)] or b"x") * 2000
            case _:
                lines[at] = broken_bytes(chance, lines[at])
    return b"\n".join(lines)


def broken_npz(chance: random.Random, good: bytes) -> bytes:
    """An archive of arrays with a bad member: its header, its bytes, its name or how it is packed."""
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    at = chance.randrange(len(members))
    name, data = members[at]
    change: Callable[[], tuple[str, bytes]] = chance.choice(
        (
            lambda: (name, broken_bytes(chance, data[:128]) + data[128:]),
            lambda: (name, data[: chance.randrange(len(data))]),
            lambda: (chance.choice(ODD_TEXTS) + ".npy", data),
            lambda: (name.removesuffix(".npy"), data),
            lambda: (name, _headed(chance, data)),
            lambda: (f"{chance.choice(('7:', '0:', '-1:', 'x:'))}{name}", data),
        )
    )
    members[at] = change()
    whole = io.BytesIO()
    packing = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(whole, "w", packing) as archive:
        for member, content in members:
            archive.writestr(member, content)
    return broken_bytes(chance, whole.getvalue()) if chance.random() < 0.3 else whole.getvalue()


def _headed(chance: random.Random, data: bytes) -> bytes:
    """The array with another type or shape in its header, which stays as long as it was."""
    end = 10 + int.from_bytes(data[8:10], "little")
    types = (b"'<f8'", b"'<f2'", b"'>f4'", b"'|b1'", b"'<U2'", b"'|O'", b"'<M8[s]'", b"'<c8'", b"'|V4'", b"'|S4'")
    head = data[10:end].replace(b"'<f4'", chance.choice(types))
    if chance.random() < 0.5:
        head = head.replace(b"(", b"(0, ", 1) if chance.random() < 0.5 else head.replace(b"False", b"True", 1)
    head = (head.rstrip() + b" " * len(data[10:end]))[: end - 11] + b"\n"
    return data[:10] + head + data[end:]
