"""The real Quark, in environments made as a user makes them: for heavy tests and the laboratory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from deploykit.backend.backend import Request
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.findings import exit_status
from deploykit.flow.pipeline import Packaged, make_package
from deploykit.packages.verifying import VerifyReport
from deploykit.system.environments import Environment
from deploykit_vitis_ai.runner import quark_environment

DATA = Path(__file__).parents[1] / "data" / "quark"
POST = "/post/Slice,/post/Slice_1,/post/Sigmoid:/post/Concat_1"
DEFAULT, NEWEST = "quark==0.12.post1", "quark==0.13"
Make = Callable[..., Packaged]


def installed_quark(name: str) -> Environment:
    """One Quark, found again where it is there already."""
    assert run(cli, ["toolchain", "install", name]) == 0
    environment = quark_environment(name)
    environment.require()
    return environment


def quark_packages(folder: Path) -> Make:
    """Makes packages in a folder, from the sixteen samples with which the fixtures were made."""
    rng = np.random.default_rng(7)
    (folder / "samples").mkdir()
    for i in range(16):
        np.save(folder / "samples" / f"s{i:02}.npy", rng.random((1, 3, 64, 64), dtype=np.float32))

    def package(model: Path = DATA / "fp32.onnx", target: str = "vek385", out: str = "out", **options: Any) -> Packaged:
        values: dict[str, Any] = {"calibration": folder / "samples", "compile": True, "precision": "vint8"} | options
        return make_package(Request(model=model, target=target, **values), folder / out)

    return package


def codes(packaged: Packaged) -> set[str]:
    """Of the findings that block."""
    return {finding.code for finding in packaged.findings if finding.blocks}


def is_sound(report: VerifyReport) -> bool:
    """Everything but right: noise for images gives a net nothing to tell apart, and a dead detector is none."""
    return all(check.ok for check in report.checks) and not report.mismatches and not exit_status(report.findings)
