"""What a context binary is for, read in a child process; whether it will load, and whether its graphs fit the chip.

The rules are the tables' and come with their confidence; nothing is loaded here. Where the binary or the tables state
nothing, nothing is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploykit.errors import InputError
from deploykit.model import load_model
from deploykit.model.nodes import attribute
from deploykit.system.folders import scratch
from deploykit_ort_qnn.compiler.jobs import read_context
from deploykit_qualcomm.carriers import carrier
from deploykit_qualcomm.devices import arch_of, capability, qualcomm_devices

__all__ = ["ContextInfo", "inspect_context", "judged"]

_SERIALIZED = ("constants", "op_data", "shared_weights")
"""What the limit counts: buffers for activations, inputs and outputs are made when the binary is loaded."""


def judged(graph: Mapping[str, Any], arch: str, limit_mb: int | None) -> dict[str, Any]:
    """The graph with ``fits``: bytes that count, the limit, and the parts that a split would need.

    ``limit_mb`` is the limit that the binary itself records, in MiB; where it records none, the tables speak for the
    architecture. ``fits`` is None for binaries before blob version 3.3, which state the spill buffer alone;
    ``limit_bytes``, ``ok`` and ``parts`` are None where no limit is known.
    """
    memory = graph["memory"]
    if any(use not in memory for use in _SERIALIZED):
        return {**graph, "fits": None}
    counted = sum(memory[use] for use in _SERIALIZED)
    limit, source = _limit(arch, limit_mb)
    return {
        **graph,
        "fits": {
            "counted_bytes": counted,
            "limit_bytes": limit,
            "ok": None if limit is None else counted <= limit,
            "parts": None if limit is None else max(1, -(-counted // limit)),
            "source": source,
        },
    }


def _limit(arch: str, limit_mb: int | None) -> tuple[int | None, list[str]]:
    if limit_mb is not None:
        return limit_mb << 20, ["the binary's own record (memory_alloc_limit)"]
    fact = capability("graph_limit_kb", arch=arch)
    if fact is None or not isinstance(fact.value, int):
        return None, []
    return fact.value << 10, list(fact.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInfo:
    """A binary's own words: who built it, for which chip, with which graphs.

    ``soc_model`` is None where a binary does not name its chip (those of 2.27 and before). ``arch`` is the binary's own
    word where it has one, else the tables'; ``devices`` are those of that chip; ``onnx`` is the ONNX side's metadata.
    """

    path: Path
    build: str
    soc_model: int | None
    core_api: str
    backend_api: str
    blob_version: str
    graph_count: int
    graphs: tuple[dict[str, Any], ...]
    arch: str = ""
    devices: tuple[str, ...] = ()
    onnx: dict[str, Any] = field(default_factory=dict)

    @property
    def release(self) -> str:
        """The release that built it, 2.51.0 of v2.51.0.260929181845."""
        return ".".join(self.build.removeprefix("v").split(".")[:3])

    @property
    def carrier(self) -> str:
        """The wheel that carries this very build, "" where none is known."""
        found = carrier(self.build)
        return "" if found is None else f"onnxruntime-qnn {found.version}"

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit explain``."""
        return {
            "file": self.path.name,
            "maker": "QAIRT",
            "release": self.release,
            "build": self.build,
            "carrier": self.carrier,
            "soc_model": self.soc_model,
            "arch": self.arch,
            "devices": list(self.devices),
            "core_api": self.core_api,
            "backend_api": self.backend_api,
            "blob_version": self.blob_version,
            "graph_count": self.graph_count,
            "graphs": list(self.graphs),
            "onnx": self.onnx,
        }


def inspect_context(path: Path) -> ContextInfo:
    """Read a context binary or a context model; InputError for another file, ToolError without the vendor's library."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    onnx_side: dict[str, Any] = {}
    with scratch() as folder:
        binary = path
        if path.suffix == ".onnx":
            onnx_side, binary = _context_model(path, folder)
        answer = read_context(binary)
    if not answer["ok"]:
        raise InputError(f"{path}: not readable as a context binary", why=answer["error"])
    context = answer["context"]
    arch, devices = _chips(context["soc_model"])
    arch = arch if context["arch"] is None else f"v{context['arch']}"
    return ContextInfo(
        path=path,
        build=context["build"],
        soc_model=context["soc_model"],
        core_api=_dotted(context["core_api"]),
        backend_api=_dotted(context["backend_api"]),
        blob_version=_dotted(context["blob_version"]),
        graph_count=context["graph_count"],
        graphs=tuple(judged(graph, arch, context["alloc_limit_mb"]) for graph in context["graphs"]),
        arch=arch,
        devices=devices,
        onnx=onnx_side,
    )


def _chips(soc_model: int | None) -> tuple[str, tuple[str, ...]]:
    """The architecture and the devices of that chip number, as far as the tables know."""
    if soc_model is None:
        return "", ()
    found = [device for device in qualcomm_devices() if device.fact("soc_model") == soc_model]
    archs = {arch for device in found if (arch := arch_of(device))}
    return (archs.pop() if len(archs) == 1 else ""), tuple(device.id for device in found)


def _context_model(path: Path, folder: Path) -> tuple[dict[str, Any], Path]:
    """The ONNX side, and the binary: beside the model, or taken out of it."""
    model = load_model(path).proto
    nodes = [node for node in model.graph.node if node.op_type == "EPContext"]
    if not nodes:
        raise InputError(f"{path}: holds no EPContext node", next="give a compiled model (…_ctx.onnx) or its .bin")
    main = next((node for node in nodes if attribute(node, "main_context", 1)), nodes[0])
    cache = next((entry.s for entry in main.attribute if entry.name == "ep_cache_context"), b"")
    side = {
        "nodes": len(nodes),
        "other_nodes": len(model.graph.node) - len(nodes),
        "ep_sdk_version": attribute(main, "ep_sdk_version", ""),
        "source": attribute(main, "source", ""),
        "partition": attribute(main, "partition_name", ""),
        "embedded": bool(attribute(main, "embed_mode", 1)),
        "compatibility": {
            p.key: p.value for p in model.metadata_props if str(p.key).startswith("ep_compatibility_info")
        },
    }
    if side["embedded"]:
        binary = folder / "embedded.bin"
        binary.write_bytes(cache)
        return side, binary
    name = cache.decode(errors="replace")
    if not name or Path(name).name != name:
        raise InputError(f"{path}: points to {name!r}", why="the binary must lie beside the model")
    if not (path.parent / name).is_file():
        raise InputError(f"{path}: its binary {name} is not beside it", next="copy both files together")
    return side, path.parent / name


def _dotted(numbers: list[int]) -> str:
    return ".".join(map(str, numbers))
