"""Shape inference never explodes nor ends the process, and graphs that only look odd keep their shapes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from deploykit.model.shape_inference import infer
from text_models import text_model


def steps(count: int, step: str, first: str = "s0") -> str:
    """``step`` with {0} and {1} for the tensors before and behind it, one after the other."""
    names = [first, *(f"s{number + 1}" for number in range(count))]
    return "  ".join(step.format(names[number], names[number + 1]) for number in range(count))


def doubled_shape(times: int) -> str:
    return f"s0 = Shape (x)  {steps(times, '{1} = Concat <axis = 0> ({0}, {0})')}"


def chained(count: int, rank: int) -> onnx.ModelProto:
    """So many operators, one behind the other, on a tensor of so many dimensions."""
    model = text_model("float[1] x", steps(count, "{1} = Relu ({0})", "x"), f"s{count}")
    for _ in range(rank - 1):
        model.graph.input[0].type.tensor_type.shape.dim.add(dim_value=1)
    return model


X = "float[2,3] x"
BODY = f"() => (int64[n] e) {{ {doubled_shape(34)}  e = Identity (s34) }}"
BOMBS = [
    text_model("int64[2,3] s0", steps(40, "{1} = Gather ({0}, {0})"), "int64[n] s40"),
    text_model(f"{X}, int64[1000000000] i", "y = Reshape (x, i)"),
    text_model(X, "t = ConstantOfShape (n)  y = Reshape (x, t)", n=[10**9]),
    text_model(X, "t = Expand (one, n)  y = Reshape (x, t)", n=[10**9], one=[1]),
    text_model("float[2] s0", steps(3_000, "{1} = Unsqueeze ({0}, a)"), "s3000", a=[0]),
    text_model(
        f"{X}, bool c",
        f"y = If (c) <then_branch = t {BODY}, else_branch = f () => (int64[n] e) {{ e = Shape (x) }}>",
        "int64[n] y",
    ),
    text_model("string[3] x", 'y = RegexFullMatch <pattern = "a"> (x)', "bool[n] y"),
    chained(5_000, 1_000),
]
BOMBS[-2].graph.input[0].ClearField("type")


def test_bombs_stay_small_and_are_answered(within_a_gigabyte: Callable[..., list[str]]) -> None:
    """What takes too much memory, or too many small pieces of it, is told; the rest is known or is not."""
    said = within_a_gigabyte(*(bomb.SerializeToString() for bomb in BOMBS))
    told = ("its shapes would take more memory", "its tensors have more than 1,500,000 dimensions")
    reasons = [line.removeprefix("None ").removeprefix("('n',) ") for line in said]
    assert all(not reason or reason.startswith(told) for reason in reasons), said
    assert len(said) == len(BOMBS) and any(told[0] in line for line in said) and told[1] in said[-1]


# Tensors that would have fewer than no elements: a Slice of one is where onnx, or ONNX Runtime, ends the process.

WINDOWS = {"begin": [0], "end": [5], "height": [2], "kernel": np.zeros((1, 1, 5, 5), np.float32)}


def windowed(body: str, shape: str = "1,1,2,2") -> onnx.ModelProto:
    stored: dict[str, Any] = WINDOWS
    return text_model(f"float[{shape}] x", body, **stored)


def cut(read: str, made: str) -> str:
    return f"{made} = Slice ({read}, begin, end, height)"


def test_a_slice_of_fewer_than_no_elements_is_refused(within_a_gigabyte: Callable[..., list[str]]) -> None:
    smaller = ["Conv ({0}, kernel)", "MaxPool <kernel_shape = [5, 5]> ({0})"]
    smaller += ["Conv <dilations = [4, 4]> ({0}, kernel)", "ConvTranspose <pads = [9, 9, 9, 9]> ({0}, kernel)"]
    models = []
    for step in smaller:
        for before, read in (("", "x"), (cut("x", "cut"), "cut")):
            models.append(windowed(f"{before}  less = {step.format(read)}  {cut('less', 'y')}"))
    said = within_a_gigabyte(*(model.SerializeToString() for model in models))
    assert all("'less' would have fewer than no elements" in line for line in said), said


def test_slices_behind_windows_have_their_shapes_until_they_wait_too_long() -> None:
    """As in a network that splits channels between its layers: none of them stays hidden."""

    def layers(count: int, *forms: str) -> str:
        body, read = "", "x"
        for number in range(count):
            body += (
                f"{cut(read, f'cut{number}')}  c{number} = Conv <{forms[number % len(forms)]}> (cut{number}, kernel)  "
            )
            read = f"c{number}"
        return body + cut(read, "y")

    found = infer(windowed(layers(12, "pads = [2, 2, 2, 2]", "kernel_shape = [5, 5], pads = [2, 2, 2, 2]"), "1,1,9,9"))
    assert found.types["y"] == ("float", (1, 1, 5, 9)) and not found.negative
    late = infer(windowed(layers(40, "pads = [2, 0, 2, 0]"), "1,1,9,400"))
    assert late.types["c3"] == ("float", (1, 1, 5, 384))
    assert late.types.get("y", ("", None))[1] is None
