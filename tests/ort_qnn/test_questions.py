"""What is written of a graph for a provider that lacks something, and which grids are found inside what is fused."""

from collections.abc import Iterator
from pathlib import Path

from onnx import NodeProto, helper, numpy_helper

from changes import applied
from deploykit.encodings.values import Affine, EncodingSet
from deploykit_ort_qnn.forms.lacking import older_forms
from deploykit_ort_qnn.forms.missing_grids import fused_grids, recurrent_biases
from graph_questions import Asked, answers_of


def node_text(node: NodeProto, stored: dict[str, str]) -> str:
    """As ONNX writes it, with what is stored in the places of names."""
    settings = ", ".join(f"{one.name} = {helper.get_attribute_value(one)}" for one in node.attribute)
    given = ", ".join(stored.get(name, name) for name in node.input)
    return f"{', '.join(node.output)} = {node.op_type} {f'<{settings}> ' if settings else ''}({given})"


def grids_text(before: EncodingSet, after: EncodingSet) -> Iterator[str]:
    """The entries that are new, others or gone."""
    for name, entry in after.entries.items():
        value = entry.value
        if entry is not before.get(name) and isinstance(value, Affine):
            yield f"{name} is {value.dtype} from {value.minimum.min():.4g} to {value.maximum.max():.4g}"
    yield from (f"{name} has no entry" for name in before.entries.keys() - after.entries.keys())


def older(asked: Asked) -> Iterator[str]:
    made, kept, done = applied(older_forms({*asked.words}), asked.proto, asked.encodings)
    yield from (f"{form} at {', '.join(names)}" for form, names in done.items())
    stored = {one.name: str(numpy_helper.to_array(one).tolist()) for one in made.graph.initializer}
    yield from (node_text(node, stored) for node in made.graph.node if done and node not in asked.proto.graph.node)
    yield from sorted(grids_text(asked.encodings, kept))


def fused(asked: Asked) -> Iterator[str]:
    completed, _ = fused_grids(asked.proto, asked.encodings, None)
    completed, left = recurrent_biases(asked.proto, completed)
    yield from sorted([*grids_text(asked.encodings, completed), *(f"{name} is left in float" for name in left)])


test_answers = answers_of(Path(__file__).with_name("graphs.txt"), {"older": older, "fused": fused})
