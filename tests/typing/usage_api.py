"""How people call the Python API and declare a backend's options: checked by mypy and pyright, never run.

A line that must be refused ends with an ignore comment; both checkers complain about such a comment that is not needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import deploykit
from deploykit.backend.options import OptionSpec, OptionValue, check_value
from deploykit.backend.plans import Route
from deploykit.findings import Finding

TILES = OptionSpec(name="tiles", kind="integer", low=1, high=64, default=8, help="How many tiles.", since="9.1")
MODES = OptionSpec(name="mode", kind="choice", choices=("fast", "small"), default="fast", help="What to prefer.")
OPTIONS: tuple[OptionSpec, ...] = (TILES, MODES)

assert_type(TILES.default, OptionValue)
assert_type(check_value(MODES, "small"), OptionValue)

OptionSpec(name="tiles", kind="int", help="x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
OptionSpec(name="tiles", kind="flag")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
OptionSpec("tiles", "flag", "x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
TILES.low = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def packages(out: Path) -> int:
    """The main job, with every keyword of the core and options of a backend, which no checker knows."""
    own: dict[str, Any] = {"lpbq": True, "finalization_mode": 3, "time_limit": 60.0, "exclude_node": ["a", "b"]}
    made = deploykit.package(
        "model.onnx",
        target="sm8650",
        out=out,
        force=True,
        templates=None,
        progress=print,
        backend="ort-qnn",
        sdk="2.33",
        encodings=Path("model.encodings"),
        float_tensors="floats.json",
        precision="w8a16",
        calibration="images",
        inputs=["mask=0..1", "scale=1.0"],
        mixed="fallback",
        rewrite=("scale-last",),
        no_rewrite="cut-tail",
        compile=False,
        samples=False,
        options={"vtcm_size_in_mb": 4, "dlbc": "1"},
        **own,
    )
    assert_type(made.package, Path | None)
    assert_type(made.plan.route, Route | None)
    return made.exit_status


def decides(model: Path) -> tuple[Finding, ...]:
    """The decision and its findings."""
    plan = deploykit.plan(model, target="sm8650", options=[("dlbc", "1")], progress=lambda line: print(line))
    assert_type(plan.backend, str)
    assert_type(plan.feasible, bool)
    return deploykit.check(model, target="sm8650", sdk=None) + plan.findings


def numbers(model: Path) -> float:
    """What runs models here."""
    evaluation = deploykit.evaluate("a", model, data="inputs", min_cosine=0.99, target="sm8650")
    simulation = deploykit.simulate(model, "model.encodings", samples=3, seed=1, float_tensors=None)
    located = deploykit.locate(model, encodings="model.encodings", threshold_db=25)
    sensitive = deploykit.sensitivity(model, precision="w8a8", data="inputs", seconds=60, progress=print)
    assert_type(evaluation.exit_status, int)
    assert_type(sensitive.unmeasured, int)
    assert_type(deploykit.advise(accuracies={"fp32": 76.1, "w8a8": 40}).best, str)
    return simulation.sqnr_db + located.threshold_db


def asks() -> None:
    """Questions without a model."""
    answer = deploykit.compat("fp16", sdk="2.33", backend="qnn-htp")
    print(answer.rows, [device.id for device in deploykit.targets()], deploykit.doctor())


def refused(model: Path) -> None:
    """What both checkers refuse."""
    deploykit.plan(model)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    deploykit.plan(model, "sm8650")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    deploykit.plan(model, target="t", sdk=2.33)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    deploykit.plan(model, target="t", mixed="autoo")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    deploykit.plan(model, target="t", precison="w8a8")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    deploykit.simulate(model, "e", smaples=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    deploykit.evaluate("a", "b", min_cosin=0.9)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    deploykit.compat("fp16", skd="2.33")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    deploykit.packag(model)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
