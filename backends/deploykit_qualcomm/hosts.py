"""Which compilers inside the wheels this kind of machine can execute, and by which toolchain; it executes none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from deploykit.backend.probes import CheckLine, Surroundings
from deploykit.system.environments import environment_of
from deploykit.system.specs import ToolchainSpec
from deploykit_qualcomm.rows import Wheel
from deploykit_qualcomm.tables import tables
from deploykit_qualcomm.toolchains import qualcomm_toolchains

__all__ = ["LINUX", "WINE", "carrier", "compilable", "host_toolchain", "machines", "probe_hosts"]

LINUX, WINE = "linux-x86-64", "wine-x86-64"
_TOOLCHAIN = "htp"


@cache
def host_toolchain(sdk: str) -> ToolchainSpec | None:
    """The toolchain that holds the compiler of one release, None where there is none."""
    named = (spec for spec in qualcomm_toolchains("ort-qnn") if spec.name == _TOOLCHAIN)
    return next((spec for spec in named if spec.version == sdk), None)


def compilable(wheel: Wheel) -> bool:
    """True when a Linux x86-64 machine can compile with this wheel's own provider, as it is or by a toolchain."""
    return wheel.runs_on(LINUX) is not None or host_toolchain(wheel.sdk) is not None


def machines(wheel: Wheel) -> str:
    """The kinds of machines on which a wheel's compiler can be executed, in words: one that only Wine runs needs a
    toolchain."""
    runs = dict.fromkeys(run for host in wheel.host for run in host.runs)
    has = [words for run, words in _PLACES.items() if run in runs]
    if host_toolchain(wheel.sdk) is None:
        has = [words for words in has if words != _PLACES[WINE]]
    return " or ".join(has)


_PLACES = {
    LINUX: "Linux x86-64",
    WINE: "Linux x86-64 under Wine",
    "windows-x86-64": "Windows x86-64",
    "windows-arm64": "Windows on ARM",
}


def carrier(build: str) -> Wheel | None:
    """The newest wheel that carries a build, by its id as binaries state it: ``v2.36.1.250708151608_123266``."""
    plain = f"{build.removeprefix('v').partition('_')[0]}"
    found = [wheel for wheel in tables().wheels if plain.startswith(wheel.build)]
    return found[-1] if found else None


def probe_hosts(around: Surroundings) -> Iterator[CheckLine]:
    """One line per compiler that a toolchain brings, and one that names those for which another machine is needed."""
    for wheel in tables().wheels:
        spec = host_toolchain(wheel.sdk)
        if spec is not None:
            yield _toolchain_line(around, wheel, spec)
    elsewhere = {wheel.sdk: wheel.version for wheel in tables().wheels if not compilable(wheel)}
    named = ", ".join(f"{sdk} (wheel {version})" for sdk, version in elsewhere.items())
    yield CheckLine(
        id="htp-elsewhere",
        state="absent",
        detail=f"compilers in public wheels that no route here runs: {named}",
        next="'deploykit compat wheel --sdk X' says what machine each needs",
        facts={"sdks": list(elsewhere)},
    )


def _toolchain_line(around: Surroundings, wheel: Wheel, spec: ToolchainSpec) -> CheckLine:
    missing = [need for need in spec.needs if need.find(around.which) is None]
    state = environment_of(spec).state(with_size=False)
    ready = state.state == "ready" and not missing
    words = f"{state.state}{f' ({state.detail})' if state.detail else ''}"
    lacks = "".join(f"; {need.name} is not installed" for need in missing)
    way = "; ".join([*(need.install for need in missing), f"deploykit toolchain install {spec.name}-{spec.version}"])
    return CheckLine(
        id=f"{spec.name}-{spec.version}",
        state="ok" if ready else "absent",
        detail=f"the compiler of QAIRT {wheel.sdk} (onnxruntime-qnn {wheel.version}): {words}{lacks}",
        next="" if ready else way,
        facts={
            "sdk": wheel.sdk,
            "wheel": wheel.version,
            "toolchain": state.state,
            "missing": [n.name for n in missing],
        },
    )
