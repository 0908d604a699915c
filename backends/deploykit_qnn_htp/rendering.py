"""Every file of a qnn-htp package: models, encodings, calibration data, configurations, scripts. It writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path, PurePosixPath

from onnx import ModelProto

from deploykit.backend.backend import BytesFile, CopiedFile, JsonFile, PackageFile, Situation, TextFile, copied_model
from deploykit.errors import InputError
from deploykit.findings.records import Json
from deploykit.model.weights import whole_model
from deploykit.report.rendering import render
from deploykit_qnn_htp.commands import HOST, graph_name
from deploykit_qnn_htp.draft import PROVIDER_TOOL
from deploykit_qnn_htp.planning import ConversionPart, ConversionPlan, in_contexts
from deploykit_qnn_htp.prepare import PreparedConversions
from deploykit_qnn_htp.provider import ProviderPart
from deploykit_qualcomm.qnn_types import mangled

__all__ = ["package_files"]


def package_files(prepared: PreparedConversions, plan: ConversionPlan, templates: Path | None) -> Iterator[PackageFile]:
    """Yields the files of the package one by one, so that calibration data is never in memory as a whole."""
    situation, parts = prepared.whole.situation, plan.details or ()
    # The weight files that parts of a model cut by size read, each once.
    models, found = {part.paths.model for part in parts}, dict[str, Path]()
    for file in (file for part in parts if part.context for file in part.draft.situation.model.external):
        place = str(PurePosixPath("model", file.location))
        if found.setdefault(place, file.path) != file.path or place in models:
            raise InputError(
                f"{file.path}: another file of this package is called {file.location}",
                next="save one of the models again, with another name for its data",
            )
    yield from (CopiedFile(place, source) for place, source in found.items())
    for part in parts:
        if part.provider is not None:
            yield from _provider(part.provider, situation, plan, templates)
            return
        if part.segment:
            data = whole_model(part.draft.situation.model.proto).SerializeToString(deterministic=True)
            yield BytesFile(part.paths.model, data)
        else:
            yield from copied_model(situation, part.paths.model)
        if part.conversion is not None:
            yield TextFile(part.paths.encodings, part.conversion.text)
            floats = sorted(part.conversion.float_tensors)
            if floats:
                value = {"schema": 1, "float_tensors": floats}
                yield JsonFile("encodings/float_tensors.json", value)
        # ``check_types.py`` compares the converter's types with these.
        yield JsonFile(part.paths.types, {"schema": 1, "types": dict(sorted(part.precision.expected.items()))})
        own = part.draft.situation
        if own.request.calibration is not None and part.candidate.route.input_list:
            from deploykit.accuracy.samples.calibration import read_samples

            lines = []
            for index, sample in enumerate(read_samples(own.request.calibration, own.facts)):
                words = []
                for position, (name, values) in enumerate(sample.items()):
                    file_name = f"calibration/sample_{index:05d}/input_{position}.raw"
                    yield BytesFile(file_name, values.tobytes())
                    words.append(f"{name}:={file_name}")
                lines.append(" ".join(words))
            yield TextFile("calibration/input_list.txt", "\n".join(lines) + "\n")
    for path, value in plan.configs.items():
        yield JsonFile(path, value)
    yield from scripts(situation, plan, parts, templates)


def _provider(
    provider: ProviderPart, situation: Situation, plan: ConversionPlan, templates: Path | None
) -> Iterator[PackageFile]:
    """The provider's files without those for the device; there the binary is loaded as any other.

    If the SDK compiles a DLC that the provider's backend made, the build script is this backend's.
    """
    theirs = provider.files(templates)
    yield from (file for file in theirs if not (provider.dlc and file.path.startswith("scripts/build.")))
    for path in plan.configs.keys() - provider.decision.configs.keys():
        yield JsonFile(path, plan.configs[path])
    built = ("scripts/check_types.py", *(() if provider.dlc else ("scripts/build.sh",)))
    yield from (file for file in scripts(situation, plan, plan.details or (), templates) if file.path not in built)


def scripts(
    situation: Situation,
    plan: ConversionPlan,
    parts: Sequence[ConversionPart],
    templates: Path | None,
) -> Iterator[PackageFile]:
    """Yields the scripts that build and run; those for the host only if several models have to be chained."""
    values = _values(situation, plan, parts)
    names = ["build.sh", "check_types.py", *(["run_on_device.sh"] if values["device_steps"] else [])]
    names += ["run_tail.py"] if values["has_tail"] else []
    names += ["run_host.py"] if values["chain"] else []
    for name in names:
        text = render(f"qnn_htp/scripts/{name}.j2", values, templates=templates)
        yield TextFile(f"scripts/{name}", text, executable=True)


def _values(situation: Situation, plan: ConversionPlan, parts: Sequence[ConversionPart]) -> Json:
    device, arch = situation.target.device, parts[0].draft.arch
    # True if models run one after the other: the parts of a cut graph.
    cut = bool(situation.segments) or 1 < len(parts) == len(in_contexts(parts))
    # The names that the chain on the host writes: the outputs of the device, and those of the tail.
    names, inputs = list(situation.facts.outputs), set(situation.facts.inputs)
    if situation.tail is not None:
        tail = ModelProto.FromString(situation.tail).graph
        names += [item.name for item in tail.output]
        inputs |= {item.name for item in tail.input}  # some of them the device does not read
    # The conditions that build.sh checks after a conversion.
    gates = {}
    for part in parts:
        legacy = part.candidate.route.legacy
        gates[f"convert{part.paths.suffix}"] = {
            "has_encodings": part.conversion is not None,
            "legacy": legacy,
            "compares_types": legacy and bool(part.precision.expected),
            "net_json": part.paths.net_json,
            "types": part.paths.types,
        }
    return {
        "deploykit": version("deploykit"),
        "device": device.name,
        "sdk_version": str(plan.sdk["version"]),
        "exact_build": str(plan.sdk["version"]).count(".") >= 3,
        "route": plan.route.id if plan.route is not None else "",
        "steps": [step for step in plan.steps if step.where == "host" and step.tool != PROVIDER_TOOL],
        "dlc": parts[0].provider.dlc if parts[0].provider is not None else "",
        "device_steps": [step for step in plan.steps if step.where == "device"],
        "gates": gates,
        "graph": graph_name(situation.request.model),
        "contexts": list(dict.fromkeys(part.paths.context for part in parts)),
        "host": HOST,
        "arch": arch,
        "arch_number": arch.lstrip("v"),
        "has_tail": situation.tail is not None,
        "chain": _chain(situation, parts) if (cut or situation.tail is not None) else [],
        "single_input": len(inputs - set(situation.facts.outputs)) == 1,
        "models": [part.paths.model for part in parts] + (["model/tail.onnx"] if situation.tail is not None else []),
        "outputs": list(dict.fromkeys(names)),
    }


def _chain(situation: Situation, parts: Sequence[ConversionPart]) -> list[Json]:
    """One row per conversion: its files on the device, and where each input comes from, with names in the tools' form.

    An input without ``folder`` is the model's own. ``results`` is True if some of its outputs are the model's.
    """
    rows = list[Json]()
    made = dict[str, str]()
    for part in parts:
        facts, paths = part.draft.situation.facts, part.paths
        rows.append(
            {
                "name": part.segment or paths.graph,
                "list": paths.device_list,
                "output": paths.device_output,
                "inputs": [{"name": mangled(name), "folder": made.get(name, "")} for name in facts.inputs],
                "results": bool(set(facts.outputs) & set(situation.facts.outputs)),
            }
        )
        made |= dict.fromkeys(facts.outputs, paths.device_output)
    return rows
