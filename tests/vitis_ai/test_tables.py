"""The data files: everything loads, is complete, reachable through ``deploykit compat``, and cheap to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deploykit.tables.capabilities import Status
from deploykit_vitis_ai import backend, tables
from deploykit_vitis_ai.configs import config_problems
from deploykit_vitis_ai.draft import meant_by
from deploykit_vitis_ai.tables import products


def test_names_that_are_ignored_or_dead_say_so_and_who_says_it() -> None:
    rows = tuple(backend.compat())
    assert len(rows) > 110 and all(row.source and row.confidence is not None and row.note for row in rows)
    assert not [row for row in rows for source in row.source if source in tables.sources()], "unexplained short keys"
    status = {row.feature: row.status for row in rows}
    for gone in ("quark option exclude_nodes", "provider option cacheDir", "env XLNX_TARGET_NAME"):
        assert status[gone] is Status.UNSUPPORTED
    assert status["quark option nodes_to_exclude"] is Status.SUPPORTED
    told = {row.feature: row.contradicts for row in rows if row.contradicts}
    assert "encryptionKey" in told["provider option encryption_key"] and "4" in told["vaiml_config optimize_level"]


def test_every_toolchain_of_a_release_exists() -> None:
    known = {spec.id for spec in backend.toolchains()}
    assert {release.toolchain for release in tables.releases()} - {""} <= known
    for spec in backend.toolchains():
        assert spec.needs_cxx
        assert len(spec.constraints) > 60


def test_devices_have_what_planning_needs() -> None:
    for device in backend.devices():
        product = device.fact("product")
        assert device.fact("precisions")
        if product == "versal_ai_edge_gen2":
            assert device.fact("config_device").startswith("ve2-")
        elif product in products():
            assert device.fact("provider_target") in ("X1", "X2")


PARTITION: dict[str, object] = {"name": "vaiml_partition", "plugin": "vaip-pass_vaiml_partition"}


@pytest.mark.parametrize(
    ("change", "keys", "told"),
    [
        ({}, {"device": "ve2-xc2ve3858"}, []),
        ({"passes": []}, {"device": "x"}, ["targets.VAIML.pass"]),
        ({"target": "OTHER"}, {"device": "x"}, ["target:"]),
        ({"extra": 1}, {"device": "x"}, ["extra: unknown key"]),
        ({"targets": None}, {"device": "x"}, ["targets: missing"]),
        ({}, {}, ["device: missing"]),
        (
            {},
            {"device": "x", "optimise": 2, "dp_size": "2"},
            ["vaiml_config.optimise: unknown key", "vaiml_config.dp_size: int is expected"],
        ),
    ],
)
def test_bad_configurations_are_told_by_path(
    change: dict[str, object], keys: dict[str, object], told: list[str]
) -> None:
    config: dict[str, object] = {
        "passes": [{"name": "init", "plugin": "vaip-pass_init"}, {**PARTITION, "vaiml_config": keys}],
        "target": "VAIML",
        "targets": [{"name": "VAIML", "pass": ["init", "vaiml_partition"]}],
    }
    given = {key: value for key, value in {**config, **change}.items() if value is not None}
    problems = list(config_problems(given, product="versal_ai_edge_gen2"))
    assert bool(problems) is bool(told) and all(words in " ".join(problems) for words in told)


def test_importing_the_backend_is_light() -> None:
    program = (
        "import sys, deploykit_vitis_ai as v; list(v.backend.compat()); v.backend.devices(); v.backend.registries(); "
        "v.backend.toolchains(); print([m for m in ('numpy', 'onnx', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == "[]"


def test_the_product_lines_differ_in_data_alone() -> None:
    """No module asks which product it has: a third one is a file."""
    assert set(products()) == {"versal_ai_edge_gen2", "ryzen_ai"}
    for path in sorted(tables.DATA.parent.rglob("*.py")):
        code = path.read_text("utf-8")
        assert not [name for name in products() if f'"{name}"' in code], path.name


def test_every_format_of_a_device_has_a_route() -> None:
    formats = {row.format for row in tables.rows(tables.FormatRow)}
    for device in backend.devices():
        offered = device.fact("precisions") or ()
        assert device.fact("product") not in products() or set(offered) <= formats, device.id
    presets = {
        row.feature.split()[-1] for row in tables.rows(tables.ToldFact) if row.feature.startswith("quark preset")
    }
    assert {row.preset for row in tables.rows(tables.FormatRow) if row.maker == "quark"} <= presets
    assert meant_by("w8a8") == ("vint8", "a8w8", "xint8")
    assert meant_by("int8") == ("vint8", "xint8")
    assert meant_by("nothing") == ("nothing",)
