"""What tensors are called once the QuantizeLinear and DequantizeLinear around them are gone; it takes no node out."""

from __future__ import annotations

from dataclasses import dataclass, field

from deploykit.model.graph import GraphCopy

__all__ = ["PlainNames"]


@dataclass(slots=True, kw_only=True)
class PlainNames:
    """One name for what a pair reads and makes. ``copies``, by name: outputs that are the same values as another tensor
    whose name has to stay as well, since that is an input or an output too."""

    graph: GraphCopy
    copies: dict[str, str] = field(default_factory=dict)
    _read_as: dict[str, str] = field(default_factory=dict)

    def final(self, name: str) -> str:
        """The name that a tensor of the graph has in the end."""
        while name in self._read_as:
            name = self._read_as[name]
        return name

    def say(self, name: str, plain: str) -> None:
        """Whoever reads ``name`` reads ``plain``, which may be the same."""
        if name != plain:
            self._read_as[name] = plain

    def join(self, read: str, made: str) -> str:
        """The one name of both ends of a pair. An output of the graph keeps its name, and a pair before it gets it."""
        name = self.final(read)
        if made not in self.graph.outputs or name in self.graph.stored:
            self._read_as[made] = name
        elif name in self.graph.inputs or name in self.graph.outputs:
            self.copies[made] = self._read_as[made] = name
        else:
            self._read_as[name] = name = made
        return name
