"""Compiles one network as `package` does and prints what was estimated as JSON: FILE PRECISION TARGET MODE.

Integer grids are those of `quantize` on made-up samples: a range costs no time on a chip. The product's ten dearest
operators are held against a second reader of the same trace.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import deploykit
from deploykit.accuracy.latency import Estimate, chrome_trace
from deploykit_ort_qnn.compiler import jobs
from latency.trace import operator_cycles


def main(model: Path, precision: str, target: str, mode: str) -> None:
    os.environ["DEPLOYKIT_NO_CACHE"] = "1"  # what is kept would leave no trace to read
    graph = onnx.load(model, load_external_data=False).graph
    kinds = {node.name or node.output[0]: node.op_type for node in graph.node}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked: dict[str, Any] = {"backend": "ort-qnn", "compile": False}
        if mode != "default":
            asked["finalization_mode"] = int(mode)
        if precision != "float":
            np.savez(folder / "samples.npz", allow_pickle=False, **_samples(graph))
            given: dict[str, Any] = {"calibration": folder / "samples.npz", "precision": precision, "quantizer": "ort"}
            deploykit.quantize(model, target=target, backend="ort-qnn", out=folder / "q", **given)
            asked["encodings"] = folder / "q" / "model.encodings"
        made = deploykit.package(model, target=target, out=folder / "p", **asked)
        if made.package is None:
            raise SystemExit("; ".join(f"{one.code} {one.message}"[:120] for one in made.findings if one.blocks))
        options = json.loads((folder / "p/config/compile_options.json").read_text())["provider_options"]
        seen = _listen(kinds)
        job = jobs.CompileJob(
            root=folder / "p",
            model="model/model.onnx",
            context="artifacts/context.onnx",
            options=options,
            allow_cpu=True,
            timeout=1800,
            operators=frozenset(kinds),
        )
        outcome = jobs.compile_model(job)
    estimate = outcome.estimate
    if estimate is None:
        raise SystemExit(f"no estimate: {outcome.status} {outcome.message}")
    told = {
        "time_us": estimate.time_us,
        "lower_us": estimate.lower_us,
        "upper_us": estimate.upper_us,
        "missing_ops": estimate.missing_ops,
        "ddr": dict(estimate.ddr),
        "contexts": len(outcome.graphs),
        "cpu": sorted(node.type for node in outcome.cpu_nodes),
        "compile_s": outcome.seconds,
        **seen,
    }
    print(json.dumps(told))


def _samples(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    known = {item.name for item in graph.initializer}
    samples = {}
    for item in graph.input:
        if item.name in known:
            continue
        shape = [4, *(dim.dim_value for dim in item.type.tensor_type.shape.dim)]
        kind = onnx.helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
        samples[item.name] = (np.ones(shape) if kind.kind in "iub" else generator.random(shape)).astype(kind)
    return samples


def _listen(kinds: dict[str, str]) -> dict[str, Any]:
    """What the second reader says of the files that the product reads, filled in when it does."""
    seen: dict[str, Any] = {}
    names = vars(jobs)  # the module's own name of the product's reader, which it calls
    read = names["read_estimate"]

    def both(profile: Path, *given: Any, **named: Any) -> Estimate | None:
        started = time.monotonic()
        estimate: Estimate | None = read(profile, *given, **named)
        if estimate is None:
            return None
        json.dumps(chrome_trace(estimate))
        seen["estimate_s"] = round(time.monotonic() - started, 3)
        schematics = list((profile.parent / "traces").glob("*_schematic.bin"))
        graphs = [path for path in (profile.parent / "graphs").glob("*.json") if "_tensor_log" not in path.name]
        if not estimate.operators or len(graphs) != 1:
            return estimate
        cycles = operator_cycles(profile.with_name("profile_qnn.log"), schematics[0], graphs[0], kinds)
        own = sorted(cycles.items(), key=lambda item: (-item[1], item[0]))[:10]
        told = [(item.node, item.share) for item in estimate.operators[:10]]
        pairs = list(zip(told, own, strict=True))
        shares: dict[str, float] = defaultdict(float)
        for node, took in cycles.items():
            shares[kinds.get(node, "layout" if node.startswith("layout of ") else "other")] += took
        whole = sum(cycles.values())
        seen["ten"] = own
        seen["agree"] = sum(a[0] == b[0] and math.isclose(a[1], b[1], rel_tol=1e-6) for a, b in pairs)
        seen["whole"] = whole / estimate.cycles
        seen["kinds"] = {kind: round(took / whole, 4) for kind, took in sorted(shares.items())}
        return estimate

    names["read_estimate"] = both
    return seen


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
