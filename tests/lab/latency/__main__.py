"""How far the compiler's estimate is true: `python -m latency export|compile|table`, in this order, from `tests/lab`.

``export`` needs an environment with torch, torchvision, timm, transformers and ultralytics; ``compile`` one with
deploykit and onnxruntime-qnn; ``table`` neither. Each skips what it has made already. The published rows come from a
checkout of qualcomm/ai-hub-models (BSD-3-Clause), named with ``--checkout``. ``publish`` renews the product's table of
them, by the structures of the exported networks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

PRECISIONS = {"float": "float", "w8a8": "w8a8", "w8a16": "w8a16"}


def export(folder: Path, names: list[str], sources: Path | None, unseen: bool = False) -> None:
    """One ONNX file of each network, float32, fixed shapes."""
    import torch

    from latency.models import MODELS
    from latency.sources import sourced_models
    from latency.unseen import unseen_models

    torch.backends.mha.set_fastpath_enabled(False)  # the fast path of attention has no form in ONNX
    models = {**MODELS, **(sourced_models(sources) if sources else {})}
    if unseen and sources:
        models = dict(unseen_models(sources))
    told = {name: (model.family, model.component, model.of or name) for name, model in models.items()}
    (folder / "networks.json").write_text(json.dumps(told, indent=1))
    for name, model in models.items():
        path = folder / f"{name}.onnx"
        if path.exists() or (names and name not in names):
            continue
        torch.manual_seed(0)
        try:
            net = model.build().eval()
            shapes = model.inputs.values()
            given = tuple(torch.ones(s, dtype=torch.int32) if model.tokens else torch.rand(s) for s in shapes)
            inputs = list(model.inputs)
            scratch = path.with_suffix(".part")
            with torch.no_grad():
                torch.onnx.export(
                    net, given, scratch, input_names=inputs, output_names=["answer"], opset_version=17, dynamo=False
                )
            scratch.rename(path)
            print(f"{name}: {path.stat().st_size / 1e6:.1f} MB", flush=True)
        except Exception as error:  # one network that does not export is a row that lacks, not the end
            print(f"{name}: not exported: {type(error).__name__}: {str(error)[:200]}", flush=True)


def compile_all(folder: Path, names: list[str], target: str, precisions: list[str], mode: str) -> None:
    """The compiler's estimate of each network and precision, each in a process of its own."""
    known = folder / f"estimates-{target}-{mode}.json"
    rows = json.loads(known.read_text()) if known.exists() else {}
    for path in sorted(folder.glob("*.onnx"), key=lambda path: path.stat().st_size):
        for precision in precisions:
            key = f"{path.stem} {precision}"
            if key in rows or "." in path.stem or (names and path.stem not in names):
                continue
            started = time.monotonic()
            command = [sys.executable, "-m", "latency.worker", str(path), precision, target, mode]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
                lines = done.stdout.strip().splitlines()
                row = json.loads(lines[-1]) if done.returncode == 0 and lines else {"error": done.stderr[-300:]}
            except subprocess.TimeoutExpired:
                row = {"error": "more than 15 minutes"}
            rows[key] = {**row, "seconds": round(time.monotonic() - started, 1)}
            known.write_text(json.dumps(rows, indent=1, sort_keys=True))
            print(key, rows[key], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m latency", description=__doc__)
    parser.add_argument("step", choices=("export", "compile", "table", "publish"))
    parser.add_argument("--folder", type=Path, required=True, help="where networks and estimates are kept")
    parser.add_argument("--only", nargs="*", default=[], help="names of networks")
    parser.add_argument("--target", default="qcs9075", help="the chip; qcs9075 is that of the IQ-9075 board")
    parser.add_argument("--mode", default="default", help="htp_graph_finalization_optimization_mode: default, 1, 2, 3")
    parser.add_argument("--precisions", nargs="*", default=list(PRECISIONS))
    parser.add_argument("--checkout", type=Path, help="of qualcomm/ai-hub-models")
    parser.add_argument("--sources", type=Path, help="checkouts of the publishers' own code, for more networks")
    parser.add_argument("--unseen", action="store_true", help="export: only those that nothing was fitted to")
    parser.add_argument("--out", type=Path, help="publish: the file, published.toml of the adapter")
    parser.add_argument("--device", default="Dragonwing IQ-9075 EVK")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.step == "export":
        export(given.folder, given.only, given.sources, given.unseen)
    elif given.step == "compile":
        compile_all(given.folder, given.only, given.target, given.precisions, given.mode)
    elif given.step == "publish":
        from latency.publish import write_table

        write_table(given.folder, given.checkout, given.out)
    else:
        from latency.table import print_table

        print_table(given.folder / f"estimates-{given.target}-{given.mode}.json", given.checkout, given.device)


if __name__ == "__main__":
    main()
