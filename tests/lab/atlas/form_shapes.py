"""Forms that move values or choose among them, and how a form is drawn at a rank; layers stand elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from atlas.sketch import Sketch

__all__ = ["SHAPES", "Drawn", "at_rank", "movements", "selections"]

Draw = Callable[[Sketch], str]
Drawn = tuple[str, str, Draw]
"""Operator, what is particular about the form, and who draws it."""

SHAPES: Mapping[int, tuple[int, ...]] = {
    3: (1, 12, 16),
    4: (1, 8, 6, 10),
    5: (1, 4, 3, 5, 6),
    6: (1, 2, 3, 4, 3, 4),
}
"""By rank: a batch of one and sizes that differ, so that a wrong axis shows."""


def at_rank(
    rank: int, draw: Callable[[Sketch, str], str], *, low: float = -2.0, back: bool = True, coarse: bool = False
) -> Draw:
    """A form on an input of a rank. Of six dimensions it stands between two Reshapes: they cannot be at the border.

    ``back`` False leaves out the second Reshape; ``coarse`` is for what has edges.
    """
    shape = SHAPES[rank]

    def drawn(sketch: Sketch) -> str:
        if rank < 6:
            return draw(sketch, sketch.input(*shape, low=low, coarse=coarse))
        inside = sketch.op(
            "Reshape", sketch.input(1, 72, 4, low=low, coarse=coarse), sketch.stored(list(shape), "int64")
        )
        made = draw(sketch, inside)
        return sketch.op("Reshape", made, sketch.stored([1, -1, 2], "int64")) if back else made

    return drawn


def movements() -> Iterator[Drawn]:
    """What only moves, repeats or cuts."""
    for rank, shape in SHAPES.items():
        turned = [0, *range(rank - 1, 0, -1)]
        last = [*range(rank - 2), rank - 1, rank - 2]
        yield "Transpose", f"last two axes, rank {rank}", at_rank(rank, _with("Transpose", perm=last))
        yield "Transpose", f"all axes but the first, rank {rank}", at_rank(rank, _with("Transpose", perm=turned))
        yield "Reshape", f"from rank {rank} to 2", at_rank(rank, _stored("Reshape", [shape[1], -1]))
        yield "Slice", f"last axis, rank {rank}", at_rank(rank, _sliced(-1, 1))
        yield "Slice", f"every second, rank {rank}", at_rank(rank, _sliced(-1, 2))
        yield "Concat", f"axis 1, rank {rank}", at_rank(rank, _joined(1))
        yield "Concat", f"last axis, rank {rank}", at_rank(rank, _joined(-1))
        yield "Split", f"last axis, rank {rank}", at_rank(rank, _halved)
        yield "Tile", f"last axis, rank {rank}", at_rank(rank, _stored("Tile", [*[1] * (rank - 1), 2]))
        yield "Gather", f"stored places, axis 1, rank {rank}", at_rank(rank, _gathered(1))
        yield "Gather", f"stored places, last axis, rank {rank}", at_rank(rank, _gathered(-1))
    for rank in (3, 4, 5):
        yield "Unsqueeze", f"axis 1, rank {rank}", at_rank(rank, _stored("Unsqueeze", [1]))
        yield "Squeeze", f"axis 0, rank {rank}", at_rank(rank, _stored("Squeeze", [0]))
        yield "Expand", f"a new first axis, rank {rank}", at_rank(rank, _stored("Expand", [2, *SHAPES[rank][1:]]))
    for mode in ("constant", "reflect", "edge"):
        yield "Pad", f"{mode}, rank 4", at_rank(4, _padded(mode, [0, 0, 1, 2, 0, 0, 2, 1]))
    yield "Pad", "constant, rank 3", at_rank(3, _padded("constant", [0, 1, 2, 0, 2, 1]))
    yield "Pad", "constant, rank 5", at_rank(5, _padded("constant", [0, 0, 1, 1, 2, 0, 0, 0, 2, 1]))
    for mode in ("DCR", "CRD"):
        yield "DepthToSpace", f"{mode}, rank 4", at_rank(4, _with("DepthToSpace", blocksize=2, mode=mode))
    yield "SpaceToDepth", "rank 4", at_rank(4, _with("SpaceToDepth", blocksize=2))
    yield "Flatten", "rank 4", at_rank(4, _with("Flatten", axis=1))


def selections() -> Iterator[Drawn]:
    """Values chosen by places that are computed or given."""
    for dtype in ("int64", "int32"):
        yield "Gather", f"{dtype} places as input, axis 0 of a table", _looked_up(dtype)
        yield "Gather", f"{dtype} places as input, axis 1, rank 3", _chosen(dtype)
        yield "GatherElements", f"{dtype} places as input, axis 1, rank 3", _elements(dtype)
    yield "GatherND", "places as input, rank 3", _points
    yield "GatherElements", "stored places, last axis, rank 3", at_rank(3, _stored_elements)
    yield "GatherND", "stored places, rank 4", at_rank(4, _stored("GatherND", [[0, 1], [0, 3], [0, 5]]))
    yield "ScatterND", "stored places, rank 3", at_rank(3, _scattered)
    yield "ScatterElements", "stored places, axis 1, rank 3", at_rank(3, _scattered_elements)
    yield "TopK", "5 of the last axis, rank 3", at_rank(3, _most(-1))
    yield "TopK", "5 of axis 1, rank 3", at_rank(3, _most(1))
    yield "TopK", "5 of the last axis, rank 4", at_rank(4, _most(-1))
    for mode in ("bilinear", "nearest"):
        for padding in ("zeros", "border", "reflection"):
            for corners in (0, 1):
                name = f"{mode}, {padding}, align_corners {corners}, rank 4"
                yield "GridSample", name, _sampled(mode, padding, corners)


def _with(op: str, **settings: Any) -> Callable[[Sketch, str], str]:
    return lambda sketch, x: sketch.op(op, x, **settings)


def _stored(op: str, second: Sequence[Any]) -> Callable[[Sketch, str], str]:
    return lambda sketch, x: sketch.op(op, x, sketch.stored(second, "int64"))


def _sliced(axis: int, step: int) -> Callable[[Sketch, str], str]:
    def draw(sketch: Sketch, x: str) -> str:
        sides = [sketch.stored([value], "int64") for value in (1 if step == 1 else 0, 1 << 30, axis, step)]
        return sketch.op("Slice", x, *sides)

    def even(sketch: Sketch, x: str) -> str:
        # The rest has an even number of values, as a Reshape behind it wants.
        sides = [sketch.stored([value], "int64") for value in (2, 1 << 30, axis, 1)]
        return sketch.op("Slice", x, *sides)

    return even if step == 1 else draw


def _joined(axis: int) -> Callable[[Sketch, str], str]:
    return lambda sketch, x: sketch.op("Concat", x, sketch.op("Relu", x), axis=axis)


def _halved(sketch: Sketch, x: str) -> str:
    first, second = sketch.split("Split", x, outputs=2, axis=-1)
    return sketch.op("Sub", first, second)


def _gathered(axis: int) -> Callable[[Sketch, str], str]:
    return lambda sketch, x: sketch.op("Gather", x, sketch.stored([1, 0, 1, 1], "int64"), axis=axis)


def _padded(mode: str, pads: Sequence[int]) -> Callable[[Sketch, str], str]:
    def draw(sketch: Sketch, x: str) -> str:
        filling = [sketch.stored(0.0, "float32")] if mode == "constant" else []
        return sketch.op("Pad", x, sketch.stored(pads, "int64"), *filling, mode=mode)

    return draw


def _looked_up(dtype: str) -> Draw:
    return lambda sketch: sketch.op("Gather", sketch.weight(20, 16), sketch.places(1, 7, below=20, dtype=dtype))


def _chosen(dtype: str) -> Draw:
    return lambda sketch: sketch.op("Gather", sketch.input(1, 12, 16), sketch.places(7, below=12, dtype=dtype), axis=1)


def _elements(dtype: str) -> Draw:
    def draw(sketch: Sketch) -> str:
        return sketch.op(
            "GatherElements", sketch.input(1, 12, 16), sketch.places(1, 5, 16, below=12, dtype=dtype), axis=1
        )

    return draw


def _points(sketch: Sketch) -> str:
    return sketch.op("GatherND", sketch.input(1, 12, 16), sketch.places(1, 5, 1, below=12), batch_dims=1)


def _stored_elements(sketch: Sketch, x: str) -> str:
    places = sketch.stored([[[(row + 3 * place) % 16 for place in range(4)] for row in range(12)]], "int64")
    return sketch.op("GatherElements", x, places, axis=-1)


def _scattered(sketch: Sketch, x: str) -> str:
    places = sketch.stored([[0, 2], [0, 5], [0, 9]], "int64")
    return sketch.op("ScatterND", x, places, sketch.input(3, 16))


def _scattered_elements(sketch: Sketch, x: str) -> str:
    places = sketch.stored([[[(row * 5 + place) % 12 for place in range(16)] for row in range(2)]], "int64")
    return sketch.op("ScatterElements", x, places, sketch.input(1, 2, 16), axis=1)


def _most(axis: int) -> Callable[[Sketch, str], str]:
    return lambda sketch, x: sketch.op("TopK", x, sketch.stored([5], "int64"), outputs=2, axis=axis)


def _sampled(mode: str, padding: str, corners: int) -> Draw:
    def draw(sketch: Sketch) -> str:
        picture, grid = sketch.input(1, 8, 12, 14), sketch.input(1, 6, 5, 2, low=-1.2, high=1.2)
        return sketch.op("GridSample", picture, grid, mode=mode, padding_mode=padding, align_corners=corners)

    return draw
