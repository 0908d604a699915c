"""Reads the encodings that the QuantizeLinear and DequantizeLinear nodes of an ONNX model stand for.

Entries carry the name their tensor has once those nodes are gone; the model is not changed. A scale that is computed
at run time is no encoding and is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from deploykit.encodings.formats.differences import compare_values
from deploykit.encodings.qdq_graph import DEQUANTIZE, QdqGraph, ReadTensor
from deploykit.encodings.qdq_names import PlainNames
from deploykit.encodings.values import Encoding, EncodingSet
from deploykit.model.graph import view_of

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["QDQ_VERSION", "read_qdq"]

QDQ_VERSION = "qdq"
"""What stands for the version in a set that was read from a model."""


def read_qdq(model: ModelProto, *, source: str = "model", read_tensor: ReadTensor | None = None) -> EncodingSet:
    """Per-tensor, per-channel, blockwise, LPBQ and float8 encodings of the main graph, placed, in node order.

    ``source`` names the model in messages. Scales are float64 of what is stored. Scales kept outside of the model are
    asked of ``read_tensor``. Raises InputError for scales that are not stored, not positive, or disagree.
    """
    graph = QdqGraph.of(view_of(model), source=source, read_tensor=read_tensor)
    names = _plain_names(graph)
    found: dict[str, Encoding] = {}
    for node in graph.quantizers():
        # The second half of a pair says nothing new, and scales of scales belong to their weight.
        if graph.first_of_pair(node) is not None or (node.op_type == DEQUANTIZE and graph.makes_scales(node)):
            continue
        name = graph.plain_name(node) if node.op_type == DEQUANTIZE else names.final(node.input[0])
        entry = Encoding(name=name, value=graph.value(node), is_param=graph.is_param(node))
        known = found.setdefault(entry.name, entry)
        if compare_values(known.value, entry.value):
            graph.fail(node, f"quantizes {entry.name!r} a second time, onto another grid")
    found |= {copy: replace(found[name], name=copy) for copy, name in names.copies.items()}
    return EncodingSet(version=QDQ_VERSION, entries=found, source=source)


def _plain_names(qdq: QdqGraph) -> PlainNames:
    names = PlainNames(graph=qdq.graph)
    for node in qdq.quantizers():
        quantize = qdq.first_of_pair(node)
        if quantize is not None:
            names.join(quantize.input[0], node.output[0])
    return names
