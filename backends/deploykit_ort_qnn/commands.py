"""The steps of a package as argv tuples with package-relative paths; they are run by execution.py and build scripts."""

from __future__ import annotations

from deploykit.backend.plans import Step

__all__ = ["BINARY", "CONTEXT", "GRAPHS", "MODEL", "TAIL", "steps"]

MODEL, CONTEXT, BINARY = "model/model.onnx", "artifacts/model_ctx.onnx", "artifacts/model_ctx_qnn.bin"
TAIL = "model/tail.onnx"
GRAPHS = "artifacts/qnn_graph_*.json"
"""The graphs that compile.py leaves where the provider can write down what it hands to the compiler."""


def steps(*, embed: bool, machines: str, beside: tuple[str, ...] = ()) -> tuple[Step, ...]:
    """Compile on the host, run on the device; ``machines`` are the hosts that can execute the compiler, in words.

    ``beside`` are files that the compilation leaves beside the context.
    """
    made = (CONTEXT,) if embed else (CONTEXT, BINARY)
    return (
        Step(
            id="compile",
            tool="onnxruntime-qnn",
            argv=("python3", "scripts/compile.py"),
            inputs=(MODEL,),
            outputs=(*made, *beside),
            note=f"runs on {machines}; needs no SDK",
        ),
        Step(
            id="emulate",
            tool="onnxruntime-qnn",
            argv=("python3", "scripts/run.py", "--compare", MODEL),
            inputs=(CONTEXT, MODEL),
            note="emulator against CPU; its time says nothing about the device",
        ),
        Step(
            id="run",
            tool="onnxruntime-qnn",
            argv=("python3", "scripts/run.py"),
            inputs=made,
            where="device",
            note="needs the wheel of the device's platform, QAIRT inside not older than the one that compiled",
        ),
    )
