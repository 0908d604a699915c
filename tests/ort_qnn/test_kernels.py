"""Small graphs to run side by side: what each is given, how far off it is, what that means, what is remembered."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from deploykit.accuracy.simulate.sessions import Session
from deploykit_ort_qnn.bench.ask import Bench, CompileAnswer, KernelAnswer, Memory, judged
from deploykit_ort_qnn.bench.kernels import Kernel, kernels_of
from deploykit_ort_qnn.bench.pieces import Pieces, anonymous
from deploykit_ort_qnn.bench.together import Deviation, Ran, Span, covering, deviation, joined
from tables import each_row


def parsed(text: str, opset: int = 21) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


GRIDS = "float s = {0.5}, uint8 z = {3}, uint16 w = {3}, float c = {1}"
PAIR = "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)"
CHAIN = parsed(f"""g (float[1,4] x) => (float[1,4] y) <{GRIDS}> {{ {PAIR} [log] a = Log (d)
  q1 = QuantizeLinear (a, s, z) d1 = DequantizeLinear (q1, s, z) [neg] b = Neg (d1)
  q2 = QuantizeLinear (b, s, z) y = DequantizeLinear (q2, s, z) }}""")


def told(kernel: Kernel) -> tuple[Any, ...]:
    """Operators, type, steps, number of sets, and of each input its type and what it reaches."""
    given = {}
    for name in kernel.samples[0] if kernel.samples else ():
        sets = [sample[name] for sample in kernel.samples]
        ends = min(one.min() for one in sets), max(one.max() for one in sets)
        given[name] = sets[0].dtype.name, round(float(ends[0]), 3), round(float(ends[1]), 3)
    return kernel.operators, kernel.type, kernel.steps, kernel.why or len(kernel.samples), given


@each_row(
    ("graph", "wanted"),
    ("float[1,300] x) => (float[1,300] y) { y = Tanh (x)", (("Tanh",), "float", {}, 6, {"u0/x": ("float32", -4, 4)})),
    ("float[1,4] x) => (float[1,4] y) { y = Tanh (x)", (("Tanh",), "float", {}, 11, {"u0/x": ("float32", -4, 4)})),
    ("float[1,86] x) => (float[1,86] y) { y = Tanh (x)", (("Tanh",), "float", {}, 8, {"u0/x": ("float32", -4, 4)})),
    ("float16[30] x) => (float16[30] y) { y = Sqrt (x)", (("Sqrt",), "float", {}, 6, {"u0/x": ("float16", 0.016, 4)})),
    ("bool[400] x) => (bool[400] y) { y = Not (x)", (("Not",), "float", {}, 6, {"u0/x": ("bool", 0, 1)})),
    (
        "float[4096,2049] x) => (float[4096,2049] y) { y = Tanh (x)",
        (("Tanh",), "float", {}, "it reads and makes more than 16,777,216 values", {}),
    ),
    (
        "int32[4] x) => (int32[4] y) { y = Abs (x)",
        (("Abs",), "float", {}, "what its input x may hold is not known", {}),
    ),
    (
        "float[2,3] x, float[2,3] w) => (float[2,3] y) { y = Div (x, w)",
        (("Div",), "float", {}, 11, {"u0/x": ("float32", -4, 4), "u0/w": ("float32", 0.016, 4)}),
    ),
    (
        "float[3,5] x, int32[40] i) => (float[3,40] y) { y = Gather <axis = 1> (x, i)",
        (("Gather",), "float", {}, 11, {"u0/x": ("float32", -4, 4), "u0/i": ("int32", -5, 4)}),
    ),
    (
        f"float[1,4] x) => (bool[1,4] y) <{GRIDS}> {{ {PAIR.replace('s, z', 's, w')} y = Greater (d, c)",
        (("Greater",), "u16", {}, 11, {"u0/x": ("float32", -1.5, 32766)}),
    ),
)
def test_what_a_kernel_is_given(graph: str, wanted: tuple[Any, ...]) -> None:
    (kernel,) = kernels_of(parsed(f"g ({graph} }}"))
    assert told(kernel) == wanted


def test_kernels_come_alone_and_then_among_their_neighbours() -> None:
    log, neg, both = kernels_of(CHAIN)
    given = {"u0/x": ("float32", 0.5, 126)}  # of what a Log is not defined for nothing is asked
    assert told(log) == (("Log",), "u8", {"u0/d1": 0.5}, 11, given) and (log.place, log.nodes) == ("alone", ("log",))
    assert told(neg) == (("Neg",), "u8", {"u1/y": 0.5}, 11, {"u1/a": ("float32", -1.5, 126)})
    assert told(both)[:3] == (("Log", "Neg"), "u8", {"u2/y": 0.5}) and (both.place, both.nodes) == ("inside", ("neg",))


def test_a_piece_has_the_pairs_around_it_and_needs_known_sizes() -> None:
    pieces = Pieces(CHAIN)
    at = pieces.makers(["a"], {"Log"})
    assert pieces.makers(["y", "d1", "x", "q"], {"Log", "Neg"}) == (5, 2)
    assert pieces.makers(["y"], {"Log"}) == () and pieces.makers(["q"], {"QuantizeLinear"}) == (0,)
    part = pieces.cut(at)
    assert part is not None and [node.op_type for node in part.graph.node] == [
        *("QuantizeLinear", "DequantizeLinear", "Log", "QuantizeLinear", "DequantizeLinear")
    ]
    assert [value.name for value in (*part.graph.input, *part.graph.output)] == ["x", "d1"]
    assert pieces.cut(()) is None
    assert Pieces(parsed("g (float[n,4] x) => (float[n,4] y) { y = Log (x) }")).cut([0]) is None
    renamed = parsed("other (float[1,4] v) => (float[1,4] w) { [name] w = Log (v) }")
    assert anonymous(parsed("g (float[1,4] x) => (float[1,4] y) { y = Log (x) }")) == anonymous(renamed)


def test_graphs_stand_side_by_side_with_the_highest_sets() -> None:
    one, two = (
        parsed(f"g (float[4] {n}x) => (float[4] {n}y) {{ {n}y = Neg ({n}x) }}", o) for n, o in (("a", 17), ("b", 20))
    )
    whole = joined([one, two])
    assert [node.output[0] for node in whole.graph.node] == ["ay", "by"] and whole.opset_import[0].version == 20
    assert [value.name for value in (*whole.graph.input, *whole.graph.output)] == ["ax", "bx", "ay", "by"]


def test_input_sets_cover_a_range() -> None:
    first, second, shuffled, one, ends, spike, bell = covering((2, 500), Span(low=-1.0, high=3.0), 0, dense=2)
    even = np.linspace(-1, 3, 2000)
    np.testing.assert_allclose(first.ravel(), even[::2], atol=1e-6)
    np.testing.assert_allclose(second.ravel(), even[1::2], atol=1e-6)
    np.testing.assert_allclose(np.sort(shuffled.ravel()), (even[::2] + 0.001).clip(-1, 3), atol=1e-6)
    assert not (np.diff(shuffled.ravel()) > 0).all() and (one == np.float32(-1 + 0.61 * 4)).all()
    assert {*np.unique(ends)} == {-1, 3} and np.flatnonzero(spike).tolist() == [333] and spike.max() == 3
    assert abs(bell.mean() - 1) < 0.05 and abs(bell.std() - 0.5) < 0.05
    above = covering((4,), Span(low=1.0, high=2.0), 0, turned=True)
    assert above[0].tolist() == [2.0, pytest.approx(5 / 3), pytest.approx(4 / 3), 1.0] and len(above) == 6
    assert above[4].tolist() == [1, 2, 1, 1]  # a spike rises from the value that is nearest to zero
    coarse = np.stack(covering((100,), Span(low=-1.1, high=2.9, coarse=True), 0))
    assert (coarse.min(), coarse.max()) == (-0.875, 2.625) and ((coarse - 0.125) * 4 % 1 == 0).all()


RISING, NAN = np.arange(100, dtype=np.float32), float("nan")
HUGE = np.asarray([1, -2, 1e30, -1e6])


def off(*got: Any, wanted: Any = RISING, step: float = 1.0) -> Deviation:
    sides = [[np.asarray(one, wanted.dtype) for one in side] for side in ([wanted] * len(got), got)]
    return deviation({"y": sides[0]}, {"y": sides[1]}, {"y": step} if step else {})


@each_row(
    ("found", "wanted"),
    (off(RISING, RISING * 2, step=0.5), Deviation(most=198, usual=194, span=198, share=0.49, factor=1.5, set=1)),
    (off(RISING, step=0.5), Deviation(most=0, usual=0, span=198, share=0, factor=1.0)),
    # Far is a hundredth of the range, and more than two steps and a half.
    (off([2.5, *RISING[1:]]), Deviation(most=2.5, usual=0.025, span=99, share=0, factor=1.0)),
    (off([2.6, *RISING[1:]]), Deviation(most=2.6, usual=0.026, span=99, share=0.01, factor=1.0)),
    (off([9.9, *RISING[1:]], step=0.1), Deviation(most=99, usual=0.99, span=990, share=0.01, factor=1.0)),
    (off([0.9, *RISING[1:]], step=0.1), Deviation(most=9, usual=0.09, span=990, share=0, factor=1.0)),
    # A step of float16 is 2^-10 of the largest value; what is not finite counts where the reference is.
    (off([NAN, *RISING[1:]], step=0), Deviation(most=0, usual=0, span=1010, share=0, factor=1.0, odd=1)),
    (off([1, -2, np.inf, -65504], wanted=HUGE, step=0), Deviation(most=0, usual=0, span=2050, share=0, factor=1.0)),
    (off([NAN, -2, np.inf, -65504], wanted=HUGE, step=0).odd, 1),
    (off([1, -2, np.inf, -1e6], wanted=HUGE).odd, 1),
    (off([1, 2], wanted=np.asarray([NAN, 2])), Deviation(most=0, usual=0, span=0, share=0, factor=1.0)),
    (off([NAN, NAN], wanted=np.asarray([1.0, 2])), Deviation(most=1e9, usual=0, span=0, share=1, odd=2)),
    (off([1, 2], wanted=np.asarray([NAN, NAN])), Deviation(most=0, usual=0, span=0, share=0)),
    (off([2.0**-29], wanted=np.zeros(1), step=0), Deviation(most=2, usual=2, span=0, share=0)),
    (off([0, 1, 2, 9], wanted=np.arange(4)), Deviation(most=1, usual=0.97, span=1, share=0.25)),
    (off([0, 1, 2]), Deviation(most=1e9, usual=1e9, span=0, share=1)),
)
def test_deviations_are_counted_in_steps(found: Any, wanted: Any) -> None:
    assert found == wanted


def test_the_worst_output_counts() -> None:
    wanted = {"a": [RISING], "b": [RISING], "c": [RISING]}
    got = {"a": [RISING + 3], "b": [RISING + 2], "c": [RISING]}
    assert deviation(wanted, got, dict.fromkeys("abc", 1.0)).most == 3
    assert deviation({**wanted, "c": [RISING / RISING.max()]}, {**got, "c": [RISING * NAN]}, {}).odd == 100


def kernel(place: str = "alone", kind: str = "u8", why: str = "") -> Kernel:
    about: dict[str, Any] = {"key": "k", "nodes": ("n",), "prefix": "u0/", "model": onnx.ModelProto(), "steps": {}}
    return Kernel(operators=("Own",), place=place, type=kind, why=why, **about)


FAR = Deviation(most=120, usual=60, span=250, share=0.4, factor=0.5, set=2)
WORDS = "up to 120 of 250 steps off, 40 % of values far, about 0.5 times what it should be, most in input set 2"
ODD = replace(FAR, odd=2)


@each_row(
    ("one", "answer", "wanted"),
    (kernel(), None, ("not judged", "it was not reached")),
    (kernel(why="no input"), KernelAnswer(answer="taken"), ("not judged", "no input")),
    (kernel(), KernelAnswer(answer="refused", why="Own"), ("refused", "Own")),
    (kernel(), KernelAnswer(answer="failed", why="3110"), ("refused", "not finalized: 3110")),
    (kernel(), KernelAnswer(answer="crashed", why="SIGABRT"), ("not judged", "crashed: SIGABRT")),
    (kernel(), KernelAnswer(answer="taken", deviation=FAR), ("wrong", WORDS)),
    (kernel(), KernelAnswer(answer="taken", deviation=ODD), ("wrong", "2 values are not finite")),
    (kernel(), KernelAnswer(answer="taken", deviation=replace(FAR, most=0, usual=0)), ("right", "")),
    # Among neighbours only what is far off in most places is laid to the kernels.
    (kernel("inside"), KernelAnswer(answer="taken", deviation=FAR), ("wrong", WORDS)),
    (kernel("inside"), KernelAnswer(answer="taken", deviation=replace(FAR, usual=12.5)), ("right", "")),
    (kernel("inside"), KernelAnswer(answer="taken", deviation=replace(FAR, share=0.05)), ("right", "")),
    (
        kernel("inside"),
        KernelAnswer(answer="taken", deviation=replace(ODD, share=0)),
        ("wrong", "2 values are not finite"),
    ),
)
def test_what_an_answer_means(one: Kernel, answer: KernelAnswer | None, wanted: tuple[str, str]) -> None:
    assert judged(one, answer)[:2] == wanted


def test_what_was_measured_is_told() -> None:
    answer = KernelAnswer(answer="taken", deviation=replace(FAR, factor=1.019), from_float=(3.0, 4.0))
    _, why, measured = judged(kernel(), answer)
    assert why == "up to 120 of 250 steps off, 40 % of values far, most in input set 2"
    numbers = {"most": 120, "usual": 60, "span": 250, "share": 0.4, "factor": 1.019, "set": 2, "odd": 0}
    more = {"unit": "steps", "limit": measured["limit"], "file_from_float": 3.0, "from_float": 4.0}
    assert measured == {**numbers, **more}
    assert (answer.most, KernelAnswer(answer="refused").most) == (120, 0)


@each_row(
    ("status", "message", "no"),
    ("compiled", "", ""),
    ("crashed", "died of SIGABRT", "died of SIGABRT"),
    ("refused", "two nodes", "it is not taken"),
    ("failed", "assigned to the default CPU EP, which is off", "it is not taken"),
    ("failed", "11 : EP_FAIL : Failed to finalize", "Failed to finalize"),
    ("failed", "1 : FAIL : no model", ""),
    ("timed-out", "EP_FAIL : late", ""),
)
def test_what_of_a_compilation_is_a_no(status: str, message: str, no: str) -> None:
    answer = CompileAnswer(status=status, message=message)
    assert (answer.no, answer.taken) == (no, status == "compiled")


def test_what_was_answered_is_not_asked_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path))
    asked: list[str] = []

    def run(probes: Sequence[Any]) -> Iterator[Ran]:
        for probe in probes:
            asked.append(" > ".join(probe.operators))
            session = Session(probe.model)
            made = session.runs(probe.samples)
            wanted = {name: [one[name] for one in made] for name in session.outputs}
            got = {name: [value + 9.0 for value in values] for name, values in wanted.items()}
            died = probe.operators == ("Neg",)
            yield (
                Ran(probe=probe, answer="crashed") if died else Ran(probe=probe, answer="taken", wanted=wanted, got=got)
            )

    kernels = list(kernels_of(CHAIN))
    for expected in (["Log", "Neg", "Log > Neg"], ["Neg"]):
        asked.clear()
        bench = Bench(run=run, memory=Memory({"wheel": "1"}))
        answers = [answer for _, answer in bench.ask(kernels)]
        assert asked == expected and [answer and answer.answer for answer in answers] == ["taken", "crashed", "taken"]
        assert answers[0] and answers[0].from_float is None and answers[0].most == 18
        assert answers[2] and answers[2].from_float and answers[2].most == 18 and answers[2].from_float[1] > 17
    assert bench.ask(kernels) and asked == ["Neg"], "one bench runs each once"
    assert Bench(run=run, memory=Memory({"wheel": "2"})).known(kernels[0]) is None
