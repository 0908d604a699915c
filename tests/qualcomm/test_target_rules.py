from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from deploykit.backend.targets import Target
from deploykit.findings import Finding, SubjectKind
from deploykit.tables.devices import Device
from deploykit_qualcomm.devices import qualcomm_device
from deploykit_qualcomm.resolving import RULES as SDK_RULES
from deploykit_qualcomm.resolving import TARGET_RULES, SdkChoice, SdkMatch
from deploykit_qualcomm.tables import load_sdk_table
from tables import each_row


def chosen(request: str, table: str, match: SdkMatch, *, uses_tools: bool = True) -> SdkChoice:
    return SdkChoice(request=request, table=load_sdk_table(table), match=match, uses_tools=uses_tools)


def target(device: str | Device, sdk: str = "2.50.0", backend: str = "qnn-htp") -> Target:
    found = qualcomm_device(device) if isinstance(device, str) else device
    return Target(device=found, backend=backend, requested=sdk, sdk=load_sdk_table(sdk))


def without(device: str, fact: str) -> Device:
    found = qualcomm_device(device)
    return replace(found, facts={name: value for name, value in found.facts.items() if name != fact})


EXACT = chosen("2.33.0", "2.33.0", "exact")
CASES: dict[str, tuple[Any, Any]] = {
    "QNN001": (chosen("2.33.5", "2.33.0", "lower"), EXACT),
    "QNN002": (chosen("2.52", "2.51.0", "newer"), EXACT),
    "QNN003": (chosen("2.33.0.1", "2.33.0", "unlisted-build"), chosen("2.33.0.250327", "2.33.0", "build")),
    "QNN004": (chosen("2.51", "2.51.0", "series"), chosen("2.51", "2.51.0", "series", uses_tools=False)),
    "QNN005": (chosen("2.20", "2.29.0", "below"), EXACT),
    "QNN010": (target("sc7280x"), target("sm8650")),
    "QNN011": (target("sdm865"), target("sm8350")),
    "QNN012": (target("qcs6490"), target("qcm6490")),
    "QNN013": (target("sc8480xp"), target("sc8380xp")),
    "QNN014": (target("qcs6490"), target("sm8650")),
    "QNN015": (target(without("sm8550", "vtcm_mb")), target("sm8550")),
    "QNN016": (target("sm8850", "2.33.0"), target("sm8850", "2.47.0")),
    "QNN017": (target("sm8850"), target("sm8750")),
    "QNN018": (target(without("sm8650", "soc_model")), target("sm8650")),
}


@each_row("code", [rule.code for rule in (*SDK_RULES, *TARGET_RULES)])
def test_each_rule_fires_and_stays_silent(code: str, as_expected: Callable[[str, Iterable[Finding]], None]) -> None:
    rules: Any = SDK_RULES if code in [rule.code for rule in SDK_RULES] else TARGET_RULES
    triggering, clean = CASES[code]
    findings = list(rules[code].run(triggering))
    as_expected(code, findings)
    assert not list(rules[code].run(clean))
    for finding in findings:
        assert finding.code == code
        assert finding.sources
        assert finding.hint
        assert finding.subject.kind in (SubjectKind.SDK, SubjectKind.TARGET)
