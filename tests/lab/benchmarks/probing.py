"""What deploykit's work is held against, each in a fresh process: ``python probing.py KIND FOLDER``; prints JSON.

Every probe times a small thing and a plain counterpart in the same process, so that what both need is in neither.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

__all__ = ["Numbers"]

Numbers = dict[str, float]
_CHUNK = 1 << 20


def _cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def sha256(folder: Path) -> Numbers:
    """One pass over the external data."""

    def work() -> None:
        digest = hashlib.sha256()
        with (folder / "model.data").open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)

    started = time.perf_counter()
    return {"pass": _cpu(work), "wall": time.perf_counter() - started}


def inference(folder: Path) -> Numbers:
    """One float inference, the mean of twenty, as ONNX Runtime comes."""
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(folder / "model.onnx", options)
    with np.load(folder / "samples.npz") as given:
        feed = {item.name: given[item.name][0] for item in session.get_inputs()}
    session.run(None, feed)
    return {"inference": _cpu(lambda: [session.run(None, feed) for _ in range(20)]) / 20}


def reading(folder: Path) -> Numbers:
    """Encodings of each version: read beside ``json.load``, written beside ``json.dump``."""
    import numpy  # noqa: F401 - what it costs to import is not the reader's

    from deploykit.encodings.formats.aimet import read_encodings, write_encodings

    found: Numbers = {}
    for path in sorted(folder.glob("*.encodings")):
        version = path.name.removesuffix(".encodings")
        document, encodings = json.loads(path.read_bytes()), read_encodings(path)
        found[f"dump {version}"] = _cpu(partial(json.dumps, document, indent=1, sort_keys=True))
        found[f"write {version}"] = _cpu(partial(write_encodings, encodings, version))
        del document, encodings
        found[f"load {version}"] = _cpu(partial(_load, path))
        found[f"read {version}"] = _cpu(partial(read_encodings, path))
    return found


def _load(path: Path) -> object:
    return json.loads(path.read_bytes())


def memory(folder: Path) -> Numbers:
    """What reading one file of encodings adds to the peak, in MB, and the file's size."""
    import numpy  # noqa: F401

    from deploykit.encodings.formats.aimet import read_encodings

    path, before = folder / "1.0.0.encodings", _peak()
    kept = read_encodings(path)
    return {"file": path.stat().st_size / 1e6, "peak": _peak() - before, "entries": len(kept)}


def inserting(folder: Path) -> Numbers:
    """Q/DQ nodes put behind every tensor, beside a bare pass: copying the model and adding as many nodes and values."""
    from onnx import ModelProto, NodeProto, TensorProto, helper

    from deploykit.encodings.insert_qdq import insert_qdq
    from deploykit.encodings.read import read_placed
    from deploykit.model.collect import collect_facts
    from deploykit.model.load import load_model
    from deploykit.model.weights import load_weights

    read = load_model(folder / "model.onnx")
    model, encodings = load_weights(read), read_placed(folder / "model.encodings", collect_facts(read))
    only = [entry.name for entry in encodings if not entry.is_param]

    def bare() -> None:
        copy = ModelProto()
        copy.CopyFrom(model)
        nodes: list[NodeProto] = []
        for node in copy.graph.node:
            name = node.output[0]
            inputs = [name, f"{name}_s", f"{name}_z"]
            added = [helper.make_node(kind, inputs, [f"{name}_{kind}"], name=kind) for kind in _PAIR]
            nodes += [NodeProto.FromString(node.SerializeToString()), *added]
            copy.graph.initializer.append(TensorProto(name=f"{name}_s", data_type=1, raw_data=bytes(4)))
            copy.graph.initializer.append(TensorProto(name=f"{name}_z", data_type=4, raw_data=bytes(2)))
        del copy.graph.node[:]
        copy.graph.node.extend(nodes)

    def insert() -> None:
        insert_qdq(model, encodings.only(only))

    found: Numbers = {"nodes": len(model.graph.node), "repeats": _REPEATS}
    for name, work in (("bare", bare), ("insert", insert)):
        work()
        found[name] = _cpu(partial(_repeat, work)) / _REPEATS
    return found


def _repeat(work: Callable[[], None]) -> None:
    for _ in range(_REPEATS):
        work()


_REPEATS = 20
"""One pass takes less than the clock of a busy machine can tell."""
_PAIR = ("QuantizeLinear", "DequantizeLinear")


def converting(folder: Path) -> Numbers:
    """LPBQ of a model with weights in blocks: CPU seconds, wall seconds, and the float bytes of the weights."""
    from deploykit.encodings.lpbq_files import convert_file
    from deploykit.model.load import load_model

    path = folder / "model.onnx"
    shapes = [tuple(t.dims) for t in load_model(path).proto.graph.initializer if len(t.dims) == 2]
    floats = max(a * b for a, b in shapes) * 4 * sum(1 for a, b in shapes if a == b)
    started = time.perf_counter()
    cpu = _cpu(lambda: convert_file(path, folder / "converted.onnx", force=True))
    return {"bytes": float(floats), "cpu": cpu, "wall": time.perf_counter() - started}


_KINDS: dict[str, Callable[[Path], Numbers]] = {
    "converting": converting,
    "inference": inference,
    "inserting": inserting,
    "memory": memory,
    "reading": reading,
    "sha256": sha256,
}

if __name__ == "__main__":
    print(json.dumps(_KINDS[sys.argv[1]](Path(sys.argv[2]))))
