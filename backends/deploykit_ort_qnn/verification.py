"""Judges an ort-qnn package on disk: options, model, context binary, types and numbers. It compiles nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from deploykit.backend.backend import Check, Verification
from deploykit.errors import DeploykitError
from deploykit.findings import Finding
from deploykit.findings.records import Json
from deploykit.tables.reading import read_json
from deploykit_ort_qnn.compiler.contexts import inspect_context
from deploykit_ort_qnn.compiler.dlc import DLC
from deploykit_ort_qnn.compiler.emulation import NUMBERS, numbers_scope
from deploykit_ort_qnn.compiler.graphs import read_graph
from deploykit_ort_qnn.compiler.precision import (
    EVIDENCE,
    PrecisionScope,
    actual_types,
    dlc_scope,
    quantized_tensors,
    read_evidence,
)
from deploykit_ort_qnn.planning import BINARY, COMPILE, CONTEXT, GRAPHS, MODEL, RUN, TYPES
from deploykit_ort_qnn.provider_keys import load_options
from deploykit_ort_qnn.rules.compiled import DLC_RULES, PACKAGE_RULES, PackageScope
from deploykit_ort_qnn.rules.numerics import PRECISION_RULES
from deploykit_ort_qnn.rules.numerics import RULES as NUMERIC_RULES
from deploykit_qualcomm.carriers import carrier, chip_on_arm, compiles_for_any_chip

__all__ = ["verify"]


def verify(package: Path, manifest: Json) -> Verification:
    """The checks, the intended and actual types of every tensor that the compiler kept, and the findings."""
    checks = []
    try:
        onnx.checker.check_model(str(package / MODEL))
        checks.append(Check("model-valid", ok=True, detail=f"{MODEL}: valid ONNX"))
    except (onnx.checker.ValidationError, OSError, ValueError) as error:
        # This operator of ONNX's own domain exists in ONNX Runtime only, and the provider takes it.
        known = str(error).startswith("No Op registered for SimplifiedLayerNormalization")
        checks.append(Check("model-valid", ok=known, detail=f"{MODEL}: {str(error).splitlines()[0]}"))
    findings = list(_package_findings(package, manifest, checks))
    scope = _scope(package)
    intended = dict[str, str]()
    actual = dict[str, str]()
    detail = "not compiled yet: the compiler's types are not known"
    if scope is not None:
        actual = actual_types(scope)
        intended = {name: scope.intended[name] for name in actual}
        wrong = [name for name, kind in actual.items() if kind != intended[name]]
        findings += PRECISION_RULES.run(scope)
        untold = "" if scope.schematics else "; this provider does not tell which float was chosen"
        detail = f"{len(actual)} tensors compared, {len(wrong)} differ{untold}"
    checks.append(Check("compiled-types", ok=True, detail=detail))
    # In the recorded comparison a difference is a finding about the model, not damage to the package.
    told = "not emulated yet"
    if (package / NUMBERS).exists():
        numbers = numbers_scope(read_json(package / NUMBERS))
        told = "; ".join(map(str.strip, numbers.device.lines())) if numbers.device is not None else "not judged"
        findings += NUMERIC_RULES.run(numbers)
    checks.append(Check("emulated-numbers", ok=True, detail=told))
    if (package / DLC).exists():
        try:
            dlc = dlc_scope(package)
            told = f"metadata {dlc.metadata}, {len(dlc.compared)} tensors compared, {len(dlc.wrong)} differ"
            checks.append(Check("dlc-types", ok=True, detail=told))
            findings += DLC_RULES.run(dlc)
        except DeploykitError as error:
            checks.append(Check("dlc-types", ok=False, detail=f"{error.what}: {error.why}"))
    return Verification(tuple(checks), intended, actual=actual, findings=tuple(findings))


def _package_findings(package: Path, manifest: Json, checks: list[Check]) -> Iterator[Finding]:
    options = dict(read_json(package / COMPILE).get("provider_options", {}))
    run = dict(read_json(package / RUN).get("provider_options", {}))
    context: Json = {}
    if (package / BINARY).exists() or (package / CONTEXT).exists():
        try:
            context = inspect_context(package / (BINARY if (package / BINARY).exists() else CONTEXT))
            checks.append(Check("context-readable", ok=True, detail=f"built by QAIRT {context['build']}"))
        except DeploykitError as error:
            # Without the vendor's library the binary cannot be read, which says nothing against the package.
            checks.append(Check("context-readable", ok=True, detail=f"not read: {error.why or error.what}"))
    target, wheel = manifest.get("target") or {}, carrier(str(context.get("build", "")))
    # Some compilers build only for the chip that they stand on.
    own_chip = None if wheel is None or compiles_for_any_chip(wheel) else chip_on_arm().fact("soc_model")
    scope = PackageScope(
        provider_options=options,
        soc_model=target.get("soc_model"),
        context=context,
        own_chip=own_chip,
        unknown_options=tuple(name for name in (*options, *run) if load_options().find(name) is None),
    )
    found = PACKAGE_RULES.run(scope)
    bad = [finding for finding in found if finding.blocks]
    checks.append(
        Check(
            "provider-options",
            ok=not bad,
            detail="; ".join(finding.message for finding in bad) or "every option is known, soc_model is set",
        )
    )
    yield from found


def _scope(package: Path) -> PrecisionScope | None:
    # compile.py on a machine without deploykit leaves the graphs that it gave to the compiler.
    asked = sorted((package / GRAPHS).parent.glob(Path(GRAPHS).name))
    if (package / EVIDENCE).exists():
        graphs, schematics = read_evidence(package / EVIDENCE)
    elif asked:
        graphs, schematics = tuple(map(read_graph, asked)), ()
    else:
        return None
    types = read_json(package / TYPES)
    model = onnx.load(package / MODEL, load_external_data=False)
    return PrecisionScope(
        graphs=graphs,
        schematics=schematics,
        intended=dict(types["types"]),
        stored=dict(types["stored"]),
        quantized=quantized_tensors(model),
        strict=bool(types["strict"]),
    )
