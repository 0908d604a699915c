"""What holds of the parts of any model that was cut into segments."""

import itertools

import onnx

from deploykit.encodings.segments import Segment


def check_parts(segments: tuple[Segment, ...], model: onnx.ModelProto) -> None:
    """Kinds take turns, each part is a valid model, and reads only what came before; the outputs are all made."""
    known = {item.name for item in model.graph.input}
    for before, after in itertools.pairwise(segments):
        assert before.is_float != after.is_float
    for segment in segments:
        onnx.checker.check_model(segment.model)
        assert set(segment.inputs) <= known
        known |= set(segment.outputs)
    assert {item.name for item in model.graph.output} <= known
