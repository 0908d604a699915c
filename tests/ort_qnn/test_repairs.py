"""Other ways for wrong kernels: each is the same operator, and the driver keeps what is right on the emulator."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

import deploykit
from deploykit.accuracy.judge.verdict import Verdict
from deploykit.accuracy.simulate.sessions import Session
from deploykit.backend.backend import Request, SharedWork
from deploykit.backend.opinions import Audit, AuditedKernel
from deploykit.findings import Finding, Severity, Subject, SubjectKind
from deploykit.flow.read import read_situation
from deploykit.model.nodes import label
from deploykit_ort_qnn.bench import audit as auditing
from deploykit_ort_qnn.bench import repair as repairing
from deploykit_ort_qnn.bench.ask import Bench, Memory
from deploykit_ort_qnn.bench.audit import audit_draft, audit_model, with_count
from deploykit_ort_qnn.bench.kernels import kernels_of
from deploykit_ort_qnn.bench.pieces import PAIR
from deploykit_ort_qnn.bench.place import PairGrid
from deploykit_ort_qnn.bench.repair import (
    done_otherwise,
    find_repairs,
    repaired_kernels,
    repaired_model,
    suspects_of,
    wanted_repairs,
)
from deploykit_ort_qnn.bench.together import Ran
from deploykit_ort_qnn.bench.ways import WAYS
from deploykit_ort_qnn.prepare import ProviderDraft, prepare
from deploykit_ort_qnn.rules.numerics import NumericScope
from deploykit_qualcomm.atlas.rows import KernelVerdict
from tables import each_row
from told import check_told

LAYER = "w = {0.5, -1, 0.25, 1, 1, -0.5, 0.75, -0.25, 0.5, 1, -1, 0.25, 0.125, 0.5, 1, -0.75}"


def parsed(text: str, opset: int) -> onnx.ModelProto:
    """A model whose result has the shape that follows."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model)


def float_model(node: str, stored: str = "", shape: str = "1,4,6,6") -> onnx.ModelProto:
    """The operator behind others, which two spaces part from it."""
    before, _, node = node.rpartition("  ")
    return parsed(f"g (float[{shape}] x) => (float y) <{stored}> {{ {before} [the] y = {node} }}", 17)


def quantized(node: str, stored: str = "", *, kind: str = "uint8", opset: int = 21) -> onnx.ModelProto:
    """An operator between two grids that differ, behind others, which two spaces part from it."""
    before, _, node = node.rpartition("  ")
    middle, step = {"uint8": (120, 1 / 32), "uint16": (30000, 1 / 8192)}[kind]
    grids = f"float s = {{{step}}}, {kind} z = {{{middle}}}, float t = {{{step * 1.25}}}, {kind} o = {{{middle + 5}}}"
    steps = "q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)"
    ends = "p = QuantizeLinear (r, t, o)  y = DequantizeLinear (p, t, o)"
    given = ", ".join(filter(None, (grids, stored)))
    return parsed(f"g (float[1,4,6,6] x) => (float y) <{given}> {{ {steps} {before} [the] r = {node} {ends} }}", opset)


def chain() -> onnx.ModelProto:
    """An operator between two others."""
    grids = "float s = {0.03125}, uint8 z = {120}"
    steps = ["q = QuantizeLinear (x, s, z)  a0 = DequantizeLinear (q, s, z)"]
    for at, (name, op) in enumerate((("first", "Neg"), ("the", "Tanh"), ("last", "Neg"))):
        steps.append(f"[{name}] r{at} = {op} (a{at})  q{at} = QuantizeLinear (r{at}, s, z)")
        steps.append(f"a{at + 1} = DequantizeLinear (q{at}, s, z)")
    return parsed(f"g (float[1,4,6,6] x) => (float a3) <{grids}> {{ {' '.join(steps)} }}", 21)


def outputs(model: onnx.ModelProto) -> Any:
    random = np.random.default_rng(1)
    session = Session(model)
    return np.stack([session.run({"x": random.uniform(-2, 2, (1, 4, 6, 6)).astype(np.float32)})["y"] for _ in range(3)])


SAME: Mapping[str, tuple[str, str]] = {
    "nearest": ("by-places", 'Resize <mode = "nearest", nearest_mode = "ceil"> ({x}, , scales)'),
    "edge": ("by-places", 'Pad <mode = "edge"> ({x}, pads)'),
    "blocks": ("by-places-in-a-row", "SpaceToDepth <blocksize = 2> ({x})"),
    "mean": ("mean-inside", "AveragePool <kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 1, 1]> ({x})"),
    "mean, all counted": (
        "mean-inside",
        "AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1> ({x})",
    ),
    "mean, up": ("mean-inside", "AveragePool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> ({x})"),
    "mean, summed": ("by-sums", "AveragePool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> ({x})"),
    "greatest": ("max-inside", "MaxPool <kernel_shape = [2, 3], strides = [2, 2], pads = [1, 1, 1, 1]> ({x})"),
    "greatest, same": ("max-inside", 'MaxPool <kernel_shape = [2, 3], auto_pad = "SAME_UPPER"> ({x})'),
    "sums": ("by-sums", "CumSum ({x}, axis)"),
    "sums of parts": ("by-sums", "f = Reshape ({x}, five)  CumSum (f, axis)"),
    "linear": ("by-sums", 'Resize <mode = "linear"> ({x}, , scales)'),
    "groups": ("no-groups", "Conv <group = 2, kernel_shape = [1, 2]> ({x}, w)"),
    "padded groups": ("conv-inside", "Conv <group = 2, kernel_shape = [1, 2], pads = [1, 0, 2, 1]> ({x}, w)"),
    "turned groups": ("no-groups", "ConvTranspose <group = 2, kernel_shape = [1, 2]> ({x}, w)"),
}
STORED: dict[str, str] = {
    "scales": "float[4] scales = {1, 1, 1.5, 2}",
    "pads": "int64[8] pads = {0, 0, 1, 2, 0, 0, 0, 3}",
    "axis": "int64 axis = {2}",
    "five": "int64[5] five = {1, 2, 2, 6, 6}",
    "w": f"float[4,2,1,2] {LAYER}",
}


def stored_for(node: str) -> str:
    return ", ".join(text for name, text in STORED.items() if f", {name})" in node or f"({name})" in node)


@each_row("name", *sorted(SAME))
def test_a_way_is_the_same_operator(name: str) -> None:
    way, node = SAME[name]
    model = float_model(node.format(x="x"), stored_for(node))
    made = repaired_model(model, {"the": way})
    assert "the" not in {label(one) for one in made.graph.node}
    wanted = outputs(model)
    assert np.abs(outputs(made) - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
@each_row("name", *sorted(name for name in SAME if not name.endswith(("groups", "parts"))))
def test_on_grids_it_is_no_further_off_than_its_steps(name: str, kind: str) -> None:
    way, node = SAME[name]
    model = quantized(node.format(x="d"), stored_for(node), kind=kind)
    made = repaired_model(model, {"the": way})
    onnx.checker.check_model(made, full_check=True)
    steps = np.abs(outputs(made) - outputs(model)).max() / (1.25 / {"uint8": 32, "uint16": 8192}[kind])
    # Factors of sums are stored in 8 bits: in steps of 16 bits that is more.
    assert steps <= (260 if way == "by-sums" and kind == "uint16" else 2.01)


AS_IT_IS = ""


class Notes(Memory):
    """A memory that is not on disk."""

    def __init__(self) -> None:
        self.kept: dict[tuple[bytes, str], dict[str, Any]] = {}

    def get(self, content: bytes, want: str) -> dict[str, Any] | None:
        return self.kept.get((content, want))

    def put(self, content: bytes, want: str, answer: Mapping[str, Any]) -> None:
        self.kept[content, want] = dict(answer)


class Device:
    """A runner on which these ways are right, ``spoilt`` ones by themselves only; all else is so far off."""

    def __init__(self, *right: str, spoilt: Sequence[str] = (), off: float = 3.0) -> None:
        self.right, self.spoilt, self.off = right, spoilt, off
        self.asked: list[str] = []
        self.notes = Notes()

    @property
    def bench(self) -> Bench:
        return Bench(run=self.run, memory=self.notes)

    def run(self, probes: Sequence[Any]) -> Iterator[Ran]:
        for probe in probes:
            way = probe.way.partition(" ")[2]
            self.asked.append(way)
            session = Session(probe.model)
            made = session.runs(probe.samples)
            wanted = {name: [one[name] for one in made] for name in session.outputs}
            inside = probe.place == "inside"
            right = way in self.right or (inside and way == AS_IT_IS)
            off = 0.0 if right and not (inside and way in self.spoilt) else self.off
            got = {name: [one + off for one in values] for name, values in wanted.items()}
            yield Ran(probe=probe, answer="taken", wanted=wanted, got=got)


BOTH = ("in-16-bits", "in-float16")


def test_the_first_right_way_is_kept() -> None:
    device = Device("in-16-bits", "in-float16")
    (repair,) = find_repairs(quantized("Tanh (d)"), {"the"}, device.bench)
    assert (repair.nodes, repair.way, repair.operator) == (("the",), "in-16-bits", "Tanh")
    assert "steps off, before up to" in repair.told
    assert "max-inside" not in device.asked  # is none for a Tanh


def test_what_is_advised_begins_with_what_is_done() -> None:
    device = Device("in-16-bits", "in-float16")
    ((nodes, repairs),) = repaired_kernels(quantized("Tanh (d)"), {"the"}, device.bench).items()
    assert [repair.way for repair in repairs] == ["in-16-bits", "in-float16"]
    assert find_repairs(quantized("Tanh (d)"), {"the"}, device.bench) == repairs[:1]
    (kernel,) = kernels_of(quantized("Tanh (d)"))
    audit = audit_model(quantized("Tanh (d)"), level="full", bench=device.bench, by="a device", suspects=frozenset())
    assert [one.ways for one in audit.kernels] == [tuple(repair.words for repair in repairs)] and audit.known == 1
    assert repairs[0].words.startswith("in-16-bits (it computes") and kernel.nodes == nodes


def test_what_is_not_within_reach_is_counted_as_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploykit_ort_qnn.bench.audit._SECONDS", 0.0)
    device = Device("")
    audit = audit_model(chain(), level="auto", bench=device.bench, by="a device", suspects=frozenset())
    assert (audit.kernels, audit.left_out, device.asked) == ((), 3, [])


def test_what_is_right_is_left_alone_and_what_nothing_helps_too() -> None:
    right = Device("", *WAYS)
    assert find_repairs(quantized("Tanh (d)"), {"the"}, right.bench) == () and set(right.asked) == {""}
    assert find_repairs(quantized("Tanh (d)"), {"the"}, Device().bench) == ()
    assert find_repairs(quantized("Tanh (d)"), {"another"}, Device().bench) == ()


@each_row(
    ("spoilt", "taken", "right"),
    ((), "in-16-bits", BOTH),
    (("in-16-bits",), "in-float16", BOTH),  # wrong among its neighbours
    # Wrong by itself and among its neighbours: what helps in both places is taken, else what helps by itself.
    (("", "in-16-bits"), "in-float16", BOTH),
    (("", "in-16-bits"), "in-16-bits", BOTH[:1]),
)
def test_a_way_that_is_right_everywhere_is_first(spoilt: tuple[str, ...], taken: str, right: tuple[str, ...]) -> None:
    (repair,) = find_repairs(chain(), {"the"}, Device(*right, spoilt=spoilt).bench)
    assert repair.way == taken


def test_what_the_outputs_name_is_done_better_where_it_can_be() -> None:
    """A kernel within what its operator costs: only what is much nearer is another way for it."""
    near = Device("", *WAYS, off=0.04)
    assert find_repairs(chain(), {"the"}, near.bench, named={"the"}) == ()
    # Right by itself, and so far off among its neighbours that only the outputs of the whole tell.
    among = Device("", *BOTH, spoilt=("", "in-16-bits"), off=0.08)
    for near in (Device("in-float16", off=0.04), among):
        (repair,) = find_repairs(chain(), {"the"}, near.bench, named={"the"})
        assert repair.way == "in-float16" and find_repairs(chain(), {"the"}, near.bench) == ()


def test_what_died_is_asked_again_and_what_is_refused_is_not() -> None:
    class Dying(Device):
        answers: Mapping[str, str]

        def run(self, probes: Sequence[Any]) -> Iterator[Ran]:
            for ran in super().run(probes):
                way = getattr(ran.probe, "way", AS_IT_IS).partition(" ")[2]
                answer = self.answers.get(way, "taken")
                yield ran if answer == "taken" else Ran(probe=ran.probe, answer=answer, why="it did")

    device = Dying("in-float16")
    device.answers = {AS_IT_IS: "refused"}
    found = repaired_kernels(quantized("Tanh (d)"), {"the"}, device.bench, faults=[KernelVerdict.REFUSED])
    assert [repair.way for repair in found["the",]] == ["in-float16"], "any that is taken is better than a refused one"
    device = Dying()
    device.answers = {"in-float16": "crashed", "in-16-bits": "failed"}
    for asked in (True, False):
        device.asked.clear()
        assert find_repairs(quantized("Tanh (d)"), {"the"}, device.bench) == ()
        assert ("in-16-bits" in device.asked) is asked and "in-float16" in device.asked


@each_row(
    ("measured", "anyway"),
    ({"share": 0.011, "odd": 0}, False),
    ({"share": 0.2, "odd": 0}, True),
    ({"share": 0.0, "odd": 3}, True),
)
def test_where_outputs_are_right_only_what_is_often_off_changes(measured: dict[str, float], anyway: bool) -> None:
    kernel = AuditedKernel(
        node="n", nodes=("n", "m"), operators=("Tanh",), type="u8", place="alone", verdict="wrong", measured=measured
    )
    right = replace(kernel, node="r", nodes=("r",), verdict="right")
    audit = Audit(level="full", by="the emulator", kernels=(kernel, right))
    assert suspects_of(audit, is_right=False) == {"n", "m"}
    assert suspects_of(audit, is_right=True) == ({"n", "m"} if anyway else set())


POOL = "AveragePool <kernel_shape = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1> (h)"


def drafted(folder: Path, node: str, **options: Any) -> ProviderDraft:
    """A float model of a Relu and that operator for the wheel of QAIRT 2.51; the names of nodes are their types."""
    model = float_model(f"[Relu] h = Relu (x)  {node}")
    model.graph.node[1].name = model.graph.node[1].op_type
    onnx.save(model, folder / "m.onnx")
    asked: dict[str, Any] = {"target": "sm8650", "backend": "ort-qnn", "sdk": "2.51", "adapter_options": options}
    return prepare(read_situation(Request(model=folder / "m.onnx", **asked))[1], SharedWork())


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """One on which every kernel by itself is wrong, in the place of the wheel's emulator."""
    made, wheel = Device("mean-inside"), {"wheel": "2.7.0", "qairt": "2.51.0", "onnxruntime": "1"}
    for module in (auditing, repairing):
        monkeypatch.setattr(module, "who_compiles", lambda host: wheel)
        monkeypatch.setattr(module, "bench_of", lambda given, host, soc, *_: made.bench if soc == 57 else None)
    monkeypatch.setattr(auditing, "toolchain_host", lambda wheel: None)
    return made


def test_what_is_audited_follows_from_the_level_and_from_what_is_suspected(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspect, plain = drafted(tmp_path, POOL), drafted(tmp_path, "Neg (h)")
    subject = Subject(kind=SubjectKind.NODE, name="Neg")
    lint = Finding(code="QNN284", slug="s", severity=Severity.WARNING, subject=subject, message="m")
    # What nothing is known of, or what is done in another way, is looked at too.
    done, unknown = replace(plain, options={"repair": ("Neg=in-float16",)}), replace(plain, lint=(lint,))
    drafts = {"A suspect": suspect, "No suspect": plain, "One done in another way": done, "An unknown one": unknown}
    drafts["Another finding"] = replace(plain, lint=(replace(lint, code="QNN283"),))
    drafts["Another wheel"] = replace(suspect, wheel=replace(plain.wheel, version="2.6.0"))
    drafts |= {"Another chip": replace(suspect, soc_model=None), "Under Wine": suspect, "Much to load": suspect}
    hosts = {"Under Wine": SimpleNamespace(emulator=None), "Much to load": SimpleNamespace(emulator="one")}
    told = dict[str, list[str]]()
    for title, draft in drafts.items():
        host = hosts.get(title)
        monkeypatch.setattr(auditing, "toolchain_host", lambda wheel, host=host: host)
        monkeypatch.setattr(auditing, "_LARGEST", -1 if title == "Much to load" else 1 << 29)
        for asked in ("quick", "auto", "full") if title.endswith("suspect") or title in hosts else ("auto",):
            audit = with_count(audit_draft(draft, level=asked, progress=print), draft)
            kernels = [f"  {' > '.join(one.operators)} is {one.verdict}" for one in audit.kernels]
            found = [f"  {one.severity} {one.code} {one.subject.name}: {one.message}" for one in audit.findings]
            about = f"{asked}: {audit.level} by {audit.by}, {audit.left_out} left out, settled {audit.settled}"
            told[f"{title}, {asked}"] = [about, *kernels, *found]
    check_told(Path(__file__).with_name("audits.told"), told)


def test_what_is_wrong_is_asked_for_in_another_way_where_that_is_wanted(device: Device, tmp_path: Path) -> None:
    draft = drafted(tmp_path, POOL, kernels="auto")
    wrong, right = (NumericScope(device=Verdict(right=one, numbers=())) for one in (False, True))
    audit = audit_draft(draft, level="quick", progress=print)

    def wanted(draft: ProviderDraft, audit: Audit | None, numeric: NumericScope) -> Any:
        return wanted_repairs(draft, audit, numeric, None, print)

    for found in (
        wanted(draft, audit, right),
        wanted(draft, None, wrong),
        wanted(draft, None, replace(wrong, first="AveragePool")),
    ):
        told = found.handles["QNN321", "AveragePool"]
        assert found.request.adapter_options == {**draft.options, "repair": ("AveragePool=mean-inside",)}
        assert found.how == f"AveragePool AveragePool is done in another way: {told}" and [*found.handles] == [
            ("QNN321", "AveragePool")
        ]
    assert told.startswith("zeros are put around its map, and what of a window counts is a factor: up to 0 of ")
    assert wanted(draft, None, right) is wanted(draft, None, replace(wrong, first="Relu")) is None
    for options in ({}, {"kernels": "off"}, {"kernels": "auto", "repair": ("Relu=in-16-bits",)}):
        assert wanted(replace(draft, options=options), audit, wrong) is None
    assert wanted(replace(draft, soc_model=None), audit, wrong) is None
    done = done_otherwise(replace(draft, options={"repair": ("a=b=in-float16",)}))
    assert done == dict.fromkeys(
        (("QNN320", "a=b"), ("QNN321", "a=b")), "it is done in another way: it computes in float16"
    )


@pytest.mark.heavy
def test_a_wrong_kernel_is_done_in_another_way(tmp_path: Path) -> None:
    """A nearest Resize whose kernel takes other neighbours than the model says (QAIRT 2.51)."""
    pytest.importorskip("onnxruntime_qnn")
    path, resize = tmp_path / "resized.onnx", 'Resize <mode = "nearest", nearest_mode = "ceil"> (d, , scales)'
    onnx.save(quantized(resize, STORED["scales"]), path)
    made = deploykit.package(path, target="sm8650", backend="ort-qnn", out=tmp_path / "out")
    (told,) = [one for one in made.findings if one.code == "QNN321"]
    assert made.exit_status == 0 and told.handled and "before up to" in told.handled
    packaged = onnx.load(tmp_path / "out/model/model.onnx")
    assert {"Resize", "Gather"} & {one.op_type for one in packaged.graph.node} == {"Gather"}
    assert [one.op_type for one in packaged.graph.node if one.op_type in PAIR]


@pytest.mark.heavy
def test_a_wrong_kernel_in_float16_is_found_by_what_it_gives(tmp_path: Path) -> None:
    """A Conv over 48 steps whose window reaches 17 of them (QAIRT 2.51): the atlas has no row of it."""
    pytest.importorskip("onnxruntime_qnn")
    weight, random = f"float[4,4,17] w = {{{', '.join(str(n % 7 - 3) for n in range(272))}}}", np.random.default_rng(0)
    onnx.save(
        float_model("Conv <kernel_shape = [17], pads = [8, 8]> (x, w)", weight, "1,4,48"),
        path := tmp_path / "slid.onnx",
    )
    np.savez(data := tmp_path / "x.npz", x=random.random((1, 4, 48), np.float32))
    made = deploykit.package(path, target="sm8650", backend="ort-qnn", calibration=data, out=tmp_path / "out")
    assert made.exit_status == 0 and any("zeros are put around" in (one.handled or "") for one in made.findings)


@each_row(
    ("low", "high", "kind", "scale", "zero"),
    (-4, 1, np.int8, 4 / 127, 0),
    (1, 4, np.int8, 4 / 127, 0),
    (-1, 4, np.uint8, 5 / 255, 51),
)
def test_a_new_grid_holds_its_range_and_zero(low: float, high: float, kind: Any, scale: float, zero: int) -> None:
    made = PairGrid.over(low, high, kind)
    assert float(made.scale) == pytest.approx(scale) and int(made.zero) == zero
