"""What the core advises is there, can be chosen, and helps where it is followed."""

import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest

from deploykit.answers.rule_pages import all_rules
from deploykit.backend.plugins import load_backend
from deploykit.cli import COMMANDS, cli
from deploykit.cli.toolchain import known_toolchains
from deploykit.errors import UsageError
from deploykit.flow.rules import core_registries
from deploykit.flow.ways import WIDER_END
from deploykit.rewrites.contract import transform_names
from sample_models.networks import conv_net, save_with_external_data
from sample_models.tiny_graphs import TinyGraph
from tables import each_row

Way = Callable[[Any], Any]


def copied(bench: Any) -> None:
    (bench.folder / "from").mkdir()
    path = save_with_external_data(conv_net(), bench.folder / "from/model.onnx")
    shutil.copytree(path.parent, bench.folder / "to")
    shutil.rmtree(path.parent)
    found = bench.ask(bench.folder / "to/model.onnx")
    assert [finding.severity for finding in found if finding.code == "DK013"] == ["info"]


def mix(bench: Any, version: str, **more: Any) -> Any:
    encodings = bench.aimet / f"detr/w8a16-fp16mix-omit.v{version}.encodings"
    return bench.ask(bench.aimet / "detr/model.onnx", sdk="2.37", encodings=encodings, **more)


def float_tensors(bench: Any) -> Any:
    assert "DK103" in {finding.code for finding in mix(bench, "2.0.0")}
    names = bench.folder / "float.txt"
    names.write_text("/decoder/Div_output_0\n")
    return mix(bench, "2.0.0", float_tensors=names)


def as_conv(bench: Any) -> Any:
    """``vit`` on the device and the release of the report, as it is and with the rewrite asked for by name."""
    vit = bench.aimet / "vit"
    given = {"sdk": "2.41", "encodings": vit / "w8a16.v1.0.0.encodings"}
    (before,) = (f for f in bench.ask(vit / "model.onnx", "sa8775p", **given) if f.code == "QNN215")
    assert before.blocks
    (as_qdq,) = (f for f in bench.ask(vit / "w8a16.qdq.onnx", "sa8775p", sdk="2.41") if f.code == "QNN215")
    assert as_qdq.hint.startswith("give the float model with --encodings and --rewrite linear-to-conv")
    after = bench.ask(vit / "model.onnx", "sa8775p", rewrite=("linear-to-conv",), **given)
    assert "DK201" in {finding.code for finding in after}
    assert not [finding for finding in after if finding.blocks]
    return after


def as_log_range(bench: Any) -> Any:
    """A Log whose input has a grid too; without one the tools leave it in float, and that is said."""
    case = bench.trigger("QNN250")
    case = {**case, "encodings": {**case["encodings"], "x": {"type": "uint16", "scale": 1e-5}}}
    return whole_run(bench, case, rewrite=("log-range",))


def whole_run(bench: Any, case: Any, **more: Any) -> Any:
    """The case as a model with its encodings, through the whole path."""
    from deploykit.encodings.formats.aimet import write_encodings

    situation = bench.module("qualcomm/conftest.py").build(case)
    path = bench.folder / "case.encodings"
    path.write_text(write_encodings(situation.encodings, "1.0.0"), "utf-8")
    return bench.ask(situation.model.proto, sdk=case.get("sdk"), encodings=path, **more)


def clamped_by_itself(bench: Any) -> Any:
    """The mask of a model as it is exported: done without being asked for; the other rewrite says why it does not."""
    zoo = bench.zoo / "distilbert"
    given = {"encodings": zoo / "w8a16.v1.0.0.encodings", "sdk": "2.33"}
    left_out = {**given, "no_rewrite": ("mask-constant",)}
    assert any(f.code == "QNN275" and f.handled is None for f in bench.ask(zoo / "model.onnx", **left_out))
    other = bench.ask(zoo / "model.onnx", rewrite=("saturating-constant",), **left_out)
    assert any(f.code == "DK208" and "saturating-constant" in f.message for f in other)
    by_itself = bench.ask(zoo / "model.onnx", **given)
    assert all(f.handled for f in by_itself if f.code in ("QNN275", "DK104"))
    assert any(f.code == "DK210" and "mask-constant" in f.message for f in by_itself)
    return bench.ask(zoo / "model.onnx", rewrite=("mask-constant",), **given)


def by_lpbq(bench: Any) -> Any:
    """What ``encodings convert --to lpbq`` writes of float scales is taken."""
    out = bench.folder / "lpbq.onnx"
    bench.run("encodings", "convert", str(bench.aimet / "mlp/bq-w4a16.qdq.onnx"), "--to", "lpbq", "-o", str(out))
    return bench.ask(out, backend="ort-qnn")


def refused_and_left_out(key: str, value: str, told: str) -> Way:
    """The whole path refuses the value with the same words; without the option nothing is found."""

    def ask(bench: Any) -> Any:
        cnn = bench.aimet / "cnn/model.onnx"
        with pytest.raises(UsageError, match=told):
            bench.ask(cnn, options=((key, value),))
        return bench.ask(cnn)

    return ask


RULES = {entry.rule.code: entry.rule for entry in all_rules(core_registries())}
OF_OTHER_TOOLS = {"--dim_param", "--dim_value", "--input_name", "--input_shape", "--compare", "--float_fallback"}


def options_of(code: str) -> set[str]:
    """The options of all commands and of the backends that apply a rule."""
    names = set(_options_of_commands())
    for backend in map(load_backend, ("qnn-htp", "ort-qnn", "vitis-ai")):
        if any(rule.code == code for registry in backend.registries() for rule in registry):
            names |= {f"--{spec.name.replace('_', '-')}" for spec in backend.options()}
    return names


@cache
def toolchains() -> frozenset[str]:
    return frozenset(name for spec in known_toolchains() for name in (spec.name, spec.id))


@cache
def _options_of_commands() -> frozenset[str]:
    found: set[str] = set()
    for name in cli.list_commands(None):  # type: ignore[arg-type]
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        inner = [*getattr(command, "commands", {}).values(), *getattr(command, "branches", {}).values()]
        shared = [spec for one in (command, *inner) for spec in one.params if getattr(spec, "opts", None)]
        found |= {option for spec in shared for option in (*spec.opts, *spec.secondary_opts)}
    return frozenset(found)


@each_row("code", *sorted(RULES))
def test_options_commands_and_rewrites_that_are_named_exist(code: str, bench: Any) -> None:
    words = {RULES[code].fix, *(finding.hint for finding in bench.found(code))}
    for text in words:
        named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) - OF_OTHER_TOOLS
        assert not named or named <= options_of(code), text
        commands = re.findall(r"(?:^|')deploykit ([a-z]+)", text)
        assert set(commands) <= set(COMMANDS), text
        assert set(re.findall(r"toolchain install ([\w.=]+)", text)) <= toolchains(), text
        rewrites = re.findall(r"-rewrite ([a-z][a-z0-9-]*)(?: or ([a-z]+-[a-z0-9-]+))?", text)
        assert {name for pair in rewrites for name in pair if name} <= {*transform_names(), WIDER_END}, text


def detr(bench: Any, name: str = "w8a16", **request: Any) -> Any:
    folder = bench.aimet / "detr"
    encodings = folder / f"{name}.v0.6.1.encodings"
    return bench.ask(folder / "model.onnx", sdk="2.33", encodings=encodings, **request)


def first(findings: Any, code: str) -> Any:
    return next(finding for finding in findings if finding.code == code)


def another_way(bench: Any) -> Any:
    """Float16 among integers, nothing rewritten and no mix allowed: no way is left; with another word there is."""
    given = {"no_rewrite": transform_names()}
    assert "DK204" in {f.code for f in detr(bench, "w8a16-fp16mix-omit", mixed="refuse", **given)}
    return detr(bench, "w8a16-fp16mix-omit", mixed="auto", **given)


def coarse(folder: Path, bits: int) -> tuple[Path, Path]:
    """A model whose values need more than 8 bits, and its encodings with so many."""
    from deploykit.encodings.formats.aimet import write_encodings
    from deploykit.encodings.new_grids import GridKind, affine_for_range
    from deploykit.encodings.values import Encoding, EncodingSet

    graph = TinyGraph()
    squared = graph.op("Mul", [graph.input("x", (1, 64)), "x"], "q")
    graph.op("Sqrt", [squared], "y")
    onnx.save(graph.model("y"), folder / "m.onnx")
    kind = GridKind(bits=bits, signed=False)
    ranges = {"x": (-1.0, 1.0), "q": (0.0, 900.0), "y": (0.0, 1.0)}
    entries = {name: Encoding(name=name, value=affine_for_range(*ends, kind)) for name, ends in ranges.items()}
    text = write_encodings(EncodingSet(version="1.0.0", entries=entries), "1.0.0")
    (folder / f"{bits}.encodings").write_text(text, "utf-8")
    return folder / "m.onnx", folder / f"{bits}.encodings"


def wider(bench: Any) -> Any:
    def ask(bits: int) -> Any:
        model, encodings = coarse(bench.folder, bits)
        return bench.ask(model, sdk="2.33", encodings=encodings)

    assert "DK205" in {finding.code for finding in ask(8)}
    return ask(16)


def with_entries(bench: Any) -> Any:
    """The file with the entries that were concluded: nothing is left to conclude."""
    from dataclasses import replace

    from deploykit.encodings.formats.aimet import read_encodings, write_encodings
    from deploykit.encodings.new_grids import GridKind, affine_for_range
    from deploykit.encodings.values import Encoding

    given = bench.module("flow/test_open_tensors.py").chosen(result=True, mixed="refuse").situation.request
    ask = {"sdk": "2.33", "mixed": "refuse"}
    ranges = first(bench.ask(given.model, encodings=given.encodings, **ask), "DK209").evidence["ranges"]
    read = read_encodings(given.encodings)
    kind = GridKind(bits=16, signed=False)
    made = {r["tensor"]: Encoding(name=r["tensor"], value=affine_for_range(r["low"], r["high"], kind)) for r in ranges}
    path = bench.folder / "whole.encodings"
    path.write_text(write_encodings(replace(read, entries={**read.entries, **made}), "0.6.1"), "utf-8")
    return bench.ask(given.model, encodings=path, **ask)


def guesses_in_force(bench: Any) -> None:
    graph = TinyGraph()
    graph.op("LRN", [graph.input("x", (1, 4, 2, 4, 4))], "y", size=3)
    found = first(bench.ask(graph.model("y"), sdk="2.33", second_opinion=False), "QNN207")
    assert found.blocks and "second_opinion" not in found.evidence


WAYS: dict[str, Way] = {
    "DK013 copied": copied,
    "DK103 --float-tensors": float_tensors,
    "DK103 version 1.0.0": lambda bench: mix(bench, "1.0.0"),
    "QNN215 --rewrite linear-to-conv": as_conv,
    "QNN236 deploykit encodings convert --to lpbq": by_lpbq,
    "QNN250 --rewrite log-range": as_log_range,
    "QNN260 --precision": lambda bench: {**bench.trigger("QNN260"), "options": {}, "precision": "fp16"},
    "QNN261 left out": refused_and_left_out("soc_model", "618", "not the Android SoC id|is 69"),
    "QNN262 left out": refused_and_left_out("vtcm_mb", "9", "has 8 MB"),
    "QNN275 --calibration": clamped_by_itself,
    "DK204 --mixed auto": another_way,
    "DK205 wider": wider,
    "DK206 --mixed fallback": lambda bench: detr(bench, "w8a16-fp16mix-omit", mixed="fallback"),
    "DK208 left out": lambda bench: bench.ask(bench.aimet / "cnn/model.onnx", sdk="2.33"),
    "DK209 entries": with_entries,
    "DK211 guesses": guesses_in_force,
}


def test_what_is_advised_helps(advice: Any, bench: Any) -> None:
    bench.follow(advice, WAYS)
