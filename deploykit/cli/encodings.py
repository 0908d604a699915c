"""``deploykit encodings``: show, check, convert, compare, apply and extract AIMET encodings and QDQ models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from deploykit.cli.frame import Group
from deploykit.cli.options import argument, flag, option, path
from deploykit.cli.terminal import emit, findings_text, table
from deploykit.errors import UsageError
from deploykit.findings import exit_status, summarize
from deploykit.findings.records import Json, Names
from deploykit.system.files import write_files

__all__ = ["command", "show_text"]


@click.group("encodings", cls=Group)
def command() -> None:
    """Read quantization encodings: AIMET 0.6.1, 1.0.0 and 2.0.0 files, and the Q/DQ nodes of ONNX models."""


_MODEL_HELP = "The ONNX model that they belong to; it tells axes, order and parameters."
_model_option = path("--model", "MODEL", _MODEL_HELP)
_float_option = path("--float-tensors", "FILE", "Names of tensors meant to be float16 (2.0.0 cannot say).")


@command.command("show", short_help="What a file says about every tensor.")
@argument("file")
@click.argument("names", nargs=-1)
@_model_option
@flag("--values", "With --json: every scale and zero point.")
def show(file: Path, names: Names, model: Path | None, values: bool) -> None:
    """Show what FILE says about every tensor, or about those named."""
    from deploykit.encodings.files import show_encodings

    found = show_encodings(file, model=model, names=names, arrays=values)
    emit(found, lambda: show_text(found))


def show_text(found: Json) -> str:
    """The result of ``encodings show`` as text for people."""

    def span(bounds: list[float] | None) -> str:
        if bounds is None:
            return ""
        return f"{bounds[0]:.6g}" if bounds[0] == bounds[1] else f"{bounds[0]:.4g} .. {bounds[1]:.4g}"

    producer, counts = found["producer"] or {}, found["counts"]
    made = " ".join(str(producer[key]) for key in ("package", "version") if key in producer)
    dtypes = ", ".join(f"{count} {dtype}" for dtype, count in counts["dtypes"].items())
    head = f"version {found['version']}{f', by {made}' if made else ''}: {counts['tensors']} tensors ({dtypes})"
    rows = []
    for row in found["tensors"]:
        axes = "" if row.get("axis") is None else str(row["axis"])
        if row.get("placed") is False:
            axes = "not stated"
        elif row.get("block_size"):
            axes = f"{axes}, blocks of {row['block_size']} along {row['block_axis']}"
        role = {True: "param", False: "act", None: "?"}[row["is_param"]]
        reach = f"{row['min']:.6g} .. {row['max']:.6g}" if "min" in row else ""
        grid = (span(row.get("scale")), span(row.get("zero_point")))
        rows.append((row["dtype"], row["granularity"], role, axes, *grid, reach, row["name"]))
    header = ("dtype", "granularity", "role", "axis", "scale", "zero point", "range", "tensor")
    return f"{head}\n{table(rows, header=header)}" if rows else head


@command.command("check", short_help="Does a file fit its model?")
@argument("file")
@path("--model", "MODEL", _MODEL_HELP, required=True)
@_float_option
def check(file: Path, model: Path, float_tensors: Path | None) -> int:
    """Check FILE against the model it is for; exit status 1 when an error was found."""
    from deploykit.encodings.files import check_encodings

    findings = check_encodings(file, model=model, float_tensors=float_tensors)
    emit({"findings": findings, "summary": summarize(findings)}, lambda: findings_text(findings))
    return exit_status(findings)


@command.command("convert", short_help="Another version of a file, and what that loses.")
@argument("file")
@option("--to", "VERSION", "0.6.1, 1.0.0 or 2.0.0 for a file; lpbq for a model.", "to_version", required=True)
@_model_option
@_float_option
@path("-o", "FILE", "Where to write. Without it, only the losses are shown.", "--output", "--out")
@click.option(
    "--activations",
    "signedness",
    type=click.Choice(["as-is", "unsigned", "signed"]),
    default="as-is",
    show_default=True,
    help="Signedness of activations, for 2.0.0 only.",
)
@flag("--infer-blocks", "Give blockwise lists of 0.6.1 the only block size that fits.")
@flag("--lpbq", "Turn int4 blocks into LPBQ, which is lossy; needs --model.")
@flag("--partial", "Write the file without the entries that cannot be converted.")
@click.option("--refine/--no-refine", "--lpbq-refine", default=False, help="--to lpbq: re-round to the new scales.")
@option("--backend", "ID", "--to lpbq: whose compiler to report on. Default: the first with blocks.")
@option("--sdk", "VERSION", "--to lpbq: the version of that compiler.", default="")
@flag("--force", "Replace a file that stands there.")
def convert(
    file: Path, output: Path | None, partial: bool, force: bool, refine: bool, backend: str | None, sdk: str, **how: Any
) -> int:
    """Convert FILE to another version and say what that loses, tensor by tensor.

    Exit status 1 when a tensor cannot be converted; nothing is written then, unless --partial. Float16 tensors have no
    entry in 2.0.0: they are listed beside the output, in NAME.float_tensors.json. With --to lpbq, FILE is a model, and
    its block-quantized int4 weights become LPBQ, with the loss of each.

    \b
    deploykit encodings convert model.encodings --to 2.0.0 --model model.onnx -o model.2.0.0.encodings
    deploykit encodings convert model.onnx --to lpbq --refine -o model_lpbq.onnx
    """
    if how["to_version"].lower() == "lpbq":
        if output is None:
            raise UsageError("--to lpbq needs -o FILE", next="name the model to write")
        return _to_lpbq(file, output, refine=refine, backend=backend, sdk=sdk, force=force)
    from deploykit.encodings.files import convert_encodings
    from deploykit.encodings.read import float_tensors_to_json

    conversion = convert_encodings(file, **how)
    complete = not conversion.counts["impossible"]
    files = dict[Path, str]()
    if output is not None and (complete or partial):
        if conversion.float_tensors:
            side = output.with_name(f"{output.name}.float_tensors.json")
            files[side] = float_tensors_to_json(conversion.float_tensors)
        files[output] = conversion.text
    write_files(files, force=force)

    def text() -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in conversion.counts.items() if count)
        lines = [f"{conversion.source_version} -> {conversion.version}: {counts or 'no tensors'}"]
        lossy = [(one.outcome, one.name, one.what) for one in conversion.outcomes if one.what]
        lines += [table(lossy, header=("outcome", "tensor", "what"))] if lossy else []
        lines += [f"note: {note}" for note in conversion.notes]
        lines += [f"warning: {warning}" for warning in conversion.warnings]
        lines += [f"written: {path}" for path in files]
        lines += ["nothing was written; --partial writes the rest"] if output is not None and not files else []
        return "\n".join(lines)

    emit({**conversion.to_json(), "written": [str(path) for path in files]}, text)
    return 0 if complete else 1


def _to_lpbq(model: Path, out: Path, *, refine: bool, backend: str | None, sdk: str, force: bool) -> int:
    """Writes a model's block-quantized weights as LPBQ, and tells what a compiler makes of each layer then."""
    from deploykit import api
    from deploykit.backend.plugins import first_offering

    report = api.lpbq(model, out, refine=refine, force=force)
    known = first_offering("block_weight_path", backend)
    weights, rows = [], []
    for one in report.weights:
        path = "unknown"
        if one.op_type and known is not None:
            path = known.block_weight_path(op_type=one.op_type, lpbq=one.converted, has_bias=one.has_bias, sdk=sdk)
        weights.append({**one.to_json(), "path": path})
        words = "left as it is"
        if one.loss is not None:
            loss = one.loss.to_json()
            refined = "" if loss["refined_sqnr_db"] is None else f", refined {loss['refined_sqnr_db']} dB"
            words = f"scales off by up to {loss['scale_error']:.1%}; {loss['sqnr_db']} dB{refined}"
        rows.append((one.weight, one.op_type or "?", words, one.reason or path))
    told = f"{report.converted} of {len(report.weights)} weights are LPBQ now: {report.output}"
    emit(
        {"output": str(report.output), "converted": report.converted, "weights": weights},
        lambda: f"{table(rows, header=('weight', 'layer', 'loss', 'path or reason'))}\n\n{told}",
    )
    return 0


@command.command("diff", short_help="In which tensors two files differ.")
@argument("first")
@argument("second")
@_model_option
@option("--tolerance", None, "Relative, for scales.", type=float, default=0.0, show_default=True)
@flag("--grid", "Compare real values only: an int8 grid may equal a uint8 one.", "grid_only")
def compare(first: Path, second: Path, **options: Any) -> int:
    """Say in which tensors FIRST and SECOND differ; exit status 1 when they do."""
    from deploykit.encodings.files import diff_encodings

    if not 0 <= options["tolerance"] < 1:
        raise UsageError(f"--tolerance {options['tolerance']}: a number in 0 .. 1 is expected")
    found = diff_encodings(first, second, **options)

    def text() -> str:
        rows = [(item.kind, item.name, "; ".join(str(change) for change in item.changes)) for item in found]
        return table(rows, header=("kind", "tensor", "changes")) if rows else "no differences"

    emit({"differences": found}, text)
    return int(bool(found))


@command.command("apply", short_help="Write encodings into a model as Q/DQ.")
@argument("file")
@path("--model", "FILE", "The float model.", required=True)
@path("-o", "FILE", "The QDQ model to write.", "--output", required=True)
@click.option(
    "--bias",
    type=click.Choice(["float", "encoded", "int32"]),
    default="float",
    show_default=True,
    help="Biases of linear layers: as they are, by their int32 entries, or all as int32.",
)
@flag("--signed", "Keep signed activation grids; without it they become unsigned ones.")
@flag("--force", "Replace a file that stands there.")
def apply(file: Path, model: Path, output: Path, **how: Any) -> int:
    """Write the encodings of FILE into a model as QuantizeLinear and DequantizeLinear.

    Entries that ONNX cannot store are listed with the reason; exit status 1 then.
    """
    from deploykit.encodings.files import apply_encodings

    done = apply_encodings(model, file, output, **how)
    lines = [f"{name}: not written, {reason}" for name, reason in done.skipped.items()]
    lines.append(f"{len(done.placed)} tensors are quantized in {done.output}")
    emit(done, "\n".join(lines))
    return int(bool(done.skipped))


@command.command("extract", short_help="Take Q/DQ out of a model.")
@argument("model")
@path("-o", "FILE", "The encodings file to write.", "--output", required=True)
@option("--to", "VERSION", "1.0.0 or 2.0.0.", "version", default="2.0.0", show_default=True)
@path("--float-model", "FILE", "Write the model without Q/DQ here.")
@flag("--force", "Replace files that stand there.")
def extract(model: Path, output: Path, version: str, float_model: Path | None, force: bool) -> int:
    """Take Q/DQ out of MODEL: an encodings file and, if wanted, the float model."""
    from deploykit.encodings.files import extract_encodings

    done = extract_encodings(model, float_model, version=version, force=force)
    write_files({output: done.encodings}, force=force)
    lines = [f"{name}: left in the model, {reason}" for name, reason in done.kept.items()]
    lines.append(f"{done.entries} entries written to {output}")
    emit({**done.to_json(), "encodings": str(output)}, "\n".join(lines))
    return int(bool(done.kept))
