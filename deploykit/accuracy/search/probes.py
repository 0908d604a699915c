"""Executions that ``locate`` can look into: an ONNX model, and a model with simulated quantizers.

Each round of a search adds its tensors as outputs of a fresh session, so that no model ever has all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from deploykit.accuracy.samples.gathering import MOST, gather
from deploykit.accuracy.search.locating import SESSIONS, Located, locate
from deploykit.accuracy.simulate.quantized_graph import quantize_graph
from deploykit.accuracy.simulate.quantizers import fake_quantize
from deploykit.accuracy.simulate.sessions import Feed, Session
from deploykit.encodings.qdq import extract_qdq
from deploykit.encodings.read import read_placed
from deploykit.encodings.values import EncodingSet
from deploykit.errors import UsageError
from deploykit.model import load_model
from deploykit.model.collect import collect_facts
from deploykit.model.facts import GraphFacts
from deploykit.model.load import wrap_proto
from deploykit.model.values import constant_tensor
from deploykit.model.weights import lean_weights, mapped_bytes, stored_values

if TYPE_CHECKING:
    from onnx import ModelProto

    from deploykit.encodings.values import Value

__all__ = ["ModelProbe", "SimulationProbe", "locate_files"]


class ModelProbe:
    """An ONNX model as ONNX Runtime runs it on the CPU, without graph optimisations."""

    def __init__(
        self,
        model: ModelProto,
        *,
        feeds: Mapping[str, str] | None = None,
        values: Mapping[str, Value] | None = None,
    ) -> None:
        self._model = model
        self._values = dict(values or {})
        self._feeds = dict(feeds or {})
        self._session: Session | None = None
        self._names: tuple[str, ...] = ()

    def tensors(self) -> Iterable[str]:
        """Everything a node of the main graph makes."""
        return {name for node in self._model.graph.node for name in node.output if name}

    def show(self, names: Sequence[str], feed: Feed) -> Mapping[str, npt.NDArray[Any]]:
        """The values of some tensors for one sample."""
        return self.show_all(names, [feed])[0]

    @property
    def reads_files(self) -> bool:
        """True where its weights lie in files, to be read in each run."""
        return mapped_bytes(self._model) > 0

    def show_all(self, names: Sequence[str], feeds: Sequence[Feed]) -> Sequence[Mapping[str, npt.NDArray[Any]]]:
        """``show`` for each of several samples: of a model too large for memory every weight is read once for all."""
        if self._session is None or self._names != tuple(names):
            self._names = tuple(names)
            self._session = Session(self._model, capture=names, values=self._values)
        fed = [{self._feeds.get(name, name): value for name, value in feed.items()} for feed in feeds]
        return [{name: values[name] for name in names} for values in self._session.runs(fed)]

    def stored(self, name: str) -> npt.NDArray[Any] | None:
        """The values of an initializer or Constant of this model."""
        for tensor in self._model.graph.initializer:
            if tensor.name == name:
                values, value = stored_values(tensor), self._values.get(name)
                return values if value is None else fake_quantize(values, value)
        node = next((n for n in self._model.graph.node if name in n.output and n.op_type == "Constant"), None)
        held = None if node is None else constant_tensor(node)
        return None if held is None else stored_values(held)


class SimulationProbe(ModelProbe):
    """A model with the quantizers of its encodings; tensors show their quantized values."""

    def __init__(self, model: ModelProto, encodings: EncodingSet) -> None:
        graph = quantize_graph(model, encodings)
        super().__init__(graph.model, feeds=graph.feeds, values=graph.later)


def locate_files(
    model: Path,
    candidate: Path | None = None,
    *,
    encodings: Path | None = None,
    data: Path | None = None,
    samples: int | None = None,
    seed: int = 0,
    threshold_db: float = 20.0,
    sessions: int = SESSIONS,
) -> Located:
    """``locate`` for files: a model against another with the same tensor names, or against its own simulation.

    A QDQ model by itself is held against the float model that it quantizes. Raises UsageError when both ``candidate``
    and ``encodings`` are given, or neither for a float model.
    """
    several = UsageError("locate compares two executions", next="give a second model, or --encodings")
    if candidate is not None and encodings is not None:
        raise several
    read = load_model(model)
    facts, proto = collect_facts(read), lean_weights(read)
    if candidate is None and encodings is None and not facts.is_qdq:
        raise several
    placed: EncodingSet | None = None
    if candidate is not None:
        right = ModelProbe(lean_weights(load_model(candidate)))
    else:
        proto, facts, placed = _quantized(proto, facts, encodings)
        right = SimulationProbe(proto, placed)
    made = gather(proto, facts, calibration=data, encodings=placed, most=samples or MOST, seed=seed)
    return locate(facts, ModelProbe(proto), right, made.varied, threshold_db=threshold_db, sessions=sessions)


def _quantized(
    proto: ModelProto, facts: GraphFacts, encodings: Path | None
) -> tuple[ModelProto, GraphFacts, EncodingSet]:
    """The float model with its facts and placed encodings: those of the file, else those in the model itself."""
    if encodings is not None:
        return proto, facts, read_placed(encodings, facts)
    taken = extract_qdq(proto)
    return taken.model, collect_facts(wrap_proto(taken.model, path=Path(facts.model_name))), taken.encodings
