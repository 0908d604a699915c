"""The tables of Quark's keys against Quark's own source and presets, in the environments that are installed for it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run as command
from deploykit.system.environments import Environment
from deploykit_vitis_ai.config_keys import known_in, quark_keys, renamed_keys
from deploykit_vitis_ai.runner import quark_environment

pytestmark = pytest.mark.xdist_group("quark")

VERSIONS = ("quark==0.12.post1", "quark==0.13")


def installed(name: str) -> Environment:
    assert command(cli, ["toolchain", "install", name]) == 0
    environment = quark_environment(name)
    environment.require()
    return environment


def test_every_option_of_the_tables_is_one_that_this_quark_has(tmp_path: Path) -> None:
    """Attributes by the preset that Quark hands out, methods by the members of its enumerations."""
    attributes = [key.name for key in quark_keys().values() if key.where == "attribute"]
    program = (
        "import json, sys, quark.onnx\n"
        "from onnxruntime.quantization import CalibrationMethod\n"
        "told = json.load(open('asked.json'))\n"
        "settings = quark.onnx.QConfig.get_default_config('VINT8').global_quant_config\n"
        "def member(name):\n"
        "    kind, _, one = name.partition('.')\n"
        "    found = CalibrationMethod if kind == 'CalibrationMethod' else getattr(quark.onnx, kind, None)\n"
        "    return found is not None and one in found.__members__\n"
        "lost = [n for n in told['attributes'] if not hasattr(settings, n)]\n"
        "lost += [n for n in told['methods'] if not member(n)]\n"
        "json.dump(lost, open('lost.json', 'w'))\n"
    )
    methods = [*quark_keys()["calibrate_method"].values, *quark_keys()["WeightCalibrateMethod"].values]
    (tmp_path / "asked.json").write_text(json.dumps({"attributes": attributes, "methods": methods}))
    assert installed(VERSIONS[0]).run(["-c", program], cwd=tmp_path, timeout=600).ok
    assert json.loads((tmp_path / "lost.json").read_text()) == []


@pytest.mark.parametrize("name", VERSIONS)
def test_every_key_that_quark_lists_can_be_set(name: str) -> None:
    """Its own list of keys, the fields of its configuration and what it reads of extra options, from its source."""
    environment = installed(name)
    version = environment.spec.version
    (root,) = environment.path.glob("venv/lib/python*/site-packages/quark/onnx")
    fields, listed, read = keys_in_source(root)
    assert len(fields) > 30 and len(listed) > 100 and len(read) > 150
    fixed = {"activation_type", "weight_type", "quant_format", "log_severity_level", "extra_options"}
    newer = {"global_config", "specific_layer_config", "layer_type_config", "algo_config"}
    dictionaries = {key.partition(".")[0] for key in quark_keys() if "." in key}
    here = {key.name for key in quark_keys().values() if known_in(key, version)}
    understood = here | dictionaries | set(renamed_keys())
    assert fields - fixed - understood == set()
    assert listed - newer - {"exclude", "extra_options"} - understood == set()
    assert read - understood == set()
    ignored = {key for key in here if quark_keys()[key].where == "extra" and "Attributes." not in key} - read - listed
    assert ignored <= {"MatMulNBitsParams.GroupSize", "MatMulNBitsParams.Symmetric", "MatMulNBitsParams.AccuracyLevel"}


def keys_in_source(root: Path) -> tuple[set[str], set[str], set[str]]:
    """Fields of QuantizationConfig, names in QCONFIG_ALL_PARAMS, and dotted names of what is read of extra options."""
    fields: set[str] = set()
    listed: set[str] = set()
    read: set[str] = set()
    for path in root.rglob("*.py"):
        if "auto_search" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name == "QuantizationConfig":
                fields |= {ast.unparse(line.target) for line in node.body if isinstance(line, ast.AnnAssign)}
            elif isinstance(node, ast.Assign):
                names = {ast.unparse(target) for target in node.targets}
                if "QCONFIG_ALL_PARAMS" in names:
                    listed |= set(ast.literal_eval(node.value))
                elif any("extra_options_keys" in name for name in names):
                    read |= {pair[0] for pair in ast.literal_eval(node.value)}
            read |= set(read_by(node))
    return fields, listed, read


def read_by(node: ast.AST) -> Iterator[str]:
    """The key that one expression takes from extra options or from a dictionary in them."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        taken, key = ast.unparse(node.func.value), node.args[0]
        if node.func.attr not in ("get", "pop", "setdefault"):
            return
    elif isinstance(node, ast.Subscript):
        taken, key = ast.unparse(node.value), node.slice
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        taken, key = ast.unparse(node.comparators[0]), node.left
    else:
        return
    if isinstance(key, ast.Constant) and isinstance(key.value, str) and re.fullmatch(r"[A-Z]\w+", key.value):
        within = re.search(r"extra_options(?:\.get\(|\[)'(\w+)'(?:, \{\}\)|\])$", taken)
        if within:
            yield f"{within[1]}.{key.value}"
        elif taken.endswith("extra_options"):
            yield key.value
