"""The rule that reads the atlas: which node a row is about, what is said of it, and what a row is."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from deploykit.errors import InputError
from deploykit.findings import Finding, Severity
from deploykit_qualcomm.atlas.rows import Row, atlas_rows, costs, verdict_of
from rule_cases import check_pairs
from tables import each_row
from told import check_file

Case = Mapping[str, Any]
Lint = Callable[[Case], dict[str, list[Finding]]]


def pool(pad: int, sdk: str = "2.51") -> Case:
    """An AveragePool in float with windows of two, at the border of the map or not."""
    settings = f"kernel_shape = [2, 2], pads = [{pad}, {pad}, {pad}, {pad}], count_include_pad = {int(pad > 0)}"
    size = 7 + 2 * pad
    graph = f"g (float[1,8,8,8] x) => (float[1,8,{size},{size}] y) {{ y = AveragePool <{settings}> (x) }}"
    return {"graph": graph, "sdk": sdk}


U8, U16 = {"type": "uint8"}, {"type": "uint16"}


def softmax(scale: float, kind: Case = U16) -> Case:
    """A Softmax whose input has a step."""
    graph = "g (float[4,16] x) => (float[4,16] y) { y = Softmax (x) }"
    return {"graph": graph, "encodings": {"x": {**kind, "scale": scale, "zero": 128}}}


def gate(kind: Case, maker: str = "Conv (x, w)", factors: str = "h, s", **entries: Any) -> Case:
    """x times Sigmoid(x) behind something, all of one type; ``entries`` are other ones, None for one left out."""
    graph = f"g (float[1,4,9,9] x) => (float[1,4,9,9] y) {{ h = {maker}  s = Sigmoid (h)  y = Mul ({factors}) }}"
    stored = {"w": ("float", (4, 4, 1, 1), 0.1)} if "w" in maker else {}
    given = {**dict.fromkeys("xhsy", kind), **entries}
    return {"graph": graph, "stored": stored, "encodings": {name: entry for name, entry in given.items() if entry}}


def clip(high: float, zero: int = 0, maker: str = "Conv (x, w)", bounds: str = "<min = 0.0, max = 6.0>") -> Case:
    """A Clip at 0 and 6 behind something, with an encoding that ends at a value."""
    graph = f"g (float[1,4,9,9] x) => (float[1,4,9,9] y) {{ h = {maker}  y = Clip {bounds} (h) }}"
    spec = {**U16, "scale": high / (65535 - zero), "zero": zero}
    return {"graph": graph, "stored": {"w": ("float", (4, 4, 1, 1), 0.1)}, "encodings": {"y": spec}, "opset": 6}


CASES: dict[str, tuple[Case, Case]] = {"QNN320": (pool(1), pool(0))}
KNOWN: dict[str, tuple[Case, Case]] = {
    "a narrow Softmax in 16 bits": (softmax(2.64e-6), softmax(2.65e-6)),
    "a narrow Softmax in 8 bits": (softmax(4.23e-5, U8), softmax(4.24e-5, U8)),
    "a gate": (gate(U16), gate(U8)),
    "a gate that comes first": (gate(U16, factors="s, h"), gate(U16, factors="s, s")),
    "a gate behind a pool": (gate(U16, "MaxPool <kernel_shape=[3, 3], pads=[1, 1, 1, 1]> (x)"), gate(U16, "Relu (x)")),
    "a gate in other steps": (gate(U16), gate(U16, s=None)),
    "a Clip that ends before its grid": (clip(6.001), clip(6.0)),
    "a Clip that begins behind the start of its grid": (clip(6.0, zero=2), clip(6.0, maker="Relu (x)", zero=2)),
    "a Clip without an upper bound": (clip(6.0, zero=2, bounds="<min = 0.0>"), clip(6.0, bounds="<min = 0.0>")),
}
"""What three rules said by themselves before there were rows about it."""


def test_triggering_and_clean(lint: Lint) -> None:
    check_pairs(CASES, run=lambda code, case: lint(case).get(code, []))


@pytest.mark.parametrize("name", KNOWN)
@each_row("sdk", "2.51", "2.33")
def test_what_a_kernel_is_known_to_do_is_told_of_every_release(name: str, sdk: str, lint: Lint) -> None:
    told, untold = KNOWN[name]
    (found,) = lint({**told, "sdk": sdk})["QNN320"]
    known = [row for row in atlas_rows() if row.mechanism]
    assert found.severity is Severity.WARNING and any(row.mechanism in found.message for row in known)
    assert any(f"inferred for {sdk}" in source for source in found.sources) is (sdk == "2.33")
    assert ("another operator in front of it" in found.hint) is ("behind" in found.evidence["when"])
    assert "QNN320" not in lint({**untold, "sdk": sdk})


def row(**when: Any) -> Row:
    return Row(
        op="Log", types=("u16",), verdict="wrong", sdk="2.51.0", soc=57, hit=3, example="Log: x | w8a16", when=when
    )


@each_row(("length", "refused"), (6, True), (7, False))
def test_the_length_that_counts_is_that_of_the_axis_of_the_operator(length: int, refused: bool, lint: Lint) -> None:
    graph = f"g (float[{length},16,16] x) => (float[{length},16,16] y) {{ y = LayerNormalization <axis = -3> (x, w) }}"
    case = {"graph": graph, "stored": {"w": ("float", (length, 16, 16), 1.0)}, "encodings": {"x": U8, "y": U8}}
    found = lint({**case, "sdk": "2.51"}).get("QNN320", [])
    assert [one.evidence["verdict"] for one in found] == ["refused"] * refused


def test_a_condition_holds_only_where_every_part_is_known_to() -> None:
    some = row(span="<= 4", mode="nearest")
    assert some.holds({"span": 3.9, "mode": "nearest"}) and some.holds({"span": 4.0, "mode": "nearest"})
    assert not some.holds({"span": 4.1, "mode": "nearest"}) and not some.holds({"mode": "nearest"})
    assert not some.holds({"span": 3.9, "mode": "linear"}) and not some.holds({"span": "?", "mode": "nearest"})
    assert row(size=">= 2").holds({"size": 2.0}) and not row(size=">= 2").holds({"size": 1.0})
    assert row(size=(2.0, ">= 4")).holds({"size": 5.0}) and not row(size=(2.0, ">= 4")).holds({"size": 3.0})
    assert row(size=(2.0, ">= 4")).condition == "size is 2 or >= 4"
    assert row().condition == "as far as tried, always" and some.condition == "span <= 4, mode is nearest"


def test_a_row_with_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text('[[row]]\nop = "Log"\nkind = "u16"\n', "utf-8")
    with pytest.raises(InputError, match=r"wrong\.toml"):
        atlas_rows(tmp_path)


def judged(words: str) -> list[str]:
    """Of ``Relu > Add u8 most=1 usual=1``: the verdict on a deviation of operators in a row; share and odd are 0."""
    *ops, kind, rest = re.split(r" > | (?=u8|u16|float)|(?<=u8) |(?<=u16) |(?<=float) ", words)
    numbers = {name: float(value) for name, value in (word.split("=") for word in rest.split())}
    span = {"u8": 255.0, "u16": 65535.0, "float": 2048.0}[kind]
    return [str(verdict_of(ops, kind, **{"span": span, "share": 0.0, **numbers}))]  # type: ignore[arg-type]


def test_steps_are_judged_by_what_the_operator_costs() -> None:
    check_file(Path(__file__).with_name("verdicts.told"), judged)
    dearest = max((one for one in costs().values() if one.type == "u16" and one.most < 64), key=lambda one: one.most)
    most = f"u16 most={3 * dearest.most} usual={3 * dearest.usual}"
    assert judged(f"{dearest.op} {most}") == ["right"] != judged(f"Relu {most}")
