"""Every model of onnx's backend tests is judged on four routes; which are refused, and why, is written down.

After a change that is wanted: ``DEPLOYKIT_WRITE_DOCS=1 pytest -m "" -n 0 tests/onnx_cases``. What counts as refused is
what ``deploykit check`` ends with status 1 or 3 for: an error that nothing handles, or a file that cannot be used.
"""

import json
import os
import tarfile
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deploykit.backend.backend import Request
from deploykit.errors import DeploykitError
from deploykit.flow.pipeline import check
from seeds import share_of

DATA = Path(__file__).parents[1] / "data" / "onnx_backend"
PAGE = Path(__file__).parents[1] / "lab" / "evidence" / "onnx-cases.md"
ROUTES: Mapping[str, Mapping[str, Any]] = {
    "qnn-htp 2.44": {"target": "sm8650", "backend": "qnn-htp", "sdk": "2.44"},
    "qnn-htp 2.33": {"target": "sm8650", "backend": "qnn-htp", "sdk": "2.33"},
    "ort-qnn": {"target": "sm8650", "backend": "ort-qnn"},
    "vitis-ai": {"target": "strix", "backend": "vitis-ai"},
}
CASES = 1802
WRITES = bool(os.environ.get("DEPLOYKIT_WRITE_DOCS"))
FEWER_THAN = 170
_SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""The first releases of Python 3.11 have no filter; the archive is our own."""

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    with tarfile.open(DATA / "models.tar.xz") as archive:
        archive.extractall(folder, **_SAFELY)
    return folder


def cases(folder: Path) -> dict[str, Path]:
    """The models by the names that onnx gives them."""
    return {
        (path.parent if path.name == "model.onnx" else path).relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*.onnx"))
    }


def why_refused(path: Path, route: str) -> str | None:
    """The codes of what blocks, or the name of an error; None where a model is taken. Whatever else is raised fails.

    No compiler is asked: what is written down is what the rules say on any machine.
    """
    try:
        blocking = [one for one in check(Request(model=path, second_opinion=False, **ROUTES[route])) if one.blocks]
    except DeploykitError as error:
        return type(error).__name__
    return " ".join(sorted({finding.code for finding in blocking})) or None


@cache
def refusals(folder: Path, route: str) -> dict[str, str]:
    """Of what was refused before, and of a quarter of the others; of all where that is written down."""
    every, before = cases(folder), recorded().get(route, {})
    asked = every if WRITES else {*before, *share_of(sorted(every.keys() - before.keys()))}
    found = {name: why_refused(path, route) for name, path in every.items() if name in asked}
    return {name: why for name, why in found.items() if why is not None}


def table(of_routes: Mapping[str, Mapping[str, str]]) -> str:
    """The recorded file: a table for each route."""
    lines = ["# Models of onnx's backend tests that are refused, by route, with the codes of what blocks."]
    for route, found in of_routes.items():
        lines += ["", f"[{json.dumps(route)}]", *(f"{json.dumps(n)} = {json.dumps(why)}" for n, why in found.items())]
    return "\n".join(lines) + "\n"


def recorded() -> dict[str, dict[str, str]]:
    return tomllib.loads((DATA / "refused.toml").read_text("utf-8"))


def test_the_archive_holds_every_case(models: Path) -> None:
    assert len(cases(models)) == CASES


@pytest.mark.parametrize("route", ROUTES)
def test_what_is_refused_is_written_down(route: str, models: Path) -> None:
    found = refusals(models, route)
    assert len(found) < FEWER_THAN
    if not WRITES:
        assert found == recorded()[route]


def test_the_page_has_the_figures(models: Path) -> None:
    if WRITES:
        (DATA / "refused.toml").write_text(table({route: refusals(models, route) for route in ROUTES}), "utf-8")
    page = PAGE.read_text("utf-8")
    for route, found in recorded().items():
        assert f"| {route} | {CASES} | {CASES - len(found)} | {len(found)} |" in page
