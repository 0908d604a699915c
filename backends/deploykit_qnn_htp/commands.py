"""The commands of a route as argv tuples. Every flag is first looked up in the table of its tool and version.

A flag that the table does not list is not written: that is a defect of deploykit, not the user's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import chain
from pathlib import Path
from typing import Any

from deploykit.backend.plans import Step
from deploykit.errors import DefectError
from deploykit.tables.capabilities import SdkTable, Status
from deploykit_qnn_htp.draft import Intent, RouteCandidate

__all__ = ["HOST", "Paths", "from_dlc", "graph_name", "net_run", "shared_steps", "steps"]


HOST = "x86_64-linux-clang"
# The library with which the context-binary generator reads DLCs.
DLC_LIBRARY = "libQnnModelDlc.so"


def listed_step(
    step_id: str,
    sdk: SdkTable,
    tool: str,
    flags: Sequence[tuple[str, ...]],
    inputs: Sequence[str],
    *outputs: str,
    **more: Any,
) -> Step:
    """A run of a tool: its flags with their values, and the files that it reads and makes.

    Raises DefectError for a flag or value that the SDK's table does not list.
    """
    if tool not in sdk.tools():
        raise DefectError(f"{sdk.sdk} {sdk.version}: no table of the flags of {tool}")
    for flag, *values in flags:
        row = sdk.flag(tool, flag)
        if row is None or row.status is not Status.SUPPORTED:
            status = "not listed" if row is None else row.status
            raise DefectError(f"{tool} {sdk.version}: the flag {flag} is {status}")
        least, most = {"switch": (0, 0), "value": (1, 1), "values": (1, 99)}[row.kind]
        if not least <= len(values) <= most:
            raise DefectError(f"{tool} {flag}: {len(values)} values for a flag of kind {row.kind}")
        wrong = [value for value in values if row.values and row.kind == "value" and value not in row.values]
        if wrong:
            raise DefectError(f"{tool} {flag}: {wrong[0]!r} is not one of {', '.join(row.values)}")
    return Step(step_id, tool=tool, argv=(tool, *chain(*flags)), inputs=tuple(inputs), outputs=outputs, **more)


class Paths:
    """The paths inside the package for one graph name; ``number`` counts the segments of a cut model.

    Segments share the configuration of the run, which names no graph. ``context`` is the name of a context that several
    graphs share: then ``number`` counts contexts.
    """

    def __init__(self, graph: str, number: int | None = None, context: str = "") -> None:
        self.graph = graph
        self.binary = f"{context or graph}_ctx"
        self.group = "" if number is None else f"-{number}"
        self.suffix = f"-{graph}" if context else self.group
        self.model = f"model/{graph}.onnx"
        self.encodings = f"encodings/{graph}.json"
        self.input_list = "calibration/input_list.txt"
        self.cpp = f"artifacts/{graph}.cpp"
        self.weights = f"artifacts/{graph}.bin"
        self.net_json = f"artifacts/{graph}_net.json"
        self.library = f"artifacts/lib/{HOST}/lib{graph}.so"
        self.dlc = f"artifacts/{graph}.dlc"
        self.context = f"artifacts/{self.binary}.bin"
        self.types = f"config/intended_types{self.suffix}.json"
        self.outer = f"config/backend_config{self.group}.json"
        self.inner = f"config/htp_prepare{self.group}.json"
        self.outer_run = "config/run_config.json"
        self.inner_run = "config/htp_run.json"
        self.device_list = f"input_list{self.group}.txt"
        self.device_output = f"output{self.group}"

    def of(self, *, model: str, context: str, dlc: str) -> Paths:
        """A copy of the paths with another model, context binary and DLC."""
        paths = copy(self)
        paths.model, paths.context, paths.dlc = model, context, dlc
        return paths


def shared_steps(graphs: Sequence[tuple[RouteCandidate, Paths]]) -> tuple[Step, ...]:
    """The steps that convert every graph of a context into a DLC, and compose these into one context binary."""
    conversions = [next(_dlc(candidate, paths)) for candidate, paths in graphs]
    candidate, paths = graphs[0]
    dlcs = [paths.dlc for _, paths in graphs]
    return (*conversions, _context(candidate.draft.sdk, paths, model=DLC_LIBRARY, dlcs=dlcs))


def steps(candidate: RouteCandidate, paths: Paths) -> tuple[Step, ...]:
    """The steps of one conversion: convert, build the model library (if the route has one), compile, run on
    the device.
    """
    if not candidate.route.legacy:
        return tuple(_dlc(candidate, paths))
    draft, route = candidate.draft, candidate.route
    flags: list[tuple[str, ...]] = [("--input_network", paths.model), ("--output_path", paths.cpp)]
    inputs, made = [paths.model], (paths.cpp, paths.weights)
    if draft.completed is not None and draft.intent in (Intent.INTEGER, Intent.MIXED):
        flags.append(("--quantization_overrides", paths.encodings))
        inputs.append(paths.encodings)
    if route.quantizer_v2:
        flags.append(("--use_quantize_v2",))
    if route.float_fallback:
        flags.append(("--float_fallback",))
    if route.float_fallback or not route.input_list:
        flags.append(("--float_bitwidth", "32" if draft.intent is Intent.FLOAT32 else "16"))
    if draft.intent not in (Intent.FLOAT16, Intent.FLOAT32):
        weights, activations = map(str, draft.widths)
        flags += [("--act_bitwidth", activations), ("--weights_bitwidth", weights), ("--bias_bitwidth", "32")]
    if route.input_list:
        flags.append(("--input_list", paths.input_list))
        inputs.append(paths.input_list)
    if draft.intent is Intent.CALIBRATED:
        flags += [("--use_per_channel_quantization",), ("--use_per_row_quantization",)]
    # Without this flag the legacy converters turn 4-D inputs and outputs into NHWC, which silently changes the data.
    flags.append(("--preserve_io", "layout"))
    note = "writes .cpp, .bin and _net.json; build.sh compares the types in _net.json with the intended ones"
    build = [("-c", paths.cpp), ("-b", paths.weights), ("-o", "artifacts/lib"), ("-t", HOST)]
    return (
        listed_step(f"convert{paths.suffix}", draft.sdk, route.tool, flags, inputs, *made, paths.net_json, note=note),
        listed_step(f"model-lib{paths.suffix}", draft.sdk, "qnn-model-lib-generator", build, made, paths.library),
        _context(draft.sdk, paths, model=paths.library),
        net_run(draft.sdk, paths),
    )


def _dlc(candidate: RouteCandidate, paths: Paths) -> Iterator[Step]:
    draft, route = candidate.draft, candidate.route
    flags, inputs = [("--input_network", paths.model), ("--output_path", paths.dlc)], [paths.model]
    if draft.completed is not None and route.encodings:
        flags.append(("--quantization_overrides", paths.encodings))
        inputs.append(paths.encodings)
    flags.append(("--float_bitwidth", "32" if draft.intent is Intent.FLOAT32 else "16"))
    if draft.sdk.has_flag(route.tool, "--target_backend"):
        flags.append(("--target_backend", "HTP"))
    note = "no public tool lists the types inside a DLC by known flags: compare with qairt-dlc-info by hand"
    yield listed_step(f"convert{paths.suffix}", draft.sdk, route.tool, flags, inputs, paths.dlc, note=note)
    yield from from_dlc(draft.sdk, paths)


def from_dlc(sdk: SdkTable, paths: Paths) -> Iterator[Step]:
    """The steps that compile a DLC into a context binary and run that on the device."""
    yield _context(sdk, paths, model=DLC_LIBRARY, dlcs=[paths.dlc])
    yield net_run(sdk, paths)


def _context(sdk: SdkTable, paths: Paths, *, model: str, dlcs: Sequence[str] = ()) -> Step:
    flags = [("--backend", "libQnnHtp.so"), ("--model", model)]
    if dlcs:
        flags.append(("--dlc_path", ",".join(dlcs)))  # the tool composes several DLCs into one context, says its help
    flags += [("--binary_file", paths.binary), ("--output_dir", "artifacts"), ("--config_file", paths.outer)]
    read = (*(dlcs or [model]), paths.outer, paths.inner)
    tool = "qnn-context-binary-generator"
    return listed_step(f"context-binary{paths.group}", sdk, tool, flags, read, paths.context)


def net_run(sdk: SdkTable, paths: Paths) -> Step:
    """The step that loads a context binary on the device and runs it."""
    flags = [
        ("--backend", "libQnnHtp.so"),
        ("--retrieve_context", paths.context),
        ("--input_list", paths.device_list),
        ("--output_dir", paths.device_output),
        ("--config_file", paths.outer_run),
    ]
    read = (paths.context, paths.outer_run, paths.inner_run)
    return listed_step(f"net-run{paths.group}", sdk, "qnn-net-run", flags, read, paths.device_output, where="device")


def graph_name(model: Path) -> str:
    """The graph's name: the model's stem with everything but letters, digits and underscores replaced.

    The tools derive C symbols and file names from it, so it starts with a letter.
    """
    name = re.sub(r"[^A-Za-z0-9_]+", "_", model.stem).strip("_")
    return name if name and name[0].isalpha() else f"model_{name}".rstrip("_")
