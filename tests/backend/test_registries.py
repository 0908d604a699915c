"""Rules register one way: a module of rules exports ``RULES``, and a backend gives those of its package and library."""

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
from deploykit_qualcomm.rules.registries import REGISTRIES

PACKAGES = (
    (deploykit, CORE_REGISTRIES),
    (deploykit_qualcomm, REGISTRIES),
    (deploykit_qnn_htp, load_backend("qnn-htp").registries()),
    (deploykit_ort_qnn, load_backend("ort-qnn").registries()),
    (deploykit_vitis_ai, load_backend("vitis-ai").registries()),
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


def test_the_core_has_only_its_own_codes() -> None:
    codes = {rule.code for registry in CORE_REGISTRIES for rule in registry}
    assert {"DK001", "DK101", "DK201", "DK601"} <= codes
    assert all(code.startswith("DK") for code in codes)
