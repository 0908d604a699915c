"""Small graphs to run side by side: what each is given, how far off it is, what that means, what is remembered."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import helper, numpy_helper

from deploykit.accuracy.simulate.sessions import Session
from deploykit.errors import ToolError
from deploykit_ort_qnn.bench import ask, together
from deploykit_ort_qnn.bench.ask import Bench, CompileAnswer, KernelAnswer, Memory, TimedBench, judged
from deploykit_ort_qnn.bench.kernels import Kernel, kernels_of
from deploykit_ort_qnn.bench.pieces import Pieces, anonymous
from deploykit_ort_qnn.bench.together import Deviation, Ran, Span, covering, deviation, joined, run_together
from deploykit_ort_qnn.compiler.hosts import NOTHING_TAKEN
from deploykit_ort_qnn.compiler.jobs import CompileJob, CompileOutcome
from deploykit_qualcomm.hosted import RefusedNode
from tables import each_row
from told import check_file


def parsed(text: str, opset: int = 21) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


GRIDS = "float s = {0.5}, uint8 z = {3}, uint16 w = {3}, float c = {1}"
PAIR = "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)"
CHAIN = parsed(f"""g (float[1,4] x) => (float[1,4] y) <{GRIDS}> {{ {PAIR} [log] a = Log (d)
  q1 = QuantizeLinear (a, s, z) d1 = DequantizeLinear (q1, s, z) [neg] b = Neg (d1)
  q2 = QuantizeLinear (b, s, z) y = DequantizeLinear (q2, s, z) }}""")


def given_to(text: str) -> Iterator[str]:
    """What each kernel of a graph is given: operators, type, number of sets, what each input reaches, what is made."""
    for one in kernels_of(parsed(f"g {text}")):
        sets = one.why or f"{len(one.samples)} sets"
        yield f"{one.place} {' > '.join(one.operators)} for {', '.join(one.nodes)}: {one.type}; {sets}"
        for name in one.samples[0] if one.samples else ():
            each = [sample[name] for sample in one.samples]
            yield f"  {name}: {each[0].dtype.name} {min(map(np.min, each)):.4g} .. {max(map(np.max, each)):.4g}"
        for value in one.model.graph.output:
            kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
            step = one.steps.get(value.name)
            yield f"  makes {value.name}: {kind}{f' in steps of {step:g}' if step else ''}"


def test_what_kernels_are_given() -> None:
    check_file(Path(__file__).with_name("kernels.told"), given_to)


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
    (
        kernel(),
        KernelAnswer(answer="taken", deviation=replace(FAR, factor=1.021)),
        ("wrong", WORDS.replace("0.5", "1.02")),
    ),
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


def test_a_question_is_another_one_for_other_options_entries_and_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOYKIT_CACHE", str(tmp_path))
    jobs, node = list[CompileJob](), RefusedNode(name="n", type="Neg")

    def compile_model(job: CompileJob, progress: Any) -> CompileOutcome:
        jobs.append(job)
        late = CompileOutcome(status="timed-out", message="late")
        taken = CompileOutcome(status="compiled", refused=(node,))
        return late if "late" in job.entries else taken

    monkeypatch.setattr(ask, "compile_model", compile_model)
    given: dict[str, Any] = {"options": {"soc_model": "57"}, "longest": 30.0, "progress": print}

    def asked(content: bytes = b"one", types: Any = None, seconds: float = 60.0, **more: Any) -> CompileAnswer:
        bench = TimedBench(**{**given, "deadline": time.monotonic() + seconds, **more})
        return bench.ask(CHAIN, content, types)

    taken = CompileAnswer(status="compiled", message="", refused=(("n", "Neg"),))
    told, over = ("n", "float16"), CompileAnswer(status="timed-out", message="the time for questions is over")
    assert [asked(), asked(), asked(b"two"), asked(options={"soc_model": "69"}), asked(entries={"a": "b"})] == [
        taken
    ] * 5
    changed = [asked(types=lambda outcome: [told]) for _ in range(2)]
    assert changed == [replace(taken, changes=(told,))] * 2 and len(jobs) == 5
    assert asked(b"three", seconds=1.9) == over and asked(seconds=0.0) == taken and len(jobs) == 5
    assert [asked(entries={"late": "1"}).status for _ in range(2)] == ["timed-out"] * 2 and len(jobs) == 7
    assert asked(b"four", seconds=9.0).taken and jobs[-1].timeout <= 9.0 and jobs[0].timeout == 30.0
    assert [(job.options, job.entries) for job in jobs[1:4]] == [
        *(({"soc_model": "57"}, {}), ({"soc_model": "69"}, {}), ({"soc_model": "57"}, {"a": "b"}))
    ]


def test_what_becomes_of_graphs_that_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that cannot be compiled or run is halved; what is left over is told by its prefix, and pairs last."""
    fails = {"Abs": ("crashed", "SIGABRT"), "Sin": ("failed", NOTHING_TAKEN), "Cos": ("failed", "Load model from m")}
    operators = ["Neg", "Tan", *fails, "Erf", "Asin", "Acos"]
    made = ", ".join(f"float[2] o{at}" for at in range(len(operators)))
    body = " ".join(f"o{at} = {op} (x)" for at, op in enumerate(operators))
    kernels, jobs, news = list(kernels_of(parsed(f"g (float[2] x) => ({made}) {{ {body} }}"))), [], list[str]()

    def compile_model(job: CompileJob) -> CompileOutcome:
        jobs.append(job)
        nodes = onnx.load(job.root / job.model).graph.node
        for node in nodes:
            if node.op_type in fails:
                status, message = fails[node.op_type]
                return CompileOutcome(status=status, message=message)  # type: ignore[arg-type]
            if node.op_type == "Erf":
                named = (RefusedNode(name=node.name, type="Erf", why="no kernel"),) * 2
                return CompileOutcome(status="refused", refused=named)
        left = [node for node in nodes if node.op_type == "Tan"]
        pairs = [helper.make_node("QuantizeLinear", ["shared"], node.output) for node in left]
        shared = numpy_helper.from_array(np.zeros(1), "u0/shared")
        for node in left:
            node.name, node.input[:] = f"Transposed_{node.name}", [*node.input, "u0/shared"]
        rest = [helper.make_node("EPContext", [], ["c"]), *pairs, *left]
        onnx.save(helper.make_model(helper.make_graph(rest, "c", [], [], [shared])), job.root / job.context)
        return CompileOutcome(
            status="compiled", refused=tuple(RefusedNode(name=node.name, type="Tan", why="3110") for node in left)
        )

    def execute_both(root: Path, model: str, context: str, sets: Any, **given: Any) -> Any:
        kinds = {node.op_type for node in onnx.load(root / model).graph.node}
        if "Asin" in kinds:
            raise ToolError("it cannot be run", why="it died")
        made = Session(onnx.load(root / model)).runs(sets)
        return made, made[: -1 if "Acos" in kinds else None]

    monkeypatch.setattr(together, "compile_model", compile_model)
    monkeypatch.setattr(together, "execute_both", execute_both)
    asked: dict[str, Any] = {"host": None, "soc_model": 57, "progress": news.append}
    found = list(run_together(kernels, together=7, options={"a": "b"}, **asked))
    assert [(ran.probe.model.graph.node[0].op_type, ran.answer, ran.why, ran.ran) for ran in found] == [
        ("Neg", "taken", "", True),
        ("Tan", "refused", "Tan: 3110", False),
        ("Abs", "crashed", "SIGABRT", False),
        ("Sin", "refused", "Sin", False),
        ("Cos", "invalid", "Load model from m", False),
        ("Erf", "refused", "Erf: no kernel", False),
        ("Asin", "taken", "not run: it died", False),
        ("Acos", "taken", "not run: 33 s are too few for 11 inputs", False),
    ]
    assert (
        [*found[0].wanted] == ["u0/o0"]
        and len(found[0].got["u0/o0"]) == 11
        and news == ["7 of 8 units", "8 of 8 units"]
    )
    assert jobs[0].options == {"soc_model": "57", "offload_graph_io_quantization": "0", "a": "b"}
    assert (jobs[0].timeout, jobs[0].allow_cpu, jobs[0].trace) == (51.0, True, False)
