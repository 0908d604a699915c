"""Lint rules about ONNX Runtime's QNN provider and about options: each with a triggering and a clean case."""

from collections.abc import Callable
from typing import Any

from deploykit.findings import Finding
from rule_cases import check_pairs
from tables import each_row

Case = dict[str, Any]
Lint = Callable[[Case], dict[str, list[Finding]]]
SCALE = {"sx": ("float", (), 0.1), "zx": ("uint16", (), 0)}
QDQ = "xq = QuantizeLinear (x, sx, zx)  xd = DequantizeLinear (xq, sx, zx)"


def ep(graph: str, **extra: Any) -> Case:
    return {"graph": graph, "backend": "ort-qnn", **extra}


def layer(op: str, shape: str, weight: str, stored: dict[str, Any], out: str) -> Case:
    """``op`` over a quantized input ``xd`` and a weight ``w`` that ``weight`` computes."""
    graph = f"g (float[{shape}] x) => (float[{out}] y) {{ {QDQ} {weight} y = {op} }}"
    return ep(graph, stored={**SCALE, **stored}, opset=21)


def blocked(size: int, op: str = "MatMul (xd, w)", kind: str = "int8") -> Case:
    """A weight in blocks along the first axis, its scales stored in float."""
    stored = {"wq": (kind, (48, 4), 1), "ws": ("float", (48 // size, 4), 0.1), "wz": (kind, (48 // size, 4), 0)}
    weight = f"w = DequantizeLinear <axis = 0, block_size = {size}> (wq, ws, wz)"
    return layer(op, "1,48", weight, stored, "1,4")


def lpbq(op: str, size: int = 16, columns: int = 4, **extra: Any) -> Case:
    """A weight in the form the provider fuses: integer block scales behind a pair of their own."""
    stored = {
        "wq": ("int8", (48, columns), 1),
        "wz": ("int8", (48 // size, columns), 0),
        "sq": ("uint8", (48 // size, columns), 3),
        "sc": ("float", (columns,), 0.1),
        "sz": ("uint8", (columns,), 0),
    }
    weight = (
        "ws = DequantizeLinear <axis = 1> (sq, sc, sz)  "
        f"w = DequantizeLinear <axis = 0, block_size = {size}> (wq, ws, wz)"
    )
    return {**layer(op, "1,48", weight, stored, f"1,{columns}"), **extra}


def wide(scales: int) -> Case:
    """A 16-bit weight with so many scales."""
    stored = {"wq": ("int16", (8, 4), 1), "ws": ("float", (scales,), 0.1), "wz": ("int16", (scales,), 0)}
    weight = "w = DequantizeLinear <axis = 1> (wq, ws, wz)"
    return layer("MatMul (xd, w)", "1,8", weight, stored, "1,4")


def norm(kind: str, bias: str = "int32") -> Case:
    stored = {"gq": (kind, (8,), 1), "gs": ("float", (), 0.1), "gz": (kind, (), 0)}
    stored |= {"hq": (bias, (8,), 0), "hs": ("float", (), 0.01), "hz": (bias, (), 0)}
    pairs = "w = DequantizeLinear (gq, gs, gz)  h = DequantizeLinear (hq, hs, hz)"
    op = "LayerNormalization <axis = -1> (xd, w, h)  o = QuantizeLinear (n, sx, zx)  y = DequantizeLinear (o, sx, zx)"
    graph = f"g (float[1,4,8] x) => (float[1,4,8] y) {{ {QDQ} {pairs}  n = {op} }}"
    return ep(graph, stored={**SCALE, **stored}, opset=21)


def added(kind: str) -> Case:
    stored = {"cq": (kind, (4,), 1), "cs": ("float", (), 0.1), "cz": (kind, (), 0)}
    return layer("Add (xd, w)", "1,4", "w = DequantizeLinear (cq, cs, cz)", stored, "1,4")


def per_channel_input(scales: int) -> Case:
    stored = {"s": ("float", (scales,), 0.1), "z": ("uint8", (scales,), 0)}
    pair = "q = QuantizeLinear <axis = 1> (x, s, z)  d = DequantizeLinear <axis = 1> (q, s, z)"
    return ep(f"g (float[1,4] x) => (float[1,4] y) {{ {pair}  y = Relu (d) }}", stored=stored)


def product(kind: str) -> Case:
    graph = "g (float[1,4,8] a, float[1,8,4] b) => (float[1,4,4] y) { y = MatMul (a, b) }"
    return ep(graph, encodings={"a": {"type": kind}, "b": {"type": kind}})


def chain(paired: bool) -> Case:
    middle = "mq = QuantizeLinear (m, sx, zx)  md = DequantizeLinear (mq, sx, zx)" if paired else "md = Identity (m)"
    graph = (
        f"g (float[1,4] x) => (float[1,4] y) {{ {QDQ}  m = Softmax (xd)  {middle}  n = Neg (md) "
        "yq = QuantizeLinear (n, sx, zx)  y = DequantizeLinear (yq, sx, zx) }"
    )
    return ep(graph, stored=SCALE)


def options(backend: str = "qnn-htp", **values: str) -> Case:
    graph = "g (float[4] x) => (float[4] y) { y = Relu (x) }"
    target = values.pop("target", "sm8650")
    keys = {name.replace("__", "."): value for name, value in values.items()}
    return {"graph": graph, "options": keys, "backend": backend, "target": target}


RELU = "g (float[4] x) => (float[4] y) { y = Relu (x) }"
NBITS = """g (float[1,64] x) => (float[1,4] y) {
  y = com.microsoft.MatMulNBits <K = 64, N = 4, bits = 4, block_size = %d> (x, w, s) }"""
NBITS_STORED = {"w": ("uint8", (4, 2, 16), 1), "s": ("float", (8,), 0.1)}
CASES: dict[str, tuple[Case, Case]] = {
    "QNN232": (wide(4), wide(1)),
    "QNN233": (lpbq("MatMul (xd, w)", target="qcs6490"), lpbq("MatMul (xd, w)", target="sm8650")),
    "QNN234": (ep(NBITS % 16, stored=NBITS_STORED), ep(NBITS % 32, stored=NBITS_STORED)),
    "QNN235": (lpbq("MatMul (xd, w)", size=8), lpbq("MatMul (xd, w)", size=16)),
    "QNN241": (product("uint16"), product("int16")),
    "QNN242": (per_channel_input(4), per_channel_input(1)),
    "QNN247": (norm("int8"), norm("uint8")),
    "QNN249": (added("int32"), added("uint8")),
    "QNN251": (lpbq("Gemm (xd, w)"), lpbq("MatMul (xd, w)")),
    "QNN252": (lpbq("Conv (xd, w)"), lpbq("MatMul (xd, w)")),
    "QNN253": (chain(paired=False), chain(paired=True)),
    "QNN260": (options(precision="float16"), options(O="3")),
    "QNN261": (options(soc_model="618", target="sm8750"), options(soc_model="69", target="sm8750")),
    "QNN262": (options(vtcm_mb="9"), options(vtcm_mb="8")),
    "QNN263": (options(soc_id="57"), options(soc_model="57")),
    "QNN264": (options(dlbc_weights="1"), options(dlbc_weights="1", dlbc="1")),
    "QNN265": (options(graphs__perf_profile="burst"), options(devices__cores__perf_profile="burst")),
    "QNN266": (options("ort-qnn", htp_arch="74"), options("ort-qnn", htp_arch="75")),
    "QNN267": (options("ort-qnn", htp_arch="73"), options("ort-qnn", htp_arch="75")),
    "QNN268": (options(O="4"), options(O="2")),
    "QNN269": (options("ort-qnn", enable_htp_fp16_precision="0"), options("ort-qnn", enable_htp_fp16_precision="1")),
    "QNN272": ({**chain(paired=True), "options": {"htp_bf16_enable": "1"}}, options("ort-qnn", htp_bf16_enable="1")),
    "QNN274": (
        {"graph": RELU, "described": {"w": (50_000, 35_001)}},
        {"graph": RELU, "described": {"w": (50_000, 35_000)}},
    ),
}


def test_triggering_and_clean(lint: Lint) -> None:
    check_pairs(CASES, run=lambda code, case: lint(case).get(code, []))


LARGE = {"graph": RELU, "described": {"w": (50_000, 35_001)}}
LINEAR = ep("g (float[1,48] x) => (float[1,4] y) { y = Gemm (x, w) }", stored={"w": ("float", (48, 4), 1.0)})
BLOCKS = {"scale": [[0.1] * 4] * 3, "axis": 1}
DESCRIBED = {**LINEAR, "encodings": {"w": {"type": "lpbq", "blocks": [[1.0, 2.0, 3.0, 4.0]]}}}


@each_row(
    ("code", "case", "severity", "told"),
    ("QNN234", blocked(16), "", ""),
    ("QNN235", lpbq("MatMul (xd, w)", columns=33), "warning", "3 blocks of 16 for 33 columns"),
    ("QNN235", lpbq("MatMul (xd, w)", columns=32), "", ""),
    # What an encoding says of the width, too.
    ("QNN234", {**LINEAR, "encodings": {"w": {**BLOCKS, "type": "int2", "block": 16}}}, "", ""),
    ("QNN234", {**LINEAR, "encodings": {"w": {**BLOCKS, "type": "int2", "block": 24}}}, "error", "a multiple of 16"),
    ("QNN234", blocked(4), "", ""),
    ("QNN234", blocked(6), "error", "blocks of 6 with 8 bits, a multiple of 4 is taken"),
    ("QNN234", blocked(24, kind="int4"), "", ""),
    ("QNN234", blocked(12, kind="int4"), "error", "blocks of 12 with 4 bits, a multiple of 8 is taken"),
    # Weights count at the width that they will have: a parameter of int8 takes half of what float16 takes.
    ("QNN274", {**LARGE, "encodings": {"w": {"type": "int8"}}}, "", ""),
    ("QNN274", {**LARGE, "encodings": {"w": {"type": "int16"}}}, "warning", "about 3.50 GB"),
    ("QNN241", {**product("int8"), "encodings": {"a": {"type": "uint16"}, "b": {"type": "int8"}}}, "", ""),
    # Limits of the provider do not bind the converters.
    ("QNN232", {**wide(4), "backend": "qnn-htp"}, "", ""),
    # A blocked weight whose scales are float is no LPBQ; one that only an encoding describes is.
    ("QNN251", DESCRIBED, "error", ""),
    ("QNN233", {**DESCRIBED, "target": "qcs6490"}, "warning", ""),
    ("QNN251", blocked(16, "Gemm (xd, w)"), "", ""),
    ("QNN233", {**blocked(16, "Gemm (xd, w)"), "target": "qcs6490"}, "", ""),
)
def test_how_far_each_goes(code: str, case: Case, severity: str, told: str, lint: Lint) -> None:
    found = lint(case).get(code, [])
    assert [str(finding.severity) for finding in found] == ([severity] if severity else [])
    assert all(told in finding.message for finding in found)
