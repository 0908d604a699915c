"""The scripts of a package: what each template is told. Nothing is quoted here; that is the templates' business."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from onnx import ModelProto

from deploykit.backend.backend import PackageFile, Situation, TextFile
from deploykit.backend.plans import Plan
from deploykit.report.rendering import render
from deploykit_qnn_htp.commands import HOST
from deploykit_qnn_htp.naming import graph_name
from deploykit_qnn_htp.parts import Part, in_contexts
from deploykit_qnn_htp.routes import LENT_TOOL
from deploykit_qualcomm.qnn_types import mangled

__all__ = ["scripts"]


def scripts(
    situation: Situation, plan: Plan[tuple[Part, ...]], parts: Sequence[Part], templates: Path | None
) -> Iterator[PackageFile]:
    """The scripts that build and run; those for the host only where more than one model has to be chained."""
    values = _values(situation, plan, parts)
    names = ["build.sh", "check_types.py", *(["run_on_device.sh"] if values["device_steps"] else [])]
    names += ["run_tail.py"] if values["has_tail"] else []
    names += ["run_host.py"] if values["chain"] else []
    for name in names:
        text = render(f"qnn_htp/scripts/{name}.j2", values, templates=templates)
        yield TextFile(path=f"scripts/{name}", text=text, executable=True)


def _values(situation: Situation, plan: Plan[tuple[Part, ...]], parts: Sequence[Part]) -> dict[str, Any]:
    device, arch = situation.target.device, parts[0].draft.arch
    return {
        "deploykit": version("deploykit"),
        "device": device.name,
        "sdk_version": str(plan.sdk["version"]),
        "exact_build": str(plan.sdk["version"]).count(".") >= 3,
        "route": plan.route.id if plan.route is not None else "",
        "steps": [step for step in plan.steps if step.where == "host" and step.tool != LENT_TOOL],
        "lent": parts[0].lent.dlc if parts[0].lent is not None else "",
        "device_steps": [step for step in plan.steps if step.where == "device"],
        "gates": {f"convert{part.paths.suffix}": _gate(part) for part in parts},
        "graph": graph_name(situation.request.model),
        "contexts": list(dict.fromkeys(part.paths.context for part in parts)),
        "host": HOST,
        "arch": arch,
        "arch_number": arch.lstrip("v"),
        "has_tail": situation.tail is not None,
        "chain": _chain(situation, parts) if _is_chained(situation, parts) else [],
        "single_input": len(_inputs(situation)) == 1,
        "models": [part.paths.model for part in parts] + (["model/tail.onnx"] if situation.tail is not None else []),
        "outputs": _outputs(situation),
    }


def _is_chained(situation: Situation, parts: Sequence[Part]) -> bool:
    """True where one model after the other runs: the parts of a cut graph, or what the host does at the end."""
    cut = bool(situation.segments) or 1 < len(parts) == len(in_contexts(parts))
    return cut or situation.tail is not None


def _gate(part: Part) -> dict[str, Any]:
    """What build.sh looks at after a conversion."""
    legacy = part.candidate.route.legacy
    return {
        "has_encodings": part.conversion is not None,
        "legacy": legacy,
        "compares_types": legacy and bool(part.precision.expected),
        "net_json": part.paths.net_json,
        "types": part.paths.types,
    }


def _outputs(situation: Situation) -> list[str]:
    """What the chain on the host writes: the outputs of the device, and those of the tail."""
    names = list(situation.facts.outputs)
    if situation.tail is not None:
        names += [item.name for item in ModelProto.FromString(situation.tail).graph.output]
    return list(dict.fromkeys(names))


def _inputs(situation: Situation) -> set[str]:
    """The inputs of the model as it was given: the tail may read some that the device does not."""
    names = set(situation.facts.inputs)
    if situation.tail is not None:
        names |= {item.name for item in ModelProto.FromString(situation.tail).graph.input}
    return names - set(situation.facts.outputs)


def _chain(situation: Situation, parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Per conversion: its files on the device and where each input comes from, by the tools' form of the names.

    An input without ``folder`` is one of the model's own. ``results`` says that outputs of the model are among its own.
    """
    rows: list[dict[str, Any]] = []
    made: dict[str, str] = {}
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
