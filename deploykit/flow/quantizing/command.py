"""``deploykit quantize``: one float model quantized for one target, as a folder of files with a report.

``report.json`` holds all that the Markdown page says.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deploykit.backend.backend import AnyBackend, Request, Situation
from deploykit.errors import ToolError, UsageError
from deploykit.findings import Findings, exit_status, sort_findings
from deploykit.findings.records import Json, Published, Tell, plain, replace, silent
from deploykit.flow.candidates import make_asked, make_best
from deploykit.flow.choose import ChosenWay
from deploykit.flow.ladder import Ladder
from deploykit.flow.pipeline import make_package
from deploykit.flow.quantizing.making import Made, Making
from deploykit.flow.quantizing.step import AUTO
from deploykit.flow.read import read_situation, resolve_target
from deploykit.flow.rules import RULES
from deploykit.model.load import blaming, load_model
from deploykit.packages.manifests import read_manifest
from deploykit.packages.placing import RESULTS, check_place, publish_results
from deploykit.report.ladders import render_ladder
from deploykit.system.jobs import Steps

__all__ = ["Quantization", "quantize"]

_READING, _QUANTIZING, _WRITING = "reading the model", "quantizing", "writing"


class Quantization(Published):
    """The result of ``quantize``: the folder, its files by role, the record, and the findings."""

    folder: Path
    files: Mapping[str, str]
    record: Json
    findings: Findings

    @property
    def exit_status(self) -> int:
        """1 if a finding is an error, else 0."""
        return exit_status(self.findings)

    def as_published(self) -> Json:
        """The content of ``report.json``, with the folder."""
        return {"folder": self.folder, "files": self.files, **self.record, "findings": self.findings}


def quantize(
    request: Request, out: Path, *, force: bool = False, timeout: float | None = None, progress: Tell = silent
) -> Quantization:
    """Quantizes and writes ``out``; options of the request are the quantizer's own.

    Raises UsageError for a request that is not valid, ToolError if the quantizer fails or is not installed,
    PackageError if ``out`` cannot be written.
    """
    check_place(out, force=force, kind=RESULTS)
    if request.encodings is not None:
        raise UsageError("quantize makes encodings and takes none", next="'deploykit package' takes them")
    backend = resolve_target(request)[0]
    if backend.quantizer:
        return _while_packaging(backend, request, out, force=force, tell=progress)
    steps = Steps(names=(_READING, _QUANTIZING, _WRITING), tell=progress)
    steps.begin(_READING)
    with blaming(request.model):
        backend, given = read_situation(request)
    making = Making(backend=backend, given=given, progress=progress, options=request.options, timeout=timeout)
    steps.begin(_QUANTIZING)
    with blaming(request.model):
        made, ladder = make_best(making) if request.precision == AUTO else (make_asked(making), None)
    if made is None and ladder is not None:
        what, to_do = "float16 is the answer: there is nothing to quantize", "package with fp16"
        if ladder.chosen is None:
            what, to_do = f"no precision was chosen: {ladder.why}", "ask for less with --goal"
        raise ToolError(what, why=ladder.advised, next=to_do)
    assert made is not None
    steps.begin(_WRITING)
    return _written(made, given, out, force=force, ladder=ladder)


def _written(made: Made, given: Situation, out: Path, *, force: bool, ladder: Ladder | None) -> Quantization:
    files = {"model": "model.onnx", "encodings": "model.encodings"}
    sizes = RULES["DK212"].run(ChosenWay(given))
    record, findings = made.to_json(), sort_findings((*sizes, *made.findings, *made.about_data()))
    record |= {} if ladder is None else {"ladder": ladder.to_json()}

    def fill(folder: Path) -> Json:
        shutil.copyfile(made.ran.model, folder / files["model"])
        for external in load_model(made.ran.model).external:
            shutil.copyfile(external.path, folder / external.location)
        shutil.copyfile(made.ran.encodings, folder / files["encodings"])
        if made.ran.qdq is not None:
            files["qdq"] = "model.qdq.onnx"
            shutil.copyfile(made.ran.qdq, folder / files["qdq"])
        if ladder is not None:
            files["ladder"] = "ladder.html"
            samples = f"{made.numbers.samples} samples of the calibration data"
            (folder / files["ladder"]).write_text(
                render_ladder(ladder.to_json(), made.model.path.name, samples), "utf-8"
            )
        return _report(folder, files, record, findings)

    publish_results(out, fill, force=force)
    return Quantization(folder=out, files=files, record=record, findings=findings)


def _while_packaging(backend: AnyBackend, request: Request, out: Path, *, force: bool, tell: Tell) -> Quantization:
    """Runs the backend's own recipe in a package that is thrown away; its model and its record are kept."""
    if request.quantizer not in (None, backend.quantizer):
        raise UsageError(
            f"--with {request.quantizer}: not for this target",
            next=f"leave it out: {backend.quantizer} is what quantizes",
        )
    with tempfile.TemporaryDirectory(prefix="deploykit-") as work:
        packaged = make_package(replace(request, compile=True), Path(work) / "package", progress=tell)
        model = (
            None if packaged.package is None else backend.quantized(packaged.package, read_manifest(packaged.package))
        )
        if packaged.package is None or model is None:
            blocking = [finding for finding in packaged.findings if finding.blocks]
            why = "; ".join(f"{one.code} {one.message}" for one in blocking[:3])
            advice = blocking[0].hint if blocking else ""
            raise ToolError(f"{backend.quantizer} quantized nothing", why=why, next=advice)
        manifest = read_manifest(packaged.package)
        files = {"qdq": "model.qdq.onnx"}
        record = {
            "quantizer": backend.quantizer,
            "target": manifest["target"].get("id", request.target),
            "sdk": manifest["sdk"].get("version", ""),
            "inputs": manifest["inputs"],
            "executed": manifest["executed"],
            "record": manifest["record"],
            "status": manifest["status"],
        }

        def fill(folder: Path) -> Json:
            shutil.copyfile(model, folder / files["qdq"])
            return _report(folder, files, record, packaged.findings)

        publish_results(out, fill, force=force)
    return Quantization(folder=out, files=files, record=record, findings=packaged.findings)


def _report(folder: Path, files: Mapping[str, str], record: Json, findings: Findings) -> Json:
    """Writes the Markdown page, and gives the content of ``report.json``."""
    lines = (_page if "numbers" in record else _recipe_page)(record)
    lines += [f"* {finding.severity} {finding.code}: {finding.message}" for finding in findings]
    lines += ["", f"Files: {', '.join(files.values())}.", ""]
    (folder / "report.md").write_text("\n".join(lines), "utf-8")
    return {"schema": 1, "files": dict(files), **record, "findings": plain(findings)}


def _recipe_page(record: Json) -> list[str]:
    """The page for a backend's own recipe: what ran, and the quality measured for each output."""
    told = record["record"]
    return [
        f"# Quantized for {record['target']}, by {record['quantizer']}",
        "",
        f"* **Quantizer**: {record['quantizer']} {told.get(record['quantizer']) or ''}".rstrip(),
        f"* **SDK**: {record['sdk'] or 'none'}",
        f"* **Samples**: {told.get('samples')}",
        "",
        *(f"* {name}: {_named(values)}" for name, values in told.get("quality", {}).items()),
    ]


def _page(record: Json) -> list[str]:
    """The page: what ran, on which data, what it cost, and the files in the folder."""
    numbers, own = record["numbers"], record["numbers"]["quantizers_own"]
    calibration, samples = record["calibration"], record["numbers"]["samples"]
    judged = "held out" if samples["held_out"] else "of those it was calibrated on"
    return [
        f"# {record['precision']} for {record['target']}, by {record['quantizer']}",
        "",
        f"* **Quantizer**: {record['toolchain'] or record['quantizer']}"
        f" ({', '.join(f'{name} {version}' for name, version in sorted(record['versions'].items()))})",
        f"* **SDK**: {record['sdk'] or 'none'}",
        f"* **Options**: {_named(record['options'])}",
        f"* **Calibration**: {calibration['seen']} samples ({calibration['kind']});"
        f" judged on {samples['count']} {judged}",
        f"* **Seconds**: {_named(record['seconds'])}",
        *(f"* {note}" for note in record["notes"]),
        "",
        "## Signal to noise against the model as it was given",
        "",
        f"* deploykit's simulation: **{_db(numbers['sqnr_db'])}**",
        f"* the quantizer's own: {_db(own['sqnr_db']) if own['exact'] or own['agreement_db'] is not None else 'none'}"
        f"; the two agree to {'the bit' if own['exact'] else _db(own['agreement_db'])}",
        "",
        "| output | SQNR | cosine | largest error |",
        "|---|---|---|---|",
        *(
            f"| {row['name']} | {_db(row['sqnr_db'])} | {_number(row['cosine'])} | {_number(row['max_error'])} |"
            for row in numbers["outputs"]
        ),
        "",
    ]


def _named(values: Json) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None) or "none"


def _db(value: float | None) -> str:
    return "no difference" if value is None else f"{value:.2f} dB"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
