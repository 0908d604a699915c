"""``deploykit lpbq``: turn block-quantized weights into LPBQ, with the loss per weight."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploykit import api
from deploykit.backend.plugins import load_backend, load_backends
from deploykit.cli.frame import Command
from deploykit.cli.output import emit, table

if TYPE_CHECKING:
    from deploykit.encodings.lpbq import ExplainsBlockWeights
    from deploykit.encodings.lpbq_files import LpbqReport, WeightReport

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.command(cls=Command)
@click.argument("model", type=_PATH)
@click.option("-o", "--out", type=_PATH, required=True, metavar="FILE", help="The model to write.")
@click.option(
    "refine", "--refine/--no-refine", "--lpbq-refine", default=False, help="Re-round the integers to the new scales."
)
@click.option("--backend", metavar="ID", help="Whose compiler to report on. Default: the first that knows blocks.")
@click.option("--sdk", default="", metavar="VERSION", help="The version of that compiler. Default: the newest.")
@click.option("--force", is_flag=True, help="Replace a file that stands there.")
def command(model: Path, out: Path, refine: bool, backend: str | None, sdk: str, force: bool) -> int:
    """Turn the block-quantized int4 weights of MODEL into LPBQ. Lossy: the loss is shown per weight.

    \b
    deploykit lpbq model.onnx -o model_lpbq.onnx --refine
    """
    report = api.lpbq(model, out, refine=refine, force=force)
    known = _explainer(backend)
    paths = [_path(weight, known, sdk) for weight in report.weights]
    emit(_json(report, paths), lambda: _text(report, paths))
    return 0


def _explainer(backend: str | None) -> ExplainsBlockWeights | None:
    from deploykit.encodings.lpbq import ExplainsBlockWeights

    candidates = load_backends() if backend is None else (load_backend(backend),)
    return next((known for known in candidates if isinstance(known, ExplainsBlockWeights)), None)


def _path(weight: WeightReport, known: ExplainsBlockWeights | None, sdk: str) -> str:
    """What that backend's compiler makes of the layer now, where the backend knows."""
    if not weight.op_type or known is None:
        return "unknown"
    return known.block_weight_path(op_type=weight.op_type, lpbq=weight.converted, has_bias=weight.has_bias, sdk=sdk)


def _json(report: LpbqReport, paths: list[str]) -> dict[str, Any]:
    weights = [{**weight.to_json(), "path": path} for weight, path in zip(report.weights, paths, strict=True)]
    return {"output": str(report.output), "converted": report.converted, "weights": weights}


def _text(report: LpbqReport, paths: list[str]) -> str:
    rows = []
    for weight, path in zip(report.weights, paths, strict=True):
        loss = "left as it is" if weight.loss is None else _loss(weight.loss.to_json())
        rows.append((weight.name, weight.op_type or "?", loss, weight.reason or path))
    lines = [table(rows, header=("weight", "layer", "loss", "path or reason")), ""]
    lines.append(f"{report.converted} of {len(report.weights)} weights are LPBQ now: {report.output}")
    return "\n".join(lines)


def _loss(loss: dict[str, Any]) -> str:
    refined = "" if loss["refined_sqnr_db"] is None else f", refined {loss['refined_sqnr_db']} dB"
    return f"scales off by up to {loss['scale_error']:.1%}; {loss['sqnr_db']} dB{refined}"
