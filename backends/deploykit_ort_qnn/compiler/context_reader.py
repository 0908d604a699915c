"""Reads a context binary's metadata through the vendor's system library, with ctypes only, inside a worker process.

The structure layouts were found by experiment with binaries of fifteen releases, 2.22.0 to 2.51.0: version 1 up to
2.27, version 3 from 2.28.2 on, for the binary and for its graphs. A wrong offset crashes instead of raising an
exception, so any other version is refused, and this runs in a child process only. Nothing is written or judged here.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["ContextReadError", "Json", "read_context_binary"]

Json: TypeAlias = dict[str, Any]
"""An object that is written as JSON, or what belongs to arrays by their names."""

TYPES = {
    0x008: "int8",
    0x016: "int16",
    0x032: "int32",
    0x064: "int64",
    0x108: "uint8",
    0x116: "uint16",
    0x132: "uint32",
    0x164: "uint64",
    0x216: "float16",
    0x232: "float32",
    0x304: "fixed int4",
    0x308: "fixed int8",
    0x316: "fixed int16",
    0x332: "fixed int32",
    0x404: "fixed uint4",
    0x408: "fixed uint8",
    0x416: "fixed uint16",
    0x432: "fixed uint32",
    0x508: "bool",
}
"""The library's type codes; "fixed" is an integer grid with scale and offset."""

_TENSOR_BYTES = 144
_GRAPH_BYTES = 88
"""The bytes from one graph's description to the next, seen with the library of 2.51 on binaries of two graphs."""
_USES = ("inputs_outputs", "op_data", "constants", "ddr_tensors", "shared_weights")
_MOST = 4096
"""No real binary has more graphs or tensors; a larger count means that the layout is unknown."""


class ContextReadError(Exception):
    """The file is not a context binary, or has an unknown layout."""


class _Interface(ctypes.Structure):
    _fields_ = (
        ("backend", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_uint32 * 3),
        ("functions", ctypes.c_void_p * 3),
    )


def read_context_binary(path: Path, say: Callable[[str], None]) -> Json:
    """The build id, API versions, SoC and graphs of a binary. Raises ContextReadError.

    ``say`` is called with each step, so that the parent knows in which one the process died. The library's handle is
    never freed: the process ends with the answer, and freeing could crash it.
    """
    say("loading the library")
    create, get_info = _functions()
    blob = path.read_bytes()
    buffer = ctypes.create_string_buffer(blob, len(blob))
    handle, info, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    say("creating the library's handle")
    if create(ctypes.byref(handle)):
        raise ContextReadError("the system library creates no context")
    say("having the library read the binary")
    status = get_info(handle, buffer, len(blob), ctypes.byref(info), ctypes.byref(size))
    if status or not info.value:
        raise ContextReadError(f"not a context binary that this library reads (status {status:#x})")
    say("reading the description that the library gave")
    found = {**_info(info.value), "alloc_limit_mb": _setting(blob, b"memory_alloc_limit")}
    return found if found["arch"] is not None else {**found, "arch": _setting(blob, b"min_arch")}


def _setting(blob: bytes, name: bytes) -> int | None:
    """A number from the compiler's settings, which every binary holds as
    text; None if there is none, or several differ.
    """
    values = set(re.findall(rb";%s=([0-9]{1,6});" % name, blob))
    return int(values.pop()) if len(values) == 1 else None


def _functions() -> tuple[Any, Any]:
    import onnxruntime_qnn as qnn

    library = ctypes.CDLL(str(Path(qnn.LIB_DIR_FULL_PATH) / "libQnnSystem.so"))
    providers, count = ctypes.POINTER(ctypes.POINTER(_Interface))(), ctypes.c_uint32()
    if library.QnnSystemInterface_getProviders(ctypes.byref(providers), ctypes.byref(count)) or not count.value:
        raise ContextReadError("the system library offers no interface")
    table = providers[0].contents.functions
    pointer, size, handle = ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64, ctypes.c_void_p
    create = ctypes.CFUNCTYPE(size, pointer)(table[0])
    return create, ctypes.CFUNCTYPE(size, handle, handle, size, pointer, ctypes.POINTER(size))(table[1])


def _info(address: int) -> Json:
    """The binary's metadata. Version 3 names the chip, its architecture and what every graph needs.

    Version 1 names no chip, and states only the spill buffer of one graph.
    """
    (version,) = _read(address, "I")
    if version not in (1, 3):
        raise ContextReadError(f"unknown layout: info version {version}, known are 1 and 3")
    base, newer = address + 8, version == 3
    count, _, graphs = _read(base + (88 if newer else 112), "IIQ")
    size, _, hardware = _read(base + (112 if newer else 72), "IIQ")
    if not 1 <= count <= _MOST:
        raise ContextReadError(f"unknown layout: {count} graphs")
    found = [_graph(graphs + _GRAPH_BYTES * index, version) for index in range(count)]
    arch = None
    if newer and hardware and size >= 8:
        kind, number = _read(hardware, "II")
        arch = number if kind == 1 else None
    elif not newer and hardware and size >= 24:
        kind, _, index, _, spill = _read(hardware, "IIIIQ")
        if kind == 1 and index < count:
            found[index]["memory"]["spill_fill"] = spill
    return {
        "build": _text(_read(base + 8, "Q")[0]),
        "core_api": list(_read(base + 16, "3I")),
        "backend_api": list(_read(base + 28, "3I")),
        "blob_version": list(_read(base + (48 if newer else 60), "3I")),
        "blob_bytes": _read(base + (64 if newer else 88), "Q" if newer else "I")[0],
        "soc_model": _read(base + 128, "I")[0] if newer else None,
        "arch": arch,
        "graph_count": count,
        "graphs": found,
    }


def _graph(address: int, expected: int) -> Json:
    version, _, name, n_in, _, ins, n_out, _, outs = _read(address, "IIQIIQIIQ")
    if version != expected or n_in > _MOST or n_out > _MOST:
        raise ContextReadError(f"unknown layout: graph version {version}, known is {expected}")
    needs: Json = {"vtcm_bytes": None, "optimization": None, "hvx_threads": None, "memory": {}}
    size, _, blob = _read(address + 64, "IIQ") if version == 3 else (0, 0, 0)
    # The graph's needs in bytes: VTCM (0 if the compiler recorded none) and memory by its use. The first 40 bytes are
    # in every binary of version 3, the rest came with blob version 3.3.
    if blob and size >= 40 and _read(blob, "I")[0] == 1:
        _, _, spill, vtcm, optimization, _, threads = _read(blob, "IIQIIQQ")
        memory = {"spill_fill": spill}
        if size >= 112 and _read(blob + 40, "I")[0] == 2:
            memory.update(zip(_USES, _read(blob + 72, "5Q"), strict=True))
        needs = {
            "vtcm_bytes": vtcm or None,
            "optimization": optimization or None,
            "hvx_threads": threads or None,
            "memory": memory,
        }
    return {
        "name": _text(name),
        "inputs": [_tensor(ins + _TENSOR_BYTES * i) for i in range(n_in)],
        "outputs": [_tensor(outs + _TENSOR_BYTES * i) for i in range(n_out)],
        **needs,
    }


def _tensor(address: int) -> Json:
    base = address + 8
    _, _, name, _, _, dtype, _, defined, encoding = _read(base, "IIQIIIIII")
    scale, offset = _read(base + 40, "fi")
    rank, _, dims = _read(base + 72, "IIQ")
    if rank > 16:
        raise ContextReadError(f"unknown layout: a tensor of rank {rank}")
    quantized = defined == 1 and encoding == 0
    return {
        "name": _text(name),
        "dtype": TYPES.get(dtype, f"{dtype:#x}"),
        "shape": list(_read(dims, f"{rank}I")) if rank else [],
        "scale": scale if quantized else None,
        "zero_point": -offset if quantized else None,
    }


def _read(address: int, layout: str) -> tuple[Any, ...]:
    return struct.unpack(layout, ctypes.string_at(address, struct.calcsize(layout)))


def _text(address: int) -> str:
    return ctypes.string_at(address).decode(errors="replace") if address else ""
