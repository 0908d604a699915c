"""What is advised is there, can be chosen, and helps where it is followed on the whole path; nothing is compiled."""

import re
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from deploykit.answers.rule_pages import all_rules
from deploykit.backend.plugins import load_backend
from deploykit.cli import COMMANDS, cli
from deploykit.cli.toolchain import known_toolchains
from deploykit.findings import Finding
from deploykit.flow.pipeline import make_plan
from deploykit.flow.rules import core_registries
from deploykit.flow.ways import WIDER_END, WIDER_LAYERS
from deploykit.rewrites.contract import transform_names
from deploykit_ort_qnn import provider_keys
from sample_models.networks import attention_net
from tables import each_row

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
    words = {RULES[code].fix, *(finding.hint for finding in bench.look(code, bench.trigger(code)))}
    for text in words:
        named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) - OF_OTHER_TOOLS
        assert not named or named <= options_of(code), text
        commands = re.findall(r"(?:^|')deploykit ([a-z]+)", text)
        assert set(commands) <= set(COMMANDS), text
        assert set(re.findall(r"toolchain install ([\w.=]+)", text)) <= toolchains(), text
        rewrites = re.findall(r"-rewrite ([a-z][a-z0-9-]*)(?: or ([a-z]+-[a-z0-9-]+))?", text)
        named = {name for pair in rewrites for name in pair if name}
        assert named <= {*transform_names(), WIDER_END, WIDER_LAYERS}, text


Way = Callable[[Any], Any]


def aimet(name: str, target: str = "sm8650", **more: Any) -> Way:
    """A run with a file of AIMET's: a model, or encodings beside the float one."""

    def ask(bench: Any) -> Any:
        path = bench.aimet / name
        if name.endswith(".onnx"):
            return bench.ask(path, target, **more)
        return bench.ask(path.with_name("model.onnx"), target, encodings=path.with_suffix(".encodings"), **more)

    return ask


def after(code: str, before: Way, then: Way) -> Way:
    """What is found then; before it the finding was there."""

    def ask(bench: Any) -> Any:
        assert code in {finding.code for finding in before(bench)}
        return then(bench)

    return ask


def omitted(version: str, **more: Any) -> Way:
    return aimet(f"detr/w8a16-fp16mix-omit.v{version}.x", **{"sdk": "2.33", **more})


def float_tensors(bench: Any) -> Any:
    names = bench.folder / "float.txt"
    names.write_text("/decoder/Div_output_0\n")
    return omitted("2.0.0", sdk="2.37", float_tensors=names)(bench)


def as_conv(bench: Any) -> Any:
    """``vit`` on the device and the release of the report, as it is and with the rewrite asked for by name."""
    given = {"sdk": "2.41", "encodings": bench.aimet / "vit/w8a16.v1.0.0.encodings"}
    (before,) = (f for f in bench.ask(bench.aimet / "vit/model.onnx", "sa8775p", **given) if f.code == "QNN215")
    assert before.blocks
    (as_qdq,) = (f for f in aimet("vit/w8a16.qdq.onnx", "sa8775p", sdk="2.41")(bench) if f.code == "QNN215")
    assert as_qdq.hint.startswith("give the float model with --encodings and --rewrite linear-to-conv")
    found = bench.ask(bench.aimet / "vit/model.onnx", "sa8775p", rewrite=("linear-to-conv",), **given)
    assert "DK201" in {finding.code for finding in found}
    assert not [finding for finding in found if finding.blocks]
    return found


def as_log_range(bench: Any) -> Any:
    """A Log whose input has a grid too; without one the tools leave it in float, and that is said."""
    from deploykit.encodings.formats.aimet import write_encodings

    case = bench.trigger("QNN250")
    case = {**case, "encodings": {**case["encodings"], "x": {"type": "uint16", "scale": 1e-5}}}
    situation = bench.module("qualcomm/conftest.py").build(case)
    path = bench.folder / "case.encodings"
    path.write_text(write_encodings(situation.encodings, "1.0.0"), "utf-8")
    return bench.ask(situation.model.proto, sdk=case.get("sdk"), encodings=path, rewrite=("log-range",))


def clamped_by_itself(bench: Any) -> Any:
    """The mask of a model as it is exported: done without being asked for; the other rewrite says why it does not."""
    zoo = bench.zoo / "distilbert"
    given = {"encodings": zoo / "w8a16.v1.0.0.encodings", "sdk": "2.33"}
    left_out = {**given, "no_rewrite": ("mask-constant",)}
    other = bench.ask(zoo / "model.onnx", rewrite=("saturating-constant",), **left_out)
    assert any(f.code == "QNN275" and f.handled is None for f in other)
    assert any(f.code == "DK208" and "saturating-constant" in f.message for f in other)
    by_itself = bench.ask(zoo / "model.onnx", **given)
    assert any(f.code == "DK210" and "mask-constant" in f.message for f in by_itself)
    return by_itself


def by_lpbq(bench: Any) -> Any:
    """What ``encodings convert --to lpbq`` writes of float scales is taken."""
    out = bench.folder / "lpbq.onnx"
    bench.run("encodings", "convert", str(bench.aimet / "mlp/bq-w4a16.qdq.onnx"), "--to", "lpbq", "-o", str(out))
    return bench.ask(out, backend="ort-qnn")


def other_number(bench: Any) -> None:
    """The number goes into the configuration of the package; that sources disagree stays true."""
    cnn = bench.aimet / "cnn"
    given = {"encodings": cnn / "w8a8.v1.0.0.encodings", "sdk": "2.33"}
    (told,) = (f for f in bench.ask(cnn / "model.onnx", "qcs6490", **given) if f.code == "QNN012")
    assert "--option soc_model=93" in told.hint
    for options, number in (((), "35"), ((("soc_model", "93"),), "93")):
        asked = bench.request(cnn / "model.onnx", "qcs6490", options=options, **given)
        assert f"'soc_model': {number}" in str(make_plan(asked).to_json()["configs"])
    (plain,) = (f for f in bench.ask(cnn / "model.onnx", "qcs6490", backend="ort-qnn") if f.code == "QNN012")
    assert "--option" not in plain.hint


def gaps_calibrated(bench: Any) -> Any:
    """A file with gaps, on the route on which they are one; with calibration data it can be used."""
    path = bench.folder / "x.npz"
    np.savez(path, input=np.random.default_rng(0).normal(size=(8, 4, 48)).astype(np.float32))
    asked: dict[str, Any] = {"sdk": "2.33", "adapter_options": {"route": "legacy-calibrated"}}
    ways = (aimet("mlp/bq-w4a16.v0.6.1.x", **asked, **more) for more in ({}, {"calibration": path}))
    return after("QNN105", *ways)(bench)


# --- ort-qnn ----------------------------------------------------------------------------------------------------------

UNCHECKED = (("kv_cache_bit_width", "8"),)


def provider(name: str, target: str = "sm8650", **more: Any) -> Way:
    return aimet(name, target, backend="ort-qnn", **more)


def lpbq(target: str) -> Way:
    """Blocks with ``--lpbq``: layers with integers, and the loss of each."""

    def ask(bench: Any) -> Any:
        found = provider("mlp/bq-w4a16.v1.0.0.x", target, adapter_options={"lpbq": True})(bench)
        assert any(finding.code == "ORT013" and "dB" in finding.message for finding in found)
        return found

    return ask


def unchecked_left_out(bench: Any) -> Any:
    """An option whose first wheel nobody looked up, on an old one."""
    old, table = {"sdk": "2.4.0"}, provider_keys.load_options()
    options = tuple(replace(row, since="") if row.name == UNCHECKED[0][0] else row for row in table.option)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provider_keys, "load_options", lambda: replace(table, option=options))
        found = provider("mlp/w8a8.qdq.onnx", **old, options=UNCHECKED)(bench)
    assert "ORT012" in {finding.code for finding in found}
    return provider("mlp/w8a8.qdq.onnx", **old)(bench)


def corrected(bench: Any) -> Any:
    """A grid that ONNX cannot store, and the same tensor with one that it can."""
    lint = bench.module("qualcomm/test_lint_provider_rules.py")
    build = bench.module("qualcomm/conftest.py").build
    wrong, right = (build(lint.CASES["QNN242"][side]).model.proto for side in (0, 1))
    ways = (lambda _, model=model: bench.ask(model, backend="ort-qnn") for model in (wrong, right))
    return after("ORT007", *ways)(bench)


# --- vitis-ai ---------------------------------------------------------------------------------------------------------

DRAFTS = "vitis_ai/test_draft_rules.py"


def offered(code: str) -> Way:
    """Each format that the finding lists for the device."""

    def make(bench: Any) -> Any:
        given = bench.trigger(code)
        device = given.situation.target.device.id
        drafts = [bench.module(DRAFTS).draft(target=device, precision=precision) for precision in given.offered]
        assert drafts
        return [finding for draft in drafts for finding in bench.look(code, draft)]

    return make


def applied(bench: Any) -> Any:
    """AIMET's encodings as Q/DQ nodes, which the compiler of Ryzen AI takes."""
    cnn, out = bench.aimet / "cnn", bench.folder / "qdq.onnx"
    encodings = cnn / "w8a8.v1.0.0.encodings"
    given: dict[str, Any] = {"backend": "vitis-ai", "encodings": encodings, "precision": "a8w8"}
    assert "VAI106" in {finding.code for finding in bench.ask(cnn / "model.onnx", "strix", **given)}
    bench.run("encodings", "apply", str(encodings), "--model", str(cnn / "model.onnx"), "-o", str(out))
    found = bench.ask(out, "strix", backend="vitis-ai")
    assert not [finding for finding in found if finding.blocks]
    return found


def proposal(bench: Any) -> Any:
    """The options of the advice, as they are printed."""
    (finding,) = bench.look("VAI128", bench.trigger("VAI128"))
    words = shlex.split(finding.hint)
    given = dict(zip(words[::2], words[1::2], strict=True))
    options = {"precision": given["--precision"], "exclude_subgraph": (given["--exclude-subgraph"],)}
    return bench.module(DRAFTS).draft("fp32.onnx", **options)


def start_left_out(bench: Any) -> Any:
    """A start from which no way leads to the ends."""
    drafts = bench.module(DRAFTS)
    given = drafts.draft("fp32.onnx", exclude_subgraph=("/post/Slice,/post/Concat_1:/post/Sigmoid",))
    assert "leave this start out" in {finding.hint for finding in bench.look("VAI108", given)}
    return drafts.draft("fp32.onnx", exclude_subgraph=(drafts.POST,))


WAYS: Mapping[str, Way] = {
    "DK103 --float-tensors": after("DK103", omitted("2.0.0", sdk="2.37"), float_tensors),
    "DK103 version 1.0.0": omitted("1.0.0", sdk="2.37"),
    # Float16 among integers, nothing rewritten and no mix allowed: no way is left; with another word there is.
    "DK204 --mixed auto": after(
        "DK204",
        omitted("0.6.1", mixed="refuse", no_rewrite=transform_names()),
        omitted("0.6.1", mixed="auto", no_rewrite=transform_names()),
    ),
    "DK206 and QNN106 --mixed fallback": omitted("0.6.1", mixed="fallback"),
    "QNN012 --option soc_model": other_number,
    "QNN103 converted": aimet("cnn/w8a8.v2.0.0.x", sdk="2.33"),
    "QNN105 --calibration": gaps_calibrated,
    "QNN129 --precision fp16": aimet("detr/model.onnx", sdk="2.33", precision="fp16"),
    "QNN215 --rewrite linear-to-conv": as_conv,
    "QNN236 deploykit encodings convert --to lpbq": by_lpbq,
    "QNN250 --rewrite log-range": as_log_range,
    "QNN260 --precision": lambda bench: {**bench.trigger("QNN260"), "options": {}, "precision": "fp16"},
    "QNN275 by itself": clamped_by_itself,
    "ORT002 --encodings": provider("mlp/w8a8.v1.0.0.x"),
    "ORT004 quantized": provider("mlp/w8a8.qdq.onnx", "sm8350"),
    "ORT005 per channel": provider("mlp/w4a8.v1.0.0.x", "sm8350"),
    "ORT005 --lpbq on v69": lpbq("sm8450"),
    "ORT006 --lpbq": lpbq("sm8650"),
    "ORT007 corrected": corrected,
    "ORT008 v73": after("ORT008", provider("vit/w8a16.v1.0.0.x", "sm8450"), provider("vit/w8a16.v1.0.0.x", "sm8550")),
    "ORT012 newest wheel": provider("mlp/w8a8.qdq.onnx", options=UNCHECKED),
    "ORT012 without the option": unchecked_left_out,
    "ORT013 LPBQ encodings": provider("mlp/lpbq-w4a16.v1.0.0.x"),
    "ORT105 FP16": lambda bench: bench.ask(bench.saved(attention_net()), "sm8450", backend="ort-qnn"),
    "VAI102 a format it has": offered("VAI102"),
    "VAI104 a format it has": offered("VAI104"),
    "VAI106 deploykit encodings apply": applied,
    "VAI108 start left out": start_left_out,
    "VAI128 proposal": proposal,
}


@pytest.mark.parametrize("advice", WAYS)
def test_what_is_advised_helps(advice: str, bench: Any) -> None:
    """A way answers with a case for the rules, with findings of a whole run, or with nothing where it asserted itself.

    Of the rules whose codes begin the name nothing is found open then.
    """
    answer = WAYS[advice](bench)
    codes = [word for word in advice.split() if word[:2].isupper() and word[-3:].isdigit()]
    if answer is None:
        return
    whole = isinstance(answer, (list, tuple)) and all(isinstance(finding, Finding) for finding in answer)
    found = list(answer) if whole else [one for code in codes for one in bench.look(code, answer)]
    assert not [one.message for one in found if (one.code in codes and one.handled is None) or one.code == "DK208"]
