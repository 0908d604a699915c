"""Advice about Vitis AI and Ryzen AI, followed on the triggering cases."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

DRAFTS, QUANTIZED = "vitis_ai/test_draft_rules.py", "vitis_ai/test_quantized.py"
POST = "/post/Slice,/post/Slice_1,/post/Sigmoid:/post/Concat_1"
Way = Callable[[Any], Any]


def draft(model: str | tuple[str, ...] = "", **request: Any) -> Way:
    """A draft of a model of the fixtures, or of a chain of operators."""

    def make(bench: Any) -> Any:
        made = bench.module(DRAFTS)
        return made.draft(made.chain(*model) if isinstance(model, tuple) else model, **request)

    return make


def ask(bench: Any, model: Any, target: str = "vek385", **request: Any) -> Any:
    return bench.ask(model, target, backend="vitis-ai", **request)


def offered(code: str) -> Way:
    """Each format that the finding lists for the device."""

    def make(bench: Any) -> Any:
        given = bench.trigger(code)
        device = given.situation.target.device.id
        assert given.offered
        return [
            finding
            for precision in given.offered
            for finding in bench.look(code, bench.module(DRAFTS).draft(target=device, precision=precision))
        ]

    return make


def applied(bench: Any) -> Any:
    """AIMET's encodings as Q/DQ nodes, which the compiler of Ryzen AI takes."""
    cnn, out = bench.aimet / "cnn", bench.folder / "qdq.onnx"
    encodings = cnn / "w8a8.v1.0.0.encodings"
    before = ask(bench, cnn / "model.onnx", "strix", encodings=encodings, precision="a8w8")
    assert "VAI106" in {finding.code for finding in before}
    bench.run("encodings", "apply", str(encodings), "--model", str(cnn / "model.onnx"), "-o", str(out))
    after = ask(bench, out, "strix")
    assert not [finding for finding in after if finding.blocks]
    return after


def proposed(bench: Any) -> Any:
    """``deploykit accuracy compare --model`` names an exclusion that can be given as it stands."""
    sides = [str(bench.quark / name) for name in ("output_fp32", "output_vint8")]
    answer = bench.run(
        "accuracy", "compare", *sides, "--model", str(bench.quark / "fp32.onnx"), "--target", "vek385", status=1
    )
    (dead,) = (finding for finding in answer["findings"] if finding["code"] == "DK601")
    words = shlex.split(dead["hint"])
    return draft("fp32.onnx", precision="mixed", exclude_subgraph=(words[words.index("--exclude-subgraph") + 1],))(
        bench
    )


def proposal(bench: Any) -> Any:
    """The options of the advice, as they are printed."""
    (finding,) = bench.found("VAI128")
    words = shlex.split(finding.hint)
    given = dict(zip(words[::2], words[1::2], strict=True))
    return draft("fp32.onnx", precision=given["--precision"], exclude_subgraph=(given["--exclude-subgraph"],))(bench)


def start_left_out(bench: Any) -> Any:
    """A start from which no way leads to the ends."""
    post = bench.module(DRAFTS).POST
    starts, ends = post.split(":")
    given = bench.module(DRAFTS).draft("fp32.onnx", exclude_subgraph=("/post/Slice,/post/Concat_1:/post/Sigmoid",))
    assert "leave this start out" in {finding.hint for finding in bench.look("VAI108", given)}
    return bench.module(DRAFTS).draft("fp32.onnx", exclude_subgraph=(f"{starts}:{ends}",))


def in_float16(**request: Any) -> Way:
    """A chain that is stored in float16."""

    def draft_of_it(bench: Any) -> Any:
        drafts = bench.module(DRAFTS)
        return drafts.draft(drafts.chain("Relu", "Sigmoid", dtype="float16"), **request)

    return draft_of_it


def options(**values: str) -> Way:
    """The keys are documented ones, taken by the whole path, and stand in the configuration."""

    def make(bench: Any) -> None:
        from deploykit.flow.pipeline import make_plan

        given = {"precision": "bf16", "options": tuple(values.items())}
        plan = make_plan(bench.request(bench.quark / "fp32.onnx", "vek385", backend="vitis-ai", **given))
        written = str(plan.to_json()["configs"])
        assert all(key in written for key in values)

    return make


WAYS: dict[str, Way] = {
    "VAI402 options": options(keep_outputs="true", logging_level="info"),
    "VAI403 option": options(threshold_gops_percent="5"),
    "VAI102 a format it has": offered("VAI102"),
    "VAI104 a format it has": offered("VAI104"),
    "VAI106 deploykit encodings apply": applied,
    "VAI108 start left out": start_left_out,
    "VAI109 vint8": draft("fp32.onnx", precision="vint8"),
    "VAI109 --exclude-subgraph": draft("fp32.onnx", precision="mixed", exclude_subgraph=(POST,)),
    "VAI109 deploykit accuracy compare": proposed,
    "VAI110 mixed": draft(precision="mixed", exclude_node=("conv",)),
    "VAI114 float model": draft("fp32.onnx", precision="bf16"),
    "VAI114 newer release": draft("../aimet/cnn/w8a8.qdq.onnx", target="strix", precision=None, sdk="1.6"),
    "VAI116 xclbin": draft(target="phoenix", precision="xint8", sdk="1.8", options=(("xclbin", "4x4.xclbin"),)),
    "VAI117 left out": draft(target="strix", precision="xint8", sdk="1.7"),
    "VAI120 float model": draft("fp32.onnx", precision="vint8"),
    "VAI122 opset 17": lambda bench: bench.module(DRAFTS).draft(bench.module(DRAFTS).chain("Relu", opset=17)),
    "VAI123 cut": draft(("Relu",)),
    "VAI123 cpu_partition": draft(("NonZero",), options=(("cpu_partition", "true"),)),
    "VAI124 replaced": draft(("Elu",)),
    "VAI128 proposal": proposal,
    "VAI209 opset 17": lambda bench: replace(bench.module(QUANTIZED).VINT8, last_opset=17),
    "VAI282 --exclude-node": draft("fp32.onnx", precision="mixed", exclude_node=("/post/Sigmoid",)),
    "VAI284 newer quark": in_float16(sdk="6.2", options=(("quark", "0.12.post1"),)),
    "VAI285 parts in float16": in_float16(
        precision="mixed", keep_float16=True, exclude_node=("n0",), options=(("quark", "0.12.post1"),)
    ),
}


def test_what_is_advised_helps(advice: Any, bench: Any) -> None:
    bench.follow(advice, WAYS)
