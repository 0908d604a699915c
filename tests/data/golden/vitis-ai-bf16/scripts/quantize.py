"""Quantize the model of this package with AMD Quark, as config/quantize.json says.

    python scripts/quantize.py [--recipe config/quantize.json] [--result logs/quantize.json] [--compare FOLDER]

Needs an environment with amd-quark, torch, onnxruntime and OpenCV (`deploykit toolchain install quark` makes one) and
nothing of deploykit. Edit freely. What counts is the result file and the model: Quark can fail by logging only.
--compare saves the outputs of both models for some calibration samples, as FOLDER/baseline and FOLDER/candidate.
"""

import argparse
import copy
import hashlib
import heapq
import importlib
import json
import os
import sys
import time
import zipfile
from importlib.metadata import version
from pathlib import Path

try:
    import numpy as np
except ModuleNotFoundError as missing:
    sys.exit(f"error: {missing} ({sys.executable})\n  next: set QUARK_PYTHON to the Python of an environment with Quark")

ROOT = Path(__file__).resolve().parents[1]


# ---- calibration data --------------------------------------------------------------------------------------------


def image_tensor(path, recipe):
    """Decode, resize and normalise one image as the recipe says; raises ValueError for a damaged file."""
    import cv2

    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise ValueError("cannot be decoded")
    image = resize(cv2, image, recipe)
    if recipe.get("channels", "RGB") == "RGB":
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    pixels = image.astype(np.float32) * np.float32(recipe.get("scale", 1.0))
    pixels = (pixels - np.asarray(recipe.get("mean", [0, 0, 0]), np.float32)) / np.asarray(
        recipe.get("std", [1, 1, 1]), np.float32
    )
    return pixels.transpose(2, 0, 1)[None] if recipe.get("layout", "NCHW") == "NCHW" else pixels[None]


def resize(cv2, image, recipe):
    """Stretch, letterbox (keep the proportions, fill the rest) or crop the centre."""
    width, height = recipe["width"], recipe["height"]
    mode = recipe.get("resize", "stretch")
    if mode == "stretch":
        return cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    rows, columns = image.shape[:2]
    factor = (min if mode == "letterbox" else max)(width / columns, height / rows)
    scaled = cv2.resize(image, (max(1, round(columns * factor)), max(1, round(rows * factor))))
    result = np.full((height, width, 3), recipe.get("fill", 114), image.dtype)
    top, left = (height - scaled.shape[0]) // 2, (width - scaled.shape[1]) // 2
    if mode == "letterbox":
        result[top : top + scaled.shape[0], left : left + scaled.shape[1]] = scaled
    else:
        result[:] = scaled[-top : -top + height, -left : -left + width]
    return result


def array_samples(path, inputs):
    """The samples of one .npy (models with one input) or .npz (an array per input).

    An extra leading axis, or a batch of a model made for batch 1, is taken apart.
    """
    loaded = np.load(path, allow_pickle=False)
    single = isinstance(loaded, np.ndarray) or (len(inputs) == 1 and loaded.files == ["arr_0"])
    if single:
        values = {next(iter(inputs)): loaded if isinstance(loaded, np.ndarray) else loaded["arr_0"]}
    else:
        values = {name: loaded[name] for name in inputs}
    name, spec = next(iter(inputs.items()))
    first, rank = values[name], len(spec["shape"])
    if first.ndim == rank + 1:
        yield from ({n: value[i] for n, value in values.items()} for i in range(len(first)))
    elif first.ndim == rank and rank and spec["shape"][0] == 1 and len(first) > 1:
        yield from ({n: value[i : i + 1] for n, value in values.items()} for i in range(len(first)))
    else:
        yield values


def samples(calibration, skipped):
    """Every calibration sample as {input: array}; files that cannot be used are named in `skipped`."""
    inputs = calibration["inputs"]
    for name in calibration["files"]:
        path = ROOT / name
        try:
            if calibration["kind"] == "images":
                yield {
                    calibration["recipe"].get("input") or next(iter(inputs)): image_tensor(path, calibration["recipe"])
                }
            else:
                yield from array_samples(path, inputs)
        except (ValueError, OSError, KeyError, EOFError) as error:
            skipped.append({"file": name, "why": str(error)})


def checked(sample, inputs):
    """The sample with the types the model wants; raises ValueError where name or shape is not the model's.

    Quark itself only logs such a mismatch, returns None and writes no file.
    """
    if set(sample) != set(inputs):
        raise ValueError(f"gives {sorted(sample)}, the model wants {sorted(inputs)}")
    for name, value in sample.items():
        wanted = inputs[name]["shape"]
        # A sample may have the layout that the input had before it was turned to channels last.
        fits = [
            shape
            for shape in (inputs[name].get("given", wanted), wanted)
            if len(shape) == value.ndim and all(not isinstance(w, int) or w == v for w, v in zip(shape, value.shape))
        ]
        if not fits:
            raise ValueError(f"{name} has shape {list(value.shape)}, the model wants {wanted}")
        if fits[0] is not wanted:
            sample[name] = value.transpose(0, 2, 3, 1)
    return {name: np.ascontiguousarray(value, dtype=inputs[name]["dtype"]) for name, value in sample.items()}


class Reader:
    """What Quark asks for: one sample after the other, then None; it can start again. It never sees `held_out`."""

    def __init__(self, given, held_out=()):
        self.given = given
        self.held_out = held_out
        self.rewind()

    def get_next(self):
        return next(self.rest, None)

    def rewind(self):
        self.rest = iter(self.given)

    reset_iter = rewind

    def __len__(self):
        return len(self.given)


def user_reader(spec):
    """The reader of a user: `module:Class` from the folder calibration/ or from the Python path."""
    module, _, name = spec.partition(":")
    sys.path.insert(0, str(ROOT / "calibration"))
    reader = getattr(importlib.import_module(module), name)()
    given = []
    while (sample := reader.get_next()) is not None:
        given.append(sample)
    return given


def collect(calibration, result):
    """All samples, checked; the numbers go into the result."""
    if calibration["kind"] == "random":
        return None
    skipped = []
    raw = user_reader(calibration["reader"]) if calibration["kind"] == "reader" else samples(calibration, skipped)
    given = []
    for sample in raw:
        if len(given) == calibration.get("limit"):
            break
        given.append(checked(sample, calibration["inputs"]))
    result["samples"], result["skipped"] = len(given), skipped
    if not given:
        raise ValueError("not one usable calibration sample")
    held = held_out(len(given), calibration.get("hold_out"))
    result["held_out"] = len(held)
    return Reader([s for i, s in enumerate(given) if i not in held], [given[i] for i in sorted(held)])


def held_out(count, rule):
    """Positions that are measured on and never calibrated with: spread over the data, none of too few samples."""
    wanted = min(rule["most"], count // rule["one_in"]) if rule else 0
    return {round((at + 0.5) * count / wanted) for at in range(wanted)} if wanted else set()


# ---- Quark -------------------------------------------------------------------------------------------------------


def to_float32(recipe):
    """Turn a float16 model into float32 first, with Quark's Shapeshifter (Quark 0.12 and newer), or some parts of it.

    The Casts at the borders of parts are to stay as they are: they are added to what is excluded.
    """
    import onnx
    from quark.shapeshifter import shapeshifter
    from quark.shapeshifter.model_config import ONNXModelConfig
    from quark.shapeshifter.run_config import RunConfig

    parts = recipe.get("float32_subgraphs")
    settings = {"convert_fp16_to_fp32": True} | ({"subgraphs_to_include": parts} if parts else {})
    target = ROOT / recipe["float32_model"]
    target.parent.mkdir(parents=True, exist_ok=True)
    config = RunConfig(
        input_model_config=ONNXModelConfig(input_model_path=ROOT / recipe["source"]),
        passes={"onnx_convert_fp16_to_fp32": settings},
        output_model_path=str(target),
    )
    shapeshifter(config)
    if parts:
        before, after = (
            {node.name for node in onnx.load(path, load_external_data=False).graph.node if node.op_type == "Cast"}
            for path in (ROOT / recipe["source"], target)
        )
        recipe["attributes"]["nodes_to_exclude"] += sorted(after - before)
    return target


def configuration(recipe):
    """Quark's configuration: a private copy of the preset (Quark hands out one shared object), then the recipe."""
    from quark.onnx import QConfig

    config = copy.deepcopy(QConfig.get_default_config(recipe["preset"]))
    settings = config.global_quant_config
    for name, value in recipe["attributes"].items():
        if not hasattr(settings, name):
            raise ValueError(f"this Quark has no attribute {name!r}; it would ignore it without a word")
        if name == "subgraphs_to_exclude":
            value = [(list(starts), list(ends)) for starts, ends in value]
        if name == "calibrate_method":
            value = calibration_method(value)
        setattr(settings, name, value)
    for name, value in recipe["extra_options"].items():
        if name == "WeightCalibrateMethod":
            value = calibration_method(value)
        inside = settings.extra_options.get(name)
        both = isinstance(value, dict) and isinstance(inside, dict)
        settings.extra_options[name] = {**inside, **value} if both else value
    return config


def calibration_method(name):
    """The member that a name such as `PowerOfTwoMethod.MinMSE` stands for; a plain text would be ignored."""
    import quark.onnx

    kind, _, member = name.partition(".")
    if kind == "CalibrationMethod":
        from onnxruntime.quantization import CalibrationMethod

        return CalibrationMethod[member]
    return getattr(quark.onnx, kind)[member]


def without_unread(source):
    """The model without inputs that nothing reads, and these: Quark takes them out, and fails at their samples."""
    import onnx

    model = onnx.load(source, load_external_data=False)
    graphs, read = [model.graph], set()
    while graphs:
        graph = graphs.pop()
        read |= {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
        graphs += [inside for node in graph.node for a in node.attribute for inside in (a.g, *a.graphs)]
    unread = [given for given in model.graph.input if given.name not in read]
    if not unread:
        return source, ()
    unread = [copy.deepcopy(given) for given in unread]
    for given in unread:
        model.graph.input.remove(given)
    onnx.save(model, source.with_name(READ))
    return source.with_name(READ), unread


READ = "read.onnx"  # beside the model, as its weights may be, and gone when the run ends


def quantize(recipe, result):
    """Run Quark once and judge it by the file it wrote."""
    from quark.onnx import ModelQuantizer

    result["quark"] = version("amd-quark")
    output = ROOT / recipe["output"]
    output.unlink(missing_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    source = to_float32(recipe) if recipe.get("float32_model") else ROOT / recipe["source"]
    reader = collect(recipe["calibration"], result)
    read, unread = without_unread(source)
    given = (*reader.given, *reader.held_out) if reader else ()
    spared = [{one.name: sample.pop(one.name) for one in unread} for sample in given]
    work = ROOT / "logs"
    work.mkdir(exist_ok=True)
    os.chdir(work)  # Quark drops a quantized_info.csv into the current folder
    ModelQuantizer(configuration(recipe)).quantize_model(str(read), str(output), reader)
    Path("quantized_info.csv").unlink(missing_ok=True)
    if not output.is_file():
        raise RuntimeError("Quark returned without an error and wrote no model; its log says why")
    result["reordered"] = put_in_order(output)
    if unread:  # who runs the model gives them still
        import onnx

        model = onnx.load(output, load_external_data=False)
        model.graph.input.extend(unread)
        onnx.save(model, output)
        for sample, values in zip(given, spared):
            sample.update(values)
    return source, output, reader


def put_in_order(path):
    """Sort the nodes so that each stands after those it reads from, as ONNX wants: some presets append at the end."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    made_by = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needs = [{made_by[name] for name in node.input if name in made_by} for node in graph.node]
    if all(before < index for index, found in enumerate(needs) for before in found):
        return False
    readers = [[] for _ in needs]
    for index, found in enumerate(needs):
        for before in found:
            readers[before].append(index)
    waiting, order = [len(found) for found in needs], []
    ready = [index for index, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) != len(needs):
        raise RuntimeError("the quantized graph has a cycle")
    nodes = [copy.deepcopy(graph.node[index]) for index in order]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, path)
    return True


def save_arrays(path, arrays):
    """A .npz of arrays under any names: numpy.savez takes some, such as `file`, for its own arguments."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in arrays.items():
            with archive.open(name + ".npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(value), allow_pickle=False)


def save_outputs(source, output, reader, folder, most=32):
    """Run both models on what was held out and on samples spread over the rest, one .npz of outputs per sample."""
    import onnxruntime

    room = most - len(reader.held_out)
    seen = reader.given[:: max(1, len(reader.given) // room)][:room]
    picked = [(f"held_out_{i:03}", sample) for i, sample in enumerate(reader.held_out)]
    picked += [(f"seen_{i:03}", sample) for i, sample in enumerate(seen)]
    for side, model in (("baseline", source), ("candidate", output)):
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        names = [item.name for item in session.get_outputs()]
        (folder / side).mkdir(parents=True, exist_ok=True)
        for name, sample in picked:
            save_arrays(folder / side / f"{name}.npz", dict(zip(names, session.run(None, sample))))


def main():
    """0 only when the model is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="config/quantize.json")
    parser.add_argument("--result", default="logs/quantize.json")
    parser.add_argument("--compare", type=Path)
    arguments = parser.parse_args()
    compare = arguments.compare.resolve() if arguments.compare else None
    recipe = json.loads((ROOT / arguments.recipe).read_text(encoding="utf-8"))
    result = {"schema": 1, "ok": False, "random_data": recipe["calibration"]["kind"] == "random"}
    started = time.monotonic()
    try:
        source, output, reader = quantize(recipe, result)
        if compare is not None and reader is not None:
            save_outputs(source, output, reader, compare)
        result |= {"ok": True, "output": recipe["output"], "sha256": hashlib.sha256(output.read_bytes()).hexdigest()}
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
    for left in ROOT.glob(f"*/{READ}"):
        left.unlink()
    target = ROOT / arguments.result
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result), f"{time.monotonic() - started:.1f} s")
    if result["random_data"]:
        print("NOT FOR PRODUCTION: calibrated with random data", file=sys.stderr)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
