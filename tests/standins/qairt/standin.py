"""Plays a QAIRT tool for tests of generated scripts; see README.md beside it. Not the vendor's software."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from deploykit_qualcomm.qnn_types import mangled
from deploykit_qualcomm.tables import tables

CODES = {"int4": 0x308, "int8": 0x308, "int16": 0x316, "int32": 0x332}
CODES |= {"uint4": 0x408, "uint8": 0x408, "uint16": 0x416, "uint32": 0x432, "float16": 0x216, "float32": 0x232}
PLAYS = "stand-in for "
"""What every artifact holds, with the path of the ONNX file that it was made from: ``net_run`` runs that file."""


def main(tool: str, version: str, argv: list[str]) -> None:
    """Record the call, check the command line, then act."""
    record = os.environ.get("STANDIN_CALLS")
    if record:
        with Path(record).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps([tool, *argv]) + "\n")
    if os.environ.get("STANDIN_FAIL") == tool:
        # A tool that dies half way leaves a partial output behind.
        flags = parse(tool, version, argv)
        for flag in ("--output_path", "--output_dir", "-o"):
            if flag in flags:
                partial(Path(flags[flag][0]), tool)
        fail("could not create op: q::flat_from_vtcm\n" + "graph prepare failed 12", 1)
    ACTIONS[tool](parse(tool, version, argv), version)


def partial(path: Path, tool: str) -> None:
    if tool in ("qnn-onnx-converter", "qairt-converter"):
        path.write_text("half", "utf-8")


def parse(tool: str, version: str, argv: list[str]) -> dict[str, list[str]]:
    """The flags with their values; an unlisted flag or a wrong number of values ends the program as argparse does."""
    sdk = tables().table(version)
    flags: dict[str, list[str]] = {}
    current = None
    for word in argv:
        if word.startswith("-") and not word[1:2].isdigit():
            row = sdk.flag(tool, word)
            if row is None or row.status != "supported":
                fail(f"{tool}: error: unrecognized arguments: {word}", 2)
            current = word
            flags[word] = []
        elif current is None:
            fail(f"{tool}: error: unrecognized arguments: {word}", 2)
        else:
            flags[current].append(word)
    for flag, values in flags.items():
        row = sdk.flag(tool, flag)
        least = 0 if row is not None and row.kind == "switch" else 1
        if len(values) < least or (row is not None and row.kind == "value" and len(values) != 1):
            fail(f"{tool}: error: argument {flag}: expected one argument", 2)
    return flags


def fail(text: str, status: int) -> NoReturn:
    print(text, file=sys.stderr)
    sys.exit(status)


def convert(flags: dict[str, list[str]], version: str) -> None:
    """The legacy converter: gaps become 8 bit with an input list, float with a fallback, and stay float otherwise."""
    del version
    model = Path(flags["--input_network"][0])
    entries = overrides(flags)
    listed = "--input_list" in flags
    if listed:
        check_input_list(Path(flags["--input_list"][0]), model)
    floats = {name for name, kind in entries.items() if kind == "float16"}
    if floats and listed:
        fail(
            f"setQInfo: Can't set quantization data with data type 16 for tensor {min(floats)} with quantizable flag 0",
            1,
        )
    if entries and not listed and "--float_fallback" not in flags:
        print("Skipping quantization, no input_list provided")
        entries = {}
    print(f"Processed {len(entries)} quantization encodings")
    gap = (
        f"uint{flags.get('--act_bitwidth', ['8'])[0]}" if listed else f"float{flags.get('--float_bitwidth', ['32'])[0]}"
    )
    tensors = {
        mangled(name): {"type": 4 if stored else 3, "data_type": CODES[entries.get(name, gap)]}
        for name, stored in names_of(model)
    }
    output = Path(flags["--output_path"][0])
    output.write_text(played(model), "utf-8")
    output.with_suffix(".bin").write_bytes(b"stand-in")
    net = output.with_name(f"{output.stem}_net.json")
    net.write_text(json.dumps({"graph": {"tensors": tensors, "nodes": {}}}), "utf-8")


def played(model: Path) -> str:
    """What stands for a compiled model: the ONNX file itself, as text."""
    return f"{PLAYS}{base64.b64encode(model.read_bytes()).decode()}\n"


def overrides(flags: dict[str, list[str]]) -> dict[str, str]:
    """The type of every entry; a 2.0.0 file without quantizer V2 is a KeyError, as reported for 2.33."""
    if "--quantization_overrides" not in flags:
        return {}
    data = json.loads(Path(flags["--quantization_overrides"][0]).read_text("utf-8"))
    if data["version"].startswith("2."):
        if "--use_quantize_v2" not in flags:
            fail("Traceback (most recent call last):\nKeyError: 'param_encodings'", 1)
        return {entry["name"]: entry["output_dtype"] for entry in data["encodings"]}
    kinds: dict[str, str] = {}
    for section in ("activation_encodings", "param_encodings"):
        rows = data[section]
        pairs = rows.items() if isinstance(rows, dict) else ((row["name"], [row]) for row in rows)
        kinds |= {name: entry_type(items[0]) for name, items in pairs}
    return kinds


def entry_type(item: dict[str, Any]) -> str:
    if str(item["dtype"]).lower() == "float":
        return "float16"
    bits = item.get("bitwidth", item.get("bw"))
    symmetric = item.get("is_symmetric", item.get("is_sym")) in (True, "True")
    return f"{'int' if symmetric else 'uint'}{bits}"


def names_of(model: Path) -> list[tuple[str, bool]]:
    """Float tensors of the model, with whether they are stored."""
    from deploykit.model.collect import collect_facts
    from deploykit.model.load import load_model

    facts = collect_facts(load_model(model))
    return [(name, fact.is_weight) for name, fact in facts.tensors.items() if fact.is_float]


def check_input_list(path: Path, model: Path) -> None:
    for line in path.read_text("utf-8").splitlines():
        for word in line.split():
            if not Path(word.partition(":=")[2] or word).is_file():
                fail(f"{path}: {word}: no such file for {model}", 1)


def model_lib(flags: dict[str, list[str]], version: str) -> None:
    del version
    folder = Path(flags["-o"][0]) / flags["-t"][0]
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(flags["-c"][0])
    (folder / f"lib{source.stem}.so").write_text(source.read_text("utf-8"), "utf-8")


def context(flags: dict[str, list[str]], version: str) -> None:
    """Unknown keys of the inner file are an error, as measured on 2.48."""
    outer = json.loads(Path(flags["--config_file"][0]).read_text("utf-8"))
    inner = json.loads(Path(outer["backend_extensions"]["config_file_path"]).read_text("utf-8"))
    sdk = tables().table(version)
    for device in inner.get("devices", []):
        for key in device:
            row = sdk.key(f"devices[].{key}")
            if row is None or row.status != "supported":
                fail(f"Unknown Key = devices/{key} passed in config", 1)
    made_from = [Path(name) for name in flags.get("--dlc_path", flags["--model"])[0].split(",")]
    named = [name for graph in inner.get("graphs", []) for name in graph["graph_names"]]
    if len(made_from) > 1 and [path.stem for path in made_from] != named:
        fail(f"the configuration names the graphs {named}, the DLCs are {made_from}", 1)
    target = Path(flags["--output_dir"][0]) / f"{flags['--binary_file'][0]}.bin"
    target.write_bytes(b"".join(path.read_bytes() for path in made_from))


def dlc(flags: dict[str, list[str]], version: str) -> None:
    del version
    print(f"Processed {len(overrides(flags))} quantization encodings")
    Path(flags["--output_path"][0]).write_text(played(Path(flags["--input_network"][0])), "utf-8")


def later(action: str) -> Callable[[dict[str, list[str]], str], None]:
    """What plays the programs of a device; it loads ONNX Runtime, which the others do not need."""

    def run(flags: dict[str, list[str]], version: str) -> None:
        import net_run

        getattr(net_run, action)(flags, version)

    return run


ACTIONS = {
    "qnn-onnx-converter": convert,
    "qairt-converter": dlc,
    "qnn-model-lib-generator": model_lib,
    "qnn-context-binary-generator": context,
    "qnn-net-run": later("net_run"),
    "qnn-profile-viewer": later("view"),
}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
