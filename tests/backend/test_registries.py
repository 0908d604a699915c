"""Rules register one way: a module of rules exports ``RULES``, and one tuple per package lists all of them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import deploykit
import deploykit_ort_qnn
import deploykit_qnn_htp
import deploykit_qualcomm
import deploykit_vitis_ai
from deploykit.backend.plugins import load_backend
from deploykit.findings.rules import Registry
from deploykit.flow.rules import CORE_REGISTRIES
from deploykit_ort_qnn.rules import registries as ort_qnn
from deploykit_qnn_htp.rules import registries as qnn_htp
from deploykit_qualcomm.rules import registries as qualcomm
from deploykit_vitis_ai.rules import registries as vitis_ai

PACKAGES = (
    (deploykit, CORE_REGISTRIES),
    (deploykit_qualcomm, qualcomm.REGISTRIES),
    (deploykit_qnn_htp, qnn_htp.REGISTRIES),
    (deploykit_ort_qnn, ort_qnn.REGISTRIES),
    (deploykit_vitis_ai, vitis_ai.REGISTRIES),
)
MADE = re.compile(r"^(\w+): Registry\[\w+\] = Registry\(", re.MULTILINE)


def registries_in(package: Any) -> Iterator[tuple[str, str]]:
    """Every registry that a module of the package makes: the module's and the variable's name."""
    (folder,) = map(Path, package.__path__)
    for path in sorted(folder.rglob("*.py")):
        module = ".".join((package.__name__, *path.relative_to(folder).with_suffix("").parts))
        for name in MADE.findall(path.read_text("utf-8")):
            yield module, name


@pytest.mark.parametrize(("package", "listed"), PACKAGES, ids=[package.__name__ for package, _ in PACKAGES])
def test_every_registry_is_called_rules_and_is_listed(package: Any, listed: tuple[Registry[Any], ...]) -> None:
    made = list(registries_in(package))
    assert made
    assert [(module, name) for module, name in made if not name.endswith("RULES")] == []
    registries = [getattr(importlib.import_module(module), name) for module, name in made]
    assert all(any(registry is entry for entry in listed) for registry in registries)
    assert all(len(registry) for registry in registries), "a registry without a rule"
    assert len(set(map(id, listed))) == len(listed), "a registry is listed twice"


@pytest.mark.parametrize(
    ("backend", "listed"),
    [
        ("qnn-htp", qnn_htp.REGISTRIES),
        ("ort-qnn", ort_qnn.REGISTRIES),
        ("vitis-ai", vitis_ai.REGISTRIES),
    ],
)
def test_a_backend_gives_its_tuple(backend: str, listed: tuple[Registry[Any], ...]) -> None:
    assert load_backend(backend).registries() == listed


def test_the_core_has_only_its_own_codes() -> None:
    codes = {rule.code for registry in CORE_REGISTRIES for rule in registry}
    assert {"DK001", "DK101", "DK201", "DK601"} <= codes
    assert all(code.startswith("DK") for code in codes)
