"""What a rewrite is, and the decorators that make one of a function; nothing is proven or chosen here.

``@rewrite`` turns a function that looks at one node into a ``Transform``. The function says why a node does not qualify
(``NoMatchError``), or returns a ``Match``: why the node qualifies, and what writes it anew. Every ``Transform`` that a
module of this package holds can be asked for by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, partial, wraps
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from msgspec import Struct
from onnx import ModelProto, NodeProto, helper

from deploykit.encodings.place import GrowingSet, keep_entries
from deploykit.encodings.values import Affine, Encoding, EncodingSet
from deploykit.errors import UsageError
from deploykit.findings.records import Interval, Names, Numbers, Published, Record, Shape, replace
from deploykit.model.graph import GraphCopy, GraphView, view_of
from deploykit.model.nodes import attribute, copy_of, label, operand, raise_opset
from deploykit.model.operators import Trait, has, is_standard
from deploykit.model.ranges import graph_bounds

__all__ = [
    "Match",
    "MatchResult",
    "ModelLook",
    "NearMiss",
    "NoMatchError",
    "NodeSteps",
    "Rewritten",
    "Site",
    "Transform",
    "load_transform",
    "named",
    "regrid",
    "rewrite",
    "rewrite_graph",
    "rewritten",
    "shares_grid",
    "transform_names",
]


class Site(Record, kw_only=False):
    """One place where a rewrite applies: its nodes (labels), the tensors it speaks about, and why it applies.

    ``data`` is the rewrite's own, read back by its ``apply`` only.
    """

    nodes: Names
    tensors: Names
    why: str
    data: Any = None


class NearMiss(Published, kw_only=False):
    """A place that looks like a site but is none, and the reason: the rewrite would change the result there."""

    nodes: Names
    reason: str


class NoMatchError(Exception):
    """A place that looked like a site is none; ``node`` is where that showed, "" for the node that was looked at."""

    def __init__(self, reason: str, *, node: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.node = node


class MatchResult(Record, kw_only=False):
    """Every site and every near miss of one rewrite on one graph; ``reason`` says why there is no site at all."""

    sites: tuple[Site, ...] = ()
    refusals: tuple[NearMiss, ...] = ()
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.sites)


class Rewritten(Record, kw_only=False):
    """The new model and what must become of its encodings.

    ``encodings`` lacks the entries of vanished tensors; it is None when none were given. ``touched`` are tensors that
    are new or whose values changed and that still need an encoding; ``ranges`` holds proven bounds (lowest, highest
    real value) for some of them, the others need calibration. ``tail`` restores the original outputs from the new ones
    on the host, None where the outputs did not change; original inputs that it needs keep their names.
    """

    model: ModelProto
    encodings: EncodingSet | None
    touched: frozenset[str] = frozenset()
    ranges: Mapping[str, Interval] = {}
    notes: tuple[str, ...] = ()
    tail: ModelProto | None = None


def rewritten(graph: GraphCopy, encodings: EncodingSet | None, note: str) -> Rewritten:
    """The result of a rewrite that keeps the values of all tensors that remain."""
    return Rewritten(graph.model, keep_entries(encodings, graph), notes=(note,))


class Transform(Record, kw_only=False):
    """One rewrite. ``find`` and ``apply`` never change the model they are given.

    ``ulps`` is the stated factor of the proof: before and after, outputs may differ by that many float32 roundings of
    the output's largest magnitude for each site; 0 means bit for bit, None means that the rewrite changes values on
    purpose. ``until`` is the release from which the compiler no longer needs it, "" where no release is known.
    """

    name: str
    summary: str
    find: Callable[[ModelLook], MatchResult]
    apply: Callable[[ModelProto, EncodingSet | None, MatchResult], Rewritten]
    ulps: float | None = 0.0
    until: str = ""

    def match(self, model: ModelProto, encodings: EncodingSet | None = None) -> MatchResult:
        """The sites in a model; without ``encodings`` a rewrite for certain grids finds none."""
        return self.find(ModelLook(model, encodings))


class ModelLook(GraphView):
    """A graph that a rewrite looks through, and its encodings.

    A method raises NoMatchError where it cannot tell, which ends the look at a node.
    """

    def __init__(self, model: ModelProto, encodings: EncodingSet | None) -> None:
        vars(self).update(vars(view_of(model)))  # all looks at a model share one index
        self.encodings = encodings

    def entry(self, name: str) -> Encoding | None:
        """The entry of a tensor; None where it has none."""
        return None if self.encodings is None else self.encodings.get(name)

    def sizes(self, name: str, *axes: int) -> Shape:
        """The sizes of all axes of a tensor, or of some; raises NoMatchError where one is open."""
        rank = self.rank(name)
        places = [axis % rank for axis in axes if -rank <= axis < rank] if axes else range(rank)
        sizes = tuple(dim for place in places if isinstance(dim := (self.shape(name) or ())[place], int))
        if len(sizes) != len(axes or places):
            raise NoMatchError(f"the shape of {name} is not known")
        return sizes

    def rank(self, name: str) -> int:
        """The number of axes of a tensor; raises NoMatchError where it is not known."""
        shape = self.shape(name)
        if shape is None:
            raise NoMatchError(f"the shape of {name} is not known")
        return len(shape)

    def values(self, name: str) -> Numbers:
        """The values of a stored tensor; raises NoMatchError where it is computed."""
        value = self.array(name)
        if value is None:
            raise NoMatchError(f"{name} is not stored")
        return value

    def grid(self, name: str) -> Affine | None:
        """The integer grid of a whole tensor; None for a float, and for a grid that differs by channel."""
        entry = self.entry(name)
        value = None if entry is None else entry.value
        return value if isinstance(value, Affine) and value.scale.size == 1 else None

    def axes(self, node: NodeProto, rank: int) -> list[int]:
        """The reduced axes of a node, counted from the front; raises NoMatchError where they are computed."""
        given = attribute(node, "axes", ())
        if operand(node, 1):
            given = self.values(node.input[1]).reshape(-1).tolist()
        if not len(given) and not attribute(node, "noop_with_empty_axes", 0):
            given = range(rank)
        return sorted(int(axis) % rank for axis in given)


# The operator set since which a list of the operator (axes, sizes) is its second input and no attribute.
LIST_IS_AN_INPUT = {"Split": 13, "Squeeze": 13, "Unsqueeze": 13, "ReduceSum": 13, "ReduceMean": 18}


class NodeSteps(GrowingSet):
    """The copy that is edited, its encodings, and the new nodes that replace one matched node.

    ``node`` makes the tensor that the match names; ``source`` is its first input, ``made`` its first output. ``store``
    adds a stored tensor (``GraphCopy.store``). ``gone`` are the nodes that vanish: ``node`` unless the rewrite says
    otherwise. Tensors in ``needed`` need an entry unless they have one by the end; those in ``touched`` need a new
    entry in any case, those in ``bounded`` one within bounds that follow from the graph once all is written; for
    tensors in ``ranges`` the range is known without samples.
    """

    def __init__(self, graph: GraphCopy, encodings: EncodingSet | None) -> None:
        super().__init__(encodings)
        self.graph, self.store = graph, graph.store
        self.needed, self.touched, self.bounded = set[str](), set[str](), set[str]()
        self.ranges, self.notes = dict[str, Interval](), list[str]()
        self.reshaped = set[str]()  # the model declares former shapes of these

    def start(self, node: NodeProto) -> None:
        """Begin the steps for the next matched node."""
        self.node = node
        self.source, self.made = next(iter(node.input), ""), node.output[0]
        self.nodes: list[NodeProto] = []
        self.gone: list[NodeProto] = [node]

    def write(self, op_type: str, inputs: Iterable[str], made: str, *, name: str = "", **attributes: Any) -> str:
        """Add a node whose result has exactly the name ``made``; returns the name."""
        self.nodes.append(helper.make_node(op_type, list(inputs), [made], name=name or made, **attributes))
        return made

    def add(self, op_type: str, inputs: Iterable[str], made: str, **attributes: Any) -> str:
        """Add a node whose result is a new tensor, called ``made`` or much like it; returns the tensor's name."""
        return self.write(op_type, inputs, self.graph.fresh(made), **attributes)

    def end(self, op_type: str, inputs: Iterable[str], *, name: str = "", **attributes: Any) -> None:
        """Add the node that makes the first output of ``node``, under the name of ``node``."""
        self.write(op_type, inputs, self.made, name=name or self.node.name, **attributes)

    def end_here(self) -> None:
        """Let the last new node make the first output of ``node``, under the name of ``node``."""
        self.nodes[-1].output[0], self.nodes[-1].name = self.made, self.node.name

    def reshape(self, source: str, sizes: Sequence[int], made: str = "", *, name: str = "") -> str:
        """Add a Reshape to fixed sizes and return its result.

        Without ``made`` it makes the first output of ``node``.
        """
        result = self.graph.fresh(made) if made else self.made
        shape = self.store(f"{result}_shape", sizes)
        return self.write("Reshape", [source, shape], result, name=name or (result if made else self.node.name))

    def listed(
        self, op_type: str, source: str, word: str, values: Sequence[int], made: str | Sequence[str], **attributes: Any
    ) -> str:
        """Add a node with a list of integers that is an attribute in early operator sets and an input in later ones.

        ``made`` is the exact name of the result, or the names where there are several; returns the first.
        """
        results, inputs = [made] if isinstance(made, str) else list(made), [source]
        if self.graph.opset < LIST_IS_AN_INPUT[op_type]:
            attributes[word] = list(values)
        else:
            inputs.append(self.store(f"{results[0]}_{word}", values))
        self.nodes.append(helper.make_node(op_type, inputs, results, name=results[0], **attributes))
        return results[0]

    def put(self, entry: Encoding | None, **changed: Any) -> None:
        """Add an entry with some of its fields changed; does nothing for None."""
        if entry is not None:
            one = replace(entry, **changed)
            self.entries[one.name] = one


class Match(Struct, frozen=True):
    """A place where a rewrite applies: why, and the function that writes the new nodes on a copy of the graph.

    ``output`` names the tensor whose maker is replaced; ``nodes`` and ``tensors`` are those that the report names. Left
    out, they are the node that was looked at and its result. ``opset`` is the least operator set that the new nodes
    need.
    """

    why: str
    write: Callable[[NodeSteps], None]
    output: str = ""
    nodes: Names = ()
    tensors: Names = ()
    opset: int = 0


Finder = Callable[[ModelLook], Iterator[Match | NearMiss]]
"""A function that looks through a graph and gives the matches of a rewrite, and its near misses."""


def rewrite(
    *op_types: str, none: str, quiet: bool = False, **how: Any
) -> Callable[[Callable[[ModelLook, NodeProto], Match | None]], Transform]:
    """Makes a Transform of a function that looks at one node of the given standard operators at a time.

    The function returns None for a node that it is not for; its name, with dashes, is the rewrite's, and its docstring
    begins with the summary. ``none`` is the reason where nothing was found and nothing refused; ``quiet`` drops the
    refusals. The rest is as for ``rewrite_graph``.
    """

    def made(find: Callable[[ModelLook, NodeProto], Match | None]) -> Transform:
        @wraps(find)
        def each(look: ModelLook) -> Iterator[Match | NearMiss]:
            for node in look.nodes:
                if node.op_type not in op_types or not is_standard(node):
                    continue
                nodes, output = (label(node),), node.output[0]
                try:
                    found = find(look, node)
                except NoMatchError as error:
                    if not quiet:
                        yield NearMiss((error.node,) if error.node else nodes, error.reason)
                    continue
                made = output if found is None else found.output or output
                if found is not None and made:  # a first result that nothing reads may have no name
                    yield replace(found, output=made, nodes=found.nodes or nodes, tensors=found.tensors or (output,))

        return rewrite_graph(none=none, **how)(each)

    return made


def named(function: Callable[..., Any], **how: Any) -> Transform:
    """A Transform with the name of its function, which finds unless another does; the docstring tells."""
    summary = (function.__doc__ or "").partition("\n\n")[0]
    return Transform(function.__name__.replace("_", "-"), summary=" ".join(summary.split()), **{"find": function} | how)


def rewrite_graph(
    *,
    none: str,
    note: str = "",
    ulps: float | None = 0.0,
    completes: bool = False,
    until: str = "",
) -> Callable[[Finder], Transform]:
    """Makes a Transform of a function that looks through a graph once.

    ``note`` is said of a rewritten model, ``{}`` in it being the number of sites. With ``completes`` every tensor that
    the new nodes make needs an entry.
    """

    def match(find: Finder, look: ModelLook) -> MatchResult:
        results = list(find(look))
        refusals = tuple(result for result in results if isinstance(result, NearMiss))
        sites = tuple(
            Site(found.nodes, tensors=found.tensors, why=found.why, data=found)
            for found in results
            if isinstance(found, Match)
        )
        reason = "" if sites else refusals[0].reason if refusals else none
        return MatchResult(sites, refusals=refusals, reason=reason)

    def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
        opset = max((site.data.opset for site in matched.sites), default=0)
        graph = GraphCopy(raise_opset(copy_of(model), opset) if opset else model, copy=not opset)
        to = NodeSteps(graph, encodings)
        gone = list[NodeProto]()
        written = dict[int, list[NodeProto]]()
        for site in matched.sites:
            to.start(graph.makers[site.data.output])
            site.data.write(to)
            gone += to.gone
            written.setdefault(graph.index_of(to.node), []).extend(to.nodes)
            if completes:
                to.needed.update(made for step in to.nodes for made in step.output if made != site.data.output)
        graph.replace_nodes(gone, written)
        for item in graph.model.graph.value_info:
            if item.name in to.reshaped:
                item.type.tensor_type.ClearField("shape")
        kept = keep_entries(to.encodings, graph)
        bounds = graph_bounds(graph) if to.bounded else {}
        proven = {made: ends for made, ends in bounds.items() if made in to.bounded and all(map(math.isfinite, ends))}
        needed = {made for made in to.needed if made in graph.tensor_names and (kept is None or made not in kept)}
        return Rewritten(
            graph.model,
            kept,
            touched=frozenset(to.touched | to.bounded | needed),
            ranges={**to.ranges, **proven},
            notes=(*to.notes, *([note.format(len(matched.sites))] if note else [])),
        )

    def made(find: Finder) -> Transform:
        return named(find, find=partial(match, find), apply=apply, ulps=ulps, until=until)

    return made


def regrid(
    *, alone: bool = False, until: str = ""
) -> Callable[[Callable[[ModelLook], Mapping[str, Affine]]], Transform]:
    """Makes a Transform of a function that gives tensors other grids; the graph stays as it is.

    Tensors that only hold the moved values of one on the same grid get the new grid too, unless ``alone``.
    """

    def of(find: Callable[[ModelLook], Mapping[str, Affine]]) -> Transform:
        def match(look: ModelLook) -> MatchResult:
            grids = {} if look.encodings is None else find(look)
            sites = (Site((), tensors=(tensor,), why=made.summary, data=grid) for tensor, grid in grids.items())
            return MatchResult(tuple(sites), reason="" if grids else "no grid needs to be another")

        def apply(model: ModelProto, encodings: EncodingSet | None, matched: MatchResult) -> Rewritten:
            assert encodings is not None
            entries, graph = dict(encodings.entries), view_of(model)
            for site in matched.sites:
                (tensor,) = site.tensors
                for moved in [tensor] if alone else moved_to(graph, encodings, tensor):
                    entries[moved] = replace(entries[moved], value=site.data)
            notes = (f"another grid for {', '.join(site.tensors[0] for site in matched.sites)}",)
            return Rewritten(model, replace(encodings, entries=entries), notes=notes)

        made = named(find, find=match, apply=apply, until=until)
        return made

    return of


def moved_to(graph: GraphCopy, encodings: EncodingSet, tensor: str) -> Iterator[str]:
    """A tensor, and the tensors that hold its moved values on its grid."""
    todo = [tensor]
    while todo:
        name = todo.pop()
        yield name
        for node in graph.readers(name):
            if has(node, Trait.CARRIES_GRID) and node.input[0] == name:
                grid = encodings.entries[tensor].value
                todo += [made for made in node.output if shares_grid(encodings.get(made), grid)]


def shares_grid(entry: Encoding | None, other: object) -> bool:
    """True where an entry has the per-tensor grid ``other``, signed or not."""
    one = None if entry is None else entry.value
    if not isinstance(one, Affine) or not isinstance(other, Affine):
        return False
    if (one.bits, one.scale.size) != (other.bits, 1):
        return False
    return float(one.minimum.min()) == float(other.minimum.min()) and float(one.scale.min()) == float(other.scale.min())


@cache
def _known() -> Mapping[str, Transform]:
    package = __name__.rpartition(".")[0]
    found = dict[str, Transform]()
    for info in iter_modules(import_module(package).__path__):
        values = vars(import_module(f"{package}.{info.name}")).values()
        found.update((value.name, value) for value in values if isinstance(value, Transform))
    return dict(sorted(found.items()))


def transform_names() -> Names:
    """The names of all rewrites, sorted."""
    return tuple(_known())


def load_transform(name: str) -> Transform:
    """The rewrite of that name; UsageError when there is none."""
    try:
        return _known()[name]
    except KeyError:
        near = [known for known in transform_names() if name in known] or get_close_matches(name, transform_names())
        meant = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(transform_names())}"
        raise UsageError(f"no rewrite is called {name!r}", next=meant) from None
