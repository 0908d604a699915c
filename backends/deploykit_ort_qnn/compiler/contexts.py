"""Tells which chip a context binary is for and whether its graphs fit there. A child process reads the binary.

The limits come from the binary or from the tables, with their source. Nothing is judged without a known limit.
"""

from __future__ import annotations

from pathlib import Path

from deploykit.errors import InputError
from deploykit.findings.records import Json
from deploykit.model.load import load_model
from deploykit.model.nodes import attribute
from deploykit.system.folders import scratch
from deploykit_ort_qnn.compiler.jobs import read_context
from deploykit_qualcomm.carriers import carrier
from deploykit_qualcomm.devices import arch_of, capability, qualcomm_devices

__all__ = ["inspect_context"]

_SERIALIZED = ("constants", "op_data", "shared_weights")
"""The uses of memory that the limit counts: buffers for activations, inputs and outputs are made at loading."""


def judged(graph: Json, arch: str, limit_mb: int | None) -> Json:
    """The graph with ``fits``: the counted bytes, the limit, and into how many parts the graph would have to be split.

    ``limit_mb`` is the limit in MiB that the binary itself records; if it is None, the tables' limit for the
    architecture counts. ``fits`` is None for binaries before blob version 3.3, which state the spill buffer only.
    ``limit_bytes``, ``ok`` and ``parts`` are None if no limit is known.
    """
    memory = graph["memory"]
    if any(use not in memory for use in _SERIALIZED):
        return {**graph, "fits": None}
    counted = sum(memory[use] for use in _SERIALIZED)
    limit, source = None, list[str]()
    if limit_mb is not None:
        limit, source = limit_mb << 20, ["the binary's own record (memory_alloc_limit)"]
    elif (fact := capability("graph_limit_kb", arch=arch)) is not None and isinstance(fact.value, int):
        limit, source = fact.value << 10, list(fact.source)
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


def inspect_context(path: Path) -> Json:
    """The metadata of a binary, as ``deploykit explain`` publishes it: who built it, for which chip, with which graphs.

    Raises InputError for a file that is neither a context binary nor a context model, ToolError without the vendor's
    library. ``soc_model`` is None if the binary does not name its chip (2.27 and before). ``arch`` comes from the
    binary, else from the tables; ``devices`` are those with that chip; ``onnx`` holds the context model's metadata.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    with scratch() as folder:
        onnx_side, binary = _context_model(path, folder) if path.suffix == ".onnx" else ({}, path)
        answer = read_context(binary)
    if not answer["ok"]:
        raise InputError(f"{path}: not readable as a context binary", why=answer["error"])
    context = answer["context"]
    build, soc_model = context["build"], context["soc_model"]
    devices = [one for one in qualcomm_devices() if soc_model is not None and one.fact("soc_model") == soc_model]
    archs = {found for device in devices if (found := arch_of(device))}
    arch = f"v{context['arch']}" if context["arch"] is not None else archs.pop() if len(archs) == 1 else ""
    known = carrier(build)
    return {
        "file": path.name,
        "maker": "QAIRT",
        "release": ".".join(build.removeprefix("v").split(".")[:3]),  # 2.51.0 of v2.51.0.260929181845
        "build": build,
        "carrier": "" if known is None else f"onnxruntime-qnn {known.version}",
        "soc_model": soc_model,
        "arch": arch,
        "devices": [device.id for device in devices],
        **{name: ".".join(map(str, context[name])) for name in ("core_api", "backend_api", "blob_version")},
        "graph_count": context["graph_count"],
        "graphs": [judged(graph, arch, context["alloc_limit_mb"]) for graph in context["graphs"]],
        "onnx": onnx_side,
    }


def _context_model(path: Path, folder: Path) -> tuple[Json, Path]:
    """The metadata of a context model, and the path of its binary: beside the model, or extracted to ``folder``."""
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
