"""Lint rules about the graph alone: each with a case that triggers it and one that does not."""

from collections.abc import Callable
from typing import Any

from deploykit.findings import Finding
from rule_cases import check_pairs
from tables import each_row

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
LAYER_NORM = """g (float[1,4,8] x) => (float[1,4,8] y) {
  two = Constant <value_float = 2.0> ()  eps = Constant <value_float = 0.00001> ()
  centre = ReduceMean <axes = [-1]> (x)  centred = Sub (x, centre)
  square = Pow (centred, two)  mean = ReduceMean <axes = [-1]> (square)  safe = Add (mean, eps)
  root = Sqrt (safe)  y = Div (centred, root) }"""
SHIFTED = 'g (uint8[4] x) => (uint8[4] y) { y = BitShift <direction = "LEFT"> (x, x) }'
STATISTICS = "g (float[1,4,8] x) => (float[1,4,8] y, float[1,4,1] mean) { %s }"
SHUFFLE = """g (float[1,4,8,8] x) => (float[1,16,4,4] y) <int64[6] a = {1,4,4,2,4,2}, int64[4] b = {1,16,4,4}> {
  wide = Reshape (x, a)  moved = Transpose <perm = [0,1,3,5,2,4]> (wide)  y = Reshape (moved, b) }"""
SHUFFLED = SHUFFLE.replace("moved, b)", "moved, b) q=DequantizeLinear (p, n)").replace(
    "x) =>", "x, int8 p, float n) =>"
)
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


PAIR = "squared = QuantizeLinear (square, s, z)  back = DequantizeLinear (squared, s, z)  mean = "
THROUGH_PAIRS = (RMS % "Div").replace("mean = ", PAIR).replace("(square)  safe", "(back)  safe")
SAMPLED = "g (float[1,4,8,8] x, float[1,8,8,2] p) => (float[1,4,8,8] y) { %s }"
GRID_SAMPLE = {"graph": SAMPLED % "y = GridSample (x, p)"}
TURNED = "g (float[1,2,3,4,5,6] x) => (float[6,1,3,2,5,4] y) { y = Transpose <perm = [5,0,2,1,4,3]> (x) }"
BEHIND, PICTURES = CASES["QNN210"][0], "1,64,160,160"
TAKEN_BY_CONVERTER = "the converter takes it, whether the compiler does is not known"
OF_ANY_RANK = """g (float[1,8,8] x) => (float[1,8,8] y) {
  own = com.microsoft.Own (x)  y = LayerNormalization <axis = 1> (own, s, b) }"""
ROIS = """g (float[1,4,8,8] x, float[2,4] r, int64[2] i) => (float[2,4,2,2] y) {
  y = RoiAlign <mode = "avg", sampling_ratio = 2, output_height = 2, output_width = 2> (x, r, i) }"""


def resized(settings: str, factors: str = "1, 1, 2, 2") -> Case:
    """A picture, twice as large; only its ``settings`` matter."""
    graph = f"g (float[1,4,6,8] x) => (float[1,4,12,16] y) <float[{factors.count(',') + 1}] s = {{{factors}}}>"
    return {"graph": f"{graph} {{ y = Resize <{settings}> (x, , s) }}", "opset": 19, "sdk": "2.51"}


def padded(shape: str) -> Case:
    """Two more values along the last axis, reflected."""
    rank, whole = len(shape.split(",")), shape[:-1] + str(int(shape[-1]) + 2)
    pads = ", ".join(["0"] * (2 * rank - 1) + ["2"])
    graph = f"g (float[{shape}] x) => (float[{whole}] y) <int64[{2 * rank}] p = {{{pads}}}>"
    return {"graph": f'{graph} {{ y = Pad <mode = "reflect"> (x, p) }}'}


def lengths(given: str, of: str) -> Case:
    """An LSTM with the lengths of its sequences, or without."""
    graph = f"g ({given}) => (float[6,1,1,16] y) {{ y = LSTM <hidden_size = 16> (x, w, r, b{of}) }}"
    sizes = {"w": (1, 64, 8), "r": (1, 64, 16), "b": (1, 128)}
    return {"graph": graph, "stored": {name: ("float", shape, 1.0) for name, shape in sizes.items()}}


@each_row(
    ("code", "case", "severity", "told"),
    # Refused operators and attributes; attributes at their harmless value pass.
    ("QNN208", lengths("float[6,1,8] x, int32[1] n", ", n"), "error", "pack_padded_sequence"),
    ("QNN208", lengths("float[6,1,8] x", ""), "", ""),
    ("QNN208", one("MaxPool <kernel_shape = [2,2,2]> (x)", "1,4,8,8,8", "1,4,7,7,7"), "error", ""),
    ("QNN208", one("MaxPool <kernel_shape = [2,2], dilations = [2,2]> (x)", "1,4,8,8", "1,4,6,6"), "error", ""),
    ("QNN208", one("MaxPool <kernel_shape = [2,2], dilations = [1,1]> (x)", "1,4,8,8", "1,4,7,7"), "", ""),
    ("QNN208", one("Mod <fmod = 1> (x, x)", "4"), "error", ""),
    ("QNN208", one("LpNormalization <p = 1> (x)", "4,8", "4,8"), "error", "magnitudes"),
    ("QNN208", resized('coordinate_transformation_mode = "half_pixel_symmetric"'), "error", "half_pixel_symmetric"),
    ("QNN208", resized('coordinate_transformation_mode = "align_corners", antialias = 0'), "", ""),
    ("QNN208", resized("antialias = 1"), "error", "antialias"),
    ("QNN320", resized('mode = "cubic", axes = [2, 3]', "2, 2"), "warning", "factors for all axes"),
    ("QNN320", resized('mode = "linear", axes = [2, 3]', "2, 2"), "", ""),
    ("QNN320", resized('mode = "cubic", exclude_outside = 1'), "info", "at the border"),
    ("QNN320", resized('mode = "cubic"'), "", ""),
    ("QNN206", one("LayerNormalization <axis = 2> (x, s, b)", "1,8,8", stored=NORM), "", ""),
    ("QNN206", {"graph": OF_ANY_RANK, "stored": NORM}, "", ""),
    ("QNN208", padded("1,2,3,4,5"), "error", "rank 4 at most"),
    ("QNN208", padded("2,3,4,5"), "", ""),
    # The default of the coordinates of a RoiAlign is another one before set 16.
    ("QNN211", {"graph": ROIS, "opset": 15}, "", ""),
    ("QNN211", {"graph": ROIS, "opset": 16}, "error", "half_pixel"),
    # A norm is seen through pairs; one of x - mean(x) is a layer normalization.
    ("QNN219", {"graph": THROUGH_PAIRS, "stored": {"s": ("float", (), 0.1), "z": ("uint8", (), 0)}}, "info", ""),
    ("QNN219", {"graph": LAYER_NORM}, "", ""),
    # A small picture is not shallow work.
    ("QNN220", one("Conv (x, w)", "1,4,128,127", "1,8,128,127", stored={"w": ("float", (8, 4, 1, 1), 0.1)}), *("", "")),
    # The chip decides what is too big.
    ("QNN222", one("InstanceNormalization (x, s, b)", PICTURES, stored=BIG, target="sm8650"), "", ""),
    ("QNN222", one("InstanceNormalization (x, s, b)", PICTURES, stored=BIG, target="qcs6490"), "warning", "6.2 MB"),
    # Other axes are tiled: a Softmax along the middle and a mean over pictures compile at any size.
    ("QNN204", one("Softmax <axis = 1> (x)", "1,4194304,4"), "", ""),
    ("QNN204", one("ReduceMax <axes = [1]> (x)", "1,4194304,4", "1,1,4"), "", ""),
    ("QNN204", one("ReduceMax <axes = [1,2]> (x)", "1,4,4194304", "1,1,1"), "error", ""),
    # What a later release takes is no warning.
    ("QNN210", {**BEHIND, "sdk": "2.51", "backend": "ort-qnn"}, "", ""),
    ("QNN210", {**BEHIND, "sdk": "2.51", "backend": "qnn-htp"}, "warning", ""),
    # GridSample is as good as the release; of an unknown one several are one finding.
    ("QNN212", {**GRID_SAMPLE, "sdk": "2.29"}, "warning", "broken on 2.29.0"),
    ("QNN212", {**GRID_SAMPLE, "sdk": "2.31"}, "warning", "unknown on 2.31.0"),
    ("QNN212", {**GRID_SAMPLE, "sdk": "2.33"}, "warning", f"unknown on 2.33.0; {TAKEN_BY_CONVERTER}"),
    ("QNN212", {**GRID_SAMPLE, "sdk": "2.35"}, "warning", f"unknown on 2.35.0; {TAKEN_BY_CONVERTER}"),
    ("QNN212", {**GRID_SAMPLE, "sdk": "2.36"}, "", ""),
    ("QNN212", {**GRID_SAMPLE, "sdk": "2.51"}, "", ""),
    ("QNN212", {"graph": SAMPLED % "a=GridSample (x, p) y=GridSample (a, p)", "sdk": "2.31"}, *("warning", "2 nodes")),
    # A windowed ViT compiles in fp16 on 2.41 (qualcomm/aimet#4086); the compiler of 2.36.1 refuses such a chain. At
    # the border there is nothing to merge with: that of 2.51 refuses onnx's own test_operator_permute2.
    ("QNN200", {"graph": SHUFFLE, "sdk": "2.41"}, "warning", ""),
    ("QNN200", {"graph": SHUFFLE, "sdk": "2.36"}, "error", ""),
    ("QNN200", {"graph": SHUFFLED, "sdk": "2.51", "backend": "ort-qnn"}, "info", ""),
    ("QNN200", {"graph": SHUFFLE, "sdk": "2.51"}, "warning", ""),
    ("QNN200", {"graph": TURNED, "sdk": "2.51"}, "error", ""),
    # A reduction has the type of its result where the file, as AIMET's, has no entry behind a Reshape.
    ("QNN285", {"graph": POOLED % "-1,-2", "encodings": {"y": {"type": "uint16"}}}, "warning", ""),
)
def test_how_far_each_goes(code: str, case: Case, severity: str, told: str, lint: Lint) -> None:
    found = lint(case).get(code, [])
    assert [str(finding.severity) for finding in found] == ([severity] if severity else [])
    assert all(told in finding.message for finding in found)


DYNAMIC = (
    "g (float[1,8,64] x, uint8[64,32] w, uint8 z, float s) => (%s) { "
    "q, qs, qz = DynamicQuantizeLinear (x)  sums = MatMulInteger (q, w, qz, z)  f = Cast <to = 1> (sums)  "
    "scale = Mul (qs, s)  y = Mul (f, scale) }"
)


def test_a_dynamically_quantized_layer_is_taken_by_the_provider_as_one(lint: Lint) -> None:
    whole, read = ({"graph": DYNAMIC % out} for out in ("float[1,8,32] y", "float[1,8,32] y, uint8[1,8,64] q"))
    assert "QNN284" not in lint({**whole, "sdk": "2.51", "backend": "ort-qnn"})
    assert len(lint({**whole, "sdk": "2.51"})["QNN284"]) == 2
    (left,) = lint({**read, "sdk": "2.51", "backend": "ort-qnn"})["QNN284"]
    assert "takes as one" in left.message
