"""Which wheel's compiler serves a runtime, what its binaries are for, and the rules about that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from deploykit.findings import Finding, Severity
from deploykit_qualcomm.carriers import Carried, Fit, carrier_for, forms_of, machines
from deploykit_qualcomm.devices import qualcomm_device
from deploykit_qualcomm.rules.carriers import RULES
from deploykit_qualcomm.tables import Wheel, tables
from tables import each_row


def wheel(version: str) -> Wheel:
    return next(wheel for wheel in tables().wheels if wheel.version == version)


def carried(version: str, device: str = "sm8650", runtime: str = "", *, insisted: bool = False) -> Carried:
    return Carried(wheel=wheel(version), device=qualcomm_device(device), runtime=runtime, insisted=insisted)


CASES: dict[str, tuple[Any, Any]] = {
    "QNN295": (carried("1.22.0"), carried("1.22.2")),
    "QNN296": (carried("1.22.0", "sc8380xp"), carried("2.7.0")),
    "QNN297": (carried("1.22.0", runtime="2.34"), carried("1.22.2", runtime="2.36.1")),
    "QNN298": (carried("1.23.2", "sc8380xp"), carried("1.22.2")),
}


@pytest.mark.parametrize("code", CASES)
def test_each_rule_fires_and_stays_silent(code: str, as_expected: Callable[[str, Iterable[Finding]], None]) -> None:
    triggering, clean = CASES[code]
    as_expected(code, list(RULES[code].run(triggering)))
    assert not list(RULES[code].run(clean))


@each_row(
    ("runtime", "version"),
    [
        *(("2.33", "1.22.0"), ("2.33.2", "1.22.0"), ("2.33.0.250327", "1.21.1"), ("2.34.0", "1.22.0")),
        *(("2.36", "1.22.2"), ("2.36.0", "1.22.0"), ("2.37.1", "1.23.2"), ("2.42", "1.24.3"), ("2.46.0", "1.24.3")),
        *(("2.47", "2.3.0"), ("2.51", "2.7.0"), ("2.60", "2.7.0"), ("2.21", None)),
    ],
)
def test_a_runtime_is_served_by_the_newest_wheel_that_is_not_newer(runtime: str, version: str | None) -> None:
    found = carrier_for(runtime)
    assert (None if found is None else found.version) == version


@each_row(
    ("version", "device", "fit"),
    [
        *(("1.22.0", "sc8380xp", Fit.ITSELF), ("1.22.0", "sm8550", Fit.ACCEPTED), ("1.22.0", "sm8650", Fit.ACCEPTED)),
        ("1.22.0", "sm8350", Fit.REFUSED),  # v68: a binary for v73 is refused
        ("1.22.0", "sm7550", Fit.REFUSED),  # v73 with less VTCM than the binary uses
        *(("1.22.2", "sm8350", Fit.ITSELF), ("1.18.1", "sm8550", Fit.ITSELF), ("2.7.0", "sm8750", Fit.ITSELF)),
    ],
)
def test_what_a_binary_is_for(version: str, device: str, fit: Fit) -> None:
    assert carried(version, device).fit is fit


def severity(asked: Carried) -> Severity:
    (found,) = RULES["QNN295"].run(asked)
    return found.severity


def test_another_chip_is_an_error_unless_it_is_insisted_on_and_accepts_it() -> None:
    assert severity(carried("1.22.0")) is Severity.ERROR
    assert severity(carried("1.22.0", insisted=True)) is Severity.WARNING
    assert severity(carried("1.22.0", "sm8350", insisted=True)) is Severity.ERROR


def test_the_words_name_both_chips_and_what_nobody_saw() -> None:
    (found,) = RULES["QNN295"].run(carried("1.22.0"))
    assert "SC8380XP (soc_model 60, v73)" in found.message and "SM8650 (soc_model 57, v75)" in found.message
    assert "nobody loaded one on a device" in found.message
    (found,) = RULES["QNN296"].run(carried("1.22.0"))
    assert "Windows on ARM with a Snapdragon" in found.message and "hosted ARM runner" in found.message
    assert not list(RULES["QNN296"].run(carried("1.18.1"))), "its compiler runs under Wine"


def test_a_series_and_another_release_are_told_apart() -> None:
    (series,) = RULES["QNN297"].run(carried("1.22.0", runtime="2.33"))
    (other,) = RULES["QNN297"].run(carried("1.22.0", runtime="2.35"))
    assert "older than 2.33.2 does not load it" in series.message
    assert "the nearest in public wheels that is not newer than 2.35" in other.message


def test_forms_are_those_of_a_provider_that_was_run() -> None:
    for known in tables().wheels:
        forms = forms_of(known)
        if known.provider == "plugin":
            assert forms is known
        else:
            assert any("compile" in host.observed for host in forms.host) and (forms.loadable or forms.asked_by)
    assert forms_of(wheel("1.22.0")).refuses == wheel("1.22.2").refuses


def test_the_machines_of_a_wheel_are_those_that_can_be_used() -> None:
    assert machines(wheel("1.22.0")) == "Windows on ARM"
    assert machines(wheel("1.22.2")) == "Linux x86-64 under Wine or Windows x86-64"
    assert machines(wheel("2.7.0")) == "Linux x86-64"
    assert machines(wheel("1.18.1")) == "Linux x86-64 under Wine or Windows x86-64"
