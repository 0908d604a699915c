"""Parts that read strangers' files or change graphs, called directly: an answer is a value or a DeploykitError.

Everything else that comes out of them is a defect. Each takes the path of one file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["PARTS", "WrongRewriteError", "as_near_to_the_truth"]

_MAGNITUDES = (1.0, 1e-3, 30.0)
_SPREAD = 4.0
"""How much farther from float64's result than ONNX Runtime's own a rewritten graph's may lie."""


class WrongRewriteError(AssertionError):
    """A rewrite was kept, and the model gives something else for inputs that its proof did not see."""


def rewrites(path: Path) -> None:
    """Every rewrite on a model: refused, undone by its own proof, or equal on other samples as well."""
    from deploykit.flow.cure import rewrite
    from deploykit.model.collect import collect_facts
    from deploykit.model.load import blaming, load_model
    from deploykit.rewrites.contract import load_transform, transform_names

    with blaming(path):
        model = load_model(path)
        collect_facts(model)
    proto = model.proto
    feeds = [_feed(proto, number, magnitude) for number, magnitude in enumerate(_MAGNITUDES)]
    for name in transform_names():
        with blaming(path):
            made = rewrite(proto, None, [name], feeds[:1])
        if made.kept and load_transform(name).ulps is not None:
            _expect_equal(proto, made, feeds[1:])


def _expect_equal(before: Any, made: Any, feeds: list[dict[str, Any]]) -> None:
    from deploykit.accuracy.simulate.sessions import Session
    from deploykit.errors import InputError
    from deploykit.flow.cure import difference_in_ulps
    from deploykit.rewrites.contract import load_transform

    step = next(step for step in made.steps if step.kept)
    allowed = (load_transform(step.name).ulps or 0.0) * len(step.sites)
    old, new = Session(before), Session(made.model)
    tail = None if made.tail is None else Session(made.tail)
    for feed in feeds:
        try:
            wanted = old.run(feed)
        except InputError:
            continue  # no value is right where the model itself gives none
        got = new.run(feed)
        whole = got if tail is None else {**got, **tail.run({**feed, **got})}
        found = difference_in_ulps(wanted, whole)
        if found > allowed and not as_near_to_the_truth(before, feed, wanted, whole, allowed):
            raise WrongRewriteError(f"{step.name}: {found:g} roundings, {allowed:g} are allowed")


def as_near_to_the_truth(before: Any, feed: dict[str, Any], wanted: Any, got: Any, allowed: float) -> bool:
    """Whether float32 as such is that far off here: the new result lies as near to float64's as the old one does."""
    from attacks.in_double import outputs_in_double
    from deploykit.errors import InputError
    from deploykit.flow.cure import difference_in_ulps

    try:
        truth = outputs_in_double(before, feed)
    except InputError:
        return False
    narrow = {name: truth[name].astype(value.dtype) for name, value in wanted.items()}
    own = difference_in_ulps(narrow, wanted)
    return math.isfinite(own) and difference_in_ulps(narrow, got) <= allowed + _SPREAD * own


def _feed(model: Any, seed: int, magnitude: float) -> dict[str, Any]:
    import numpy as np
    from onnx import TensorProto, helper

    chance = np.random.default_rng(seed)
    numbers = {*helper.get_all_tensor_dtypes()} - {TensorProto.STRING}  # a file may name a type that nobody knows
    stored = {item.name for item in model.graph.initializer}
    feed = {}
    for item in model.graph.input:
        if item.name in stored:
            continue
        tensor = item.type.tensor_type
        shape = [max(dim.dim_value, 0) or 1 for dim in tensor.shape.dim]
        elem_type = tensor.elem_type or TensorProto.FLOAT
        if elem_type not in numbers or np.prod([float(size) for size in shape]) > 1e7:
            continue
        kind = helper.tensor_dtype_to_np_dtype(elem_type)
        values = chance.normal(0.0, magnitude, shape)
        feed[item.name] = (np.abs(values) if kind.kind in "ub" else values).astype(kind)
    return feed


def dlc(path: Path) -> None:
    """A compiled container, as found in a package."""
    from deploykit_ort_qnn.compiler.dlc import read_dlc, with_check_sums

    read_dlc(path)
    with_check_sums(path, path.with_name("again.dlc"))


def recipe(path: Path) -> None:
    """The table that says how images become an input."""
    from deploykit.accuracy.samples.images import read_recipe

    read_recipe(path.parent)


def picture(path: Path) -> None:
    """An image as a sample."""
    from deploykit.accuracy.samples.images import ImageRecipe, read_image
    from deploykit.accuracy.samples.inputs import InputSpec

    recipe = ImageRecipe(schema=1, width=16, height=16, resize="letterbox", scale=1 / 255)
    read_image(path, recipe, InputSpec(name="image", dtype="float32", shape=(1, 3, 16, 16)))


def device(path: Path) -> None:
    """A table of devices, as an adapter brings it."""
    from deploykit.tables.devices import load_device

    load_device(path)


def record(path: Path) -> None:
    """What a recorder left: ``record.jsonl``."""
    from deploykit_qualcomm.hosted import read_calls, read_verdicts, refusal_lines

    tuple(refusal_lines(read_verdicts(read_calls(path.parent))))


def remembered(path: Path) -> None:
    """An answer that is said to have been kept between runs: anything but an object is no answer."""
    from deploykit.system.store import Store

    kept = Store("attack")
    kept.folder = path.parent
    found = kept.get(path.stem)
    assert found is None or isinstance(found, dict)


def references(path: Path) -> None:
    """Labels for the user's own measure."""
    import numpy as np

    from deploykit.accuracy.judge.metric import user_metric

    function = user_metric("math:prod", references=path)
    assert function is not None
    outputs: list[Mapping[str, Any]] = [{"y": np.zeros(2, np.float32)}]
    function.measure(outputs, outputs)


def arrays(path: Path) -> None:
    """Samples in any form."""
    from deploykit.accuracy.samples.arrays import read_arrays

    read_arrays(path)


def job_result(path: Path) -> None:
    """What a child process says that it did."""
    from deploykit.system.jobs import finished_job

    finished_job(path.parent)


PARTS: Mapping[str, Callable[[Path], None]] = {
    part.__name__: part
    for part in (
        rewrites,
        dlc,
        recipe,
        picture,
        device,
        record,
        remembered,
        references,
        arrays,
        job_result,
    )
}
