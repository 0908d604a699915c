"""The rule that reads the atlas: which node a row is about, what is said of it, and what a row is."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from deploykit.errors import InputError
from deploykit.findings import Finding
from deploykit_qualcomm.atlas.rows import Row, atlas_rows, costs, verdict_of
from deploykit_qualcomm.atlas.traits import traits_of, type_of
from deploykit_qualcomm.rules.views import SmallGraph
from graph_questions import Asked, answers_of
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


CASES: dict[str, tuple[Case, Case]] = {"QNN320": (pool(1), pool(0))}


def test_triggering_and_clean(lint: Lint) -> None:
    check_pairs(CASES, run=lambda code, case: lint(case).get(code, []))


def row(**when: Any) -> Row:
    return Row(
        op="Log", types=("u16",), verdict="wrong", sdk="2.51.0", soc=57, hit=3, example="Log: x | w8a16", when=when
    )


@each_row(("length", "refused"), (6, True), (7, False))
def test_the_length_that_counts_is_that_of_the_axis_of_the_operator(length: int, refused: bool, lint: Lint) -> None:
    graph = f"g (float[{length},16,16] x) => (float[{length},16,16] y) {{ y = LayerNormalization <axis = -3> (x, w) }}"
    encodings = {name: {"type": "uint8"} for name in "xy"}
    case = {"graph": graph, "stored": {"w": ("float", (length, 16, 16), 1.0)}, "encodings": encodings}
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


def traits(asked: Asked) -> Iterator[str]:
    """Of each node its type, and what is true of it in the words of the atlas: all, or what has one of these words."""
    graph = SmallGraph(model=asked.model, facts=asked.facts, encodings=asked.encodings)
    for node in asked.facts.nodes:
        every = (f"{name} {value}".removesuffix(".0") for name, value in sorted(traits_of(graph, node).items()))
        found = [one for one in every if not asked.words or not set(asked.words).isdisjoint(one.split())]
        yield f"{node.label} in {type_of(graph, node) or 'no type'}: {', '.join(found)}"


test_answers = answers_of(Path(__file__).with_name("traits.txt"), {"traits": traits})
