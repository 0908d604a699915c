"""Lint rules about ONNX Runtime's QNN provider and about options: each with a triggering and a clean case."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from deploykit.findings import Finding, Severity
from tables import each_row

Case = dict[str, Any]
Lint = Callable[[Case], dict[str, list[Finding]]]

U16 = {"type": "uint16"}
SCALE = {"sx": ("float", (), 0.1), "zx": ("uint16", (), 0)}
QDQ = "xq = QuantizeLinear (x, sx, zx)  xd = DequantizeLinear (xq, sx, zx)"


def ep(graph: str, **extra: Any) -> Case:
    return {"graph": graph, "backend": "ort-qnn", **extra}


def layer(op: str, shape: str, weight: str, stored: dict[str, Any], out: str) -> Case:
    """``op`` over a quantized input ``xd`` and a weight ``w`` that ``weight`` computes."""
    graph = f"g (float[{shape}] x) => (float[{out}] y) {{ {QDQ} {weight} y = {op} }}"
    return ep(graph, stored={**SCALE, **stored}, opset=21)


def blocked(size: int, op: str = "MatMul (xd, w)") -> Case:
    """A 4-bit weight in blocks along the first axis, its scales stored in float."""
    stored = {"wq": ("int8", (48, 4), 1), "ws": ("float", (48 // size, 4), 0.1), "wz": ("int8", (48 // size, 4), 0)}
    weight = f"w = DequantizeLinear <axis = 0, block_size = {size}> (wq, ws, wz)"
    return layer(op, "1,48", weight, stored, "1,4")


def lpbq(op: str, size: int = 16, **extra: Any) -> Case:
    """A weight in the form the provider fuses: integer block scales behind a pair of their own."""
    stored = {
        "wq": ("int8", (48, 4), 1),
        "wz": ("int8", (48 // size, 4), 0),
        "sq": ("uint8", (48 // size, 4), 3),
        "sc": ("float", (4,), 0.1),
        "sz": ("uint8", (4,), 0),
    }
    weight = (
        "ws = DequantizeLinear <axis = 1> (sq, sc, sz)  "
        f"w = DequantizeLinear <axis = 0, block_size = {size}> (wq, ws, wz)"
    )
    return {**layer(op, "1,48", weight, stored, "1,4"), **extra}


def wide(scales: int) -> Case:
    """A 16-bit weight with so many scales."""
    stored = {"wq": ("int16", (8, 4), 1), "ws": ("float", (scales,), 0.1), "wz": ("int16", (scales,), 0)}
    weight = "w = DequantizeLinear <axis = 1> (wq, ws, wz)"
    return layer("MatMul (xd, w)", "1,8", weight, stored, "1,4")


def norm(kind: str, bias: str = "int32") -> Case:
    stored = {
        "gq": (kind, (8,), 1),
        "gs": ("float", (), 0.1),
        "gz": (kind, (), 0),
        "hq": (bias, (8,), 0),
        "hs": ("float", (), 0.01),
        "hz": (bias, (), 0),
    }
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
    "QNN234": (
        ep(NBITS % 16, stored=NBITS_STORED),
        ep(NBITS % 32, stored=NBITS_STORED),
    ),
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
    "QNN269": (
        options("ort-qnn", enable_htp_fp16_precision="0"),
        options("ort-qnn", enable_htp_fp16_precision="1"),
    ),
    "QNN272": (
        {**chain(paired=True), "options": {"htp_bf16_enable": "1"}},
        options("ort-qnn", htp_bf16_enable="1"),
    ),
    "QNN274": (
        {"graph": RELU, "described": {"w": (50_000, 35_001)}},
        {"graph": RELU, "described": {"w": (50_000, 35_000)}},
    ),
}


@each_row("code", sorted(CASES))
def test_triggering_and_clean(code: str, lint: Lint, as_expected: Callable[[str, Iterable[Finding]], None]) -> None:
    trigger, clean = CASES[code]
    as_expected(code, lint(trigger)[code])
    assert code not in lint(clean)


def test_every_android_id_of_the_tables_is_known(lint: Lint) -> None:
    for number, right in (("618", 69), ("639", 69), ("660", 87)):
        (finding,) = lint(options(soc_model=number))["QNN261"]
        assert f"soc_model is {right}" in finding.message
        assert finding.severity is Severity.ERROR


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ("block_size = 32", False),
        ("block_size = 64", False),
        ("bits = 2, block_size = 32", False),
        ("bits = 8, block_size = 32", True),
        ("bits = 4, block_size = 128", True),
    ],
)
def test_what_matmulnbits_may_say(attributes: str, found: bool, lint: Lint) -> None:
    graph = (NBITS % 32).replace("bits = 4, block_size = 32", attributes)
    assert ("QNN234" in lint(ep(graph, stored=NBITS_STORED))) is found


def test_weights_count_at_the_width_they_will_have(lint: Lint) -> None:
    """A parameter of int8 takes half of what float16 takes."""
    large = {"graph": RELU, "described": {"w": (50_000, 35_001)}}
    (finding,) = lint(large)["QNN274"]
    assert "QNN274" not in lint({**large, "encodings": {"w": {"type": "int8"}}})
    assert "QNN274" in lint({**large, "encodings": {"w": {"type": "int16"}}})
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(("arch", "known"), [("65", False), ("66", False), ("67", False), ("68", True), ("v81", True)])
def test_an_architecture_without_an_htp_is_none(arch: str, known: bool, lint: Lint) -> None:
    assert ("QNN266" in lint(options("ort-qnn", htp_arch=arch))) is not known


@pytest.mark.parametrize(("target", "way"), [("sm8450", "nothing better is taken on v69"), ("sm8550", "keeps 16 bits")])
def test_what_to_do_about_a_narrowed_operand_depends_on_the_architecture(target: str, way: str, lint: Lint) -> None:
    (finding,) = lint({**product("uint16"), "target": target})["QNN241"]
    assert finding.message.endswith(way)


def test_the_precision_option_was_fine_before_2_35(lint: Lint) -> None:
    case = options(precision="float16")
    assert lint({**case, "sdk": "2.33"})["QNN260"][0].severity is Severity.INFO
    assert lint({**case, "sdk": "2.35"})["QNN260"][0].severity is Severity.WARNING


def test_soc_id_is_an_error_where_it_is_gone(lint: Lint) -> None:
    case = options(soc_id="57")
    assert lint({**case, "sdk": "2.48.0"})["QNN263"][0].severity is Severity.ERROR
    assert lint({**case, "sdk": "2.41"})["QNN263"][0].severity is Severity.WARNING


def test_limits_of_the_provider_do_not_bind_the_converters(lint: Lint) -> None:
    found = lint({**wide(4), "backend": "qnn-htp"})
    assert "QNN232" not in found


def test_blocks_of_a_wrong_size(lint: Lint) -> None:
    assert "QNN234" not in lint(blocked(16))
    assert "QNN234" in lint({**blocked(6), "graph": blocked(6)["graph"]})


@pytest.mark.parametrize("form", ["fused pair", "encoding", "float scales"])
def test_only_lpbq_is_taken_for_lpbq(form: str, lint: Lint) -> None:
    """A blocked weight whose scales are float has blocks, but no LPBQ; one that only an encoding describes is LPBQ."""
    weight = {"type": "lpbq", "blocks": [[1.0, 2.0, 3.0, 4.0]]}
    stored = ep("g (float[1,48] x) => (float[1,4] y) { y = Gemm (x, w) }", stored={"w": ("float", (48, 4), 1.0)})
    case = {
        "fused pair": lpbq("Gemm (xd, w)"),
        "encoding": {**stored, "encodings": {"w": weight}},
        "float scales": blocked(16, "Gemm (xd, w)"),
    }[form]
    assert ("QNN251" in lint(case)) is (form != "float scales")
    assert ("QNN233" in lint({**case, "target": "qcs6490"})) is (form != "float scales")


def logged(scale: float) -> Case:
    """A Log between pairs, as a Q/DQ model has it; its output spans 65535 times the scale."""
    stored = {**SCALE, "so": ("float", (), scale), "zo": ("uint16", (), 65535)}
    graph = (
        f"g (float[1,4] x) => (float[1,4] y) {{ {QDQ}  n = Log (xd) "
        "q = QuantizeLinear (n, so, zo)  y = DequantizeLinear (q, so, zo) }"
    )
    return {**ep(graph, stored=stored), "backend": "qnn-htp"}


def test_the_grids_of_stored_pairs_are_read(lint: Lint) -> None:
    """A Q/DQ model has no encodings; its scales say the same."""
    (finding,) = lint(logged(3.9 / 65535))["QNN250"]
    assert finding.evidence["width"] == pytest.approx(3.9, rel=1e-3)
    assert "QNN250" not in lint(logged(4.2 / 65535))


@pytest.mark.parametrize(("zero", "code"), [(5, "QNN238"), (0, None)])
def test_zero_points_of_stored_pairs_are_read(zero: int, code: str | None, lint: Lint) -> None:
    stored = {"wq": ("int8", (8, 4), 1), "ws": ("float", (4,), 0.1), "wz": ("int8", (4,), zero)}
    case = layer("MatMul (xd, w)", "1,8", "w = DequantizeLinear <axis = 1> (wq, ws, wz)", stored, "1,4")
    assert ("QNN238" in lint(case)) == (code is not None)


@pytest.mark.parametrize(("scale", "wrong"), [(0.01, False), (0.03, True)])
def test_bias_scales_of_stored_pairs_are_compared(scale: float, wrong: bool, lint: Lint) -> None:
    stored = {
        "wq": ("int8", (4, 4, 1, 1), 1),
        "ws": ("float", (), 0.1),
        "bq": ("int32", (4,), 1),
        "bs": ("float", (), scale),
    }
    pairs = "w = DequantizeLinear (wq, ws)  h = DequantizeLinear (bq, bs)"
    case = layer("Conv (xd, w, h)", "1,4,8,8", pairs, stored, "1,4,8,8")
    assert ("QNN243" in lint(case)) == wrong
