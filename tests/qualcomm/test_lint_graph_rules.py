"""Lint rules about the graph alone: each with a case that triggers it and one that does not."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deploykit.backend.backend import Request, Situation
from deploykit.findings import Finding
from deploykit_qualcomm.resolving import resolve_target
from deploykit_qualcomm.rules.published import structure_of
from deploykit_qualcomm.rules.registries import CONVERTERS, PROVIDER, run_lint
from graph_questions import Asked, answers_of
from rule_cases import check_pairs
from sums import flat

Case = dict[str, Any]
Lint = Callable[[Case], dict[str, list[Finding]]]
POSITIONED = (
    "g (float[2,16,8] x, float[%s] p, float[8] s) => (float[2,16,8] y) "  # one line in two
    "{ a = Add (x, p)  y = LayerNormalization (a, s) }"
)


def one(op: str, shape: str = "1,4,8,8", out: str | None = None, **extra: Any) -> Case:
    """A graph of one operator."""
    return {"graph": f"g (float[{shape}] x) => (float[{out or shape}] y) {{ y = {op} }}", **extra}


NORM = {"s": ("float", (8,), 1.0), "b": ("float", (8,), 0.0)}
BIG = {"s": ("float", (64,), 1.0), "b": ("float", (64,), 0.0)}
RMS = """g (float[1,4,8] x) => (float[1,4,8] y) {
  two = Constant <value_float = 2.0> ()  eps = Constant <value_float = 0.00001> ()
  square = Pow (x, two)  mean = ReduceMean <axes = [-1]> (square)  safe = Add (mean, eps)
  root = Sqrt (safe)  y = %s (x, root) }"""
SHIFTED = 'g (uint8[4] x) => (uint8[4] y) { y = BitShift <direction = "LEFT"> (x, x) }'
STATISTICS = "g (float[1,4,8] x) => (float[1,4,8] y, float[1,4,1] mean) { %s }"
POOLED = """g (float[1,9,16] x) => (float[1,16,1,1] y) <int64[1] at = {2}> {
  turned = Transpose <perm = [0,2,1]> (x)  image = Unsqueeze (turned, at)  y = ReduceMean <axes = [%s]> (image) }"""
CASES: dict[str, tuple[Case, Case]] = {
    "QNN200": (one("Relu (x)", "1,2,2,2,2,2"), one("Relu (x)", "1,2,2,2,2")),
    "QNN204": (one("Softmax (x)", "1,2097153"), one("Softmax (x)", "1,2097152")),
    "QNN205": (
        {"graph": "g (int64[4] x) => (int64[4] y) { y = Abs (x) }"},
        {"graph": "g (int32[4] x) => (int32[4] y) { y = Abs (x) }"},
    ),
    "QNN206": (
        one("LayerNormalization <axis = 1> (x, s, b)", "1,8,8", stored=NORM),
        one("LayerNormalization <axis = -1> (x, s, b)", "1,8,8", stored=NORM),
    ),
    "QNN207": (
        one("InstanceNormalization (x, s, b)", "1,8,4,4,4", stored=NORM),
        one("InstanceNormalization (x, s, b)", "1,8,4,4", stored=NORM),
    ),
    "QNN208": (one("ReduceProd <axes = [1], keepdims = 1> (x)", "1,4", "1,1"), one("ReduceSum (x)", "1,4", "1,1")),
    "QNN210": (
        one("Gather (x, i)", "4", "1", stored={"i": ("int64", (1,), -1)}),
        one("Gather (x, i)", "4", "1", stored={"i": ("int64", (1,), 3)}),
    ),
    "QNN222": (
        one("InstanceNormalization (x, s, b)", "1,64,512,512", stored=BIG),
        one("InstanceNormalization (x, s, b)", "1,64,512,512", stored=BIG, sdk="2.51"),
    ),
    "QNN211": (
        {
            "graph": "g (float[1,4,8,8] x, float[2,4] r, int64[2] i) => (float[2,4,2,2] y) "
            '{ y = RoiAlign <mode = "max", output_height = 2, output_width = 2> (x, r, i) }'
        },
        {
            "graph": "g (float[1,4,8,8] x, float[2,4] r, int64[2] i) => (float[2,4,2,2] y) "
            '{ y = RoiAlign <mode = "avg", coordinate_transformation_mode = "output_half_pixel", sampling_ratio = 2, '
            "output_height = 2, output_width = 2> (x, r, i) }"
        },
    ),
    "QNN212": (
        {
            "graph": "g (float[1,4,8,8] x, float[1,8,8,2] p) => (float[1,4,8,8] y) "
            '{ y = GridSample <mode = "bicubic"> (x, p) }'
        },
        one("Relu (x)"),
    ),
    "QNN213": (
        {"graph": "g (float[1,8,4] b, float[1,2,8] s) => (int64[n,3] y) { y = NonMaxSuppression (b, s) }"},
        one("Relu (x)"),
    ),
    "QNN282": ({"graph": POSITIONED % "1,16,8"}, {"graph": POSITIONED % "2,16,8"}),
    "QNN283": (
        {"graph": STATISTICS % "y, mean = LayerNormalization (x, s)", "stored": NORM},
        {"graph": STATISTICS % "y = LayerNormalization (x, s)  mean = ReduceMean <axes = [-1]> (x)", "stored": NORM},
    ),
    "QNN284": ({"graph": SHIFTED}, one("Relu (x)")),
    "QNN286": (
        {"graph": "g (float[4] x, float b) => (float[4] y) { y = Clip (x, b) }"},
        {"graph": "g (float[4] x) => (float[4] y) { y = Clip (x, b) }", "stored": {"b": ("float", (), 0.1)}},
    ),
    "QNN287": (
        one("Conv <dilations = [256]> (x, w)", "1,1,300", "1,1,44", stored={"w": ("float", (1, 1, 2), 0.1)}),
        one("Conv <dilations = [255]> (x, w)", "1,1,300", "1,1,45", stored={"w": ("float", (1, 1, 2), 0.1)}),
    ),
    "QNN285": (
        {"graph": POOLED % "-1,-2", "encodings": {"image": {"type": "uint16"}}},
        {"graph": POOLED % "-1,-2", "encodings": {"image": {"type": "uint8"}}},
    ),
    "QNN219": ({"graph": RMS % "Div"}, {"graph": RMS % "Mul"}),
    "QNN220": (
        one("Conv (x, w)", "1,4,128,128", "1,8,128,128", stored={"w": ("float", (8, 4, 1, 1), 0.1)}),
        one("Conv (x, w)", "1,5,128,128", "1,8,128,128", stored={"w": ("float", (8, 5, 1, 1), 0.1)}),
    ),
}


def test_triggering_and_clean(lint: Lint) -> None:
    check_pairs(CASES, run=lambda code, case: lint(case).get(code, []))


def linted(asked: Asked) -> Iterator[str]:
    """``lint BACKEND TARGET RELEASE OPTION=VALUE ...``, or of one that is usual: all that the rules find."""
    backend, target, sdk, *given = asked.words or ("qnn-htp", "sm8650", "2.47")
    options = tuple((name, value) for name, _, value in (one.partition("=") for one in given))
    has_entries = bool(asked.encodings.entries or asked.encodings.float_tensors)
    situation = Situation(
        request=Request(model=Path("m.onnx"), target=target, options=options),
        model=asked.model,
        facts=asked.facts,
        encodings=asked.encodings if has_entries else None,
        target=resolve_target(target, sdk, backend),
    )
    for one in run_lint(situation, PROVIDER if backend == "ort-qnn" else CONVERTERS):
        open_ = f" ({one.claim.answered_by} can tell)" if one.claim else ""
        yield f"{one.severity} {one.code} {one.subject.name}: {one.message}{open_}"
        told = {"evidence": one.to_json()["evidence"], "cure": list(one.cure), "handled": one.handled}
        yield f"    {one.hint} {flat(told, 3)}".removesuffix(" {}")


QUESTIONS = {"lint": linted, "structure": lambda asked: iter([structure_of(asked.facts) or "open"])}

test_answers = answers_of(Path(__file__).with_name("graphs.txt"), QUESTIONS)
