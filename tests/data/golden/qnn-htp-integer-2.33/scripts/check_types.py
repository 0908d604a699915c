#!/usr/bin/env python3
"""Compares the data types in a converter's *_net.json with the intended ones; ends with 1 on any difference.

    check_types.py NET_JSON INTENDED_JSON

Written by deploykit 0.1.0; needs nothing but Python 3.8 or newer. Tensors that the converter folded or fused away are
counted, not compared: they have no type any more.
"""

import json
import re
import sys

# QNN data type codes as they stand in *_net.json, by the name deploykit uses.
CODES = {
    0x0008: "int8", 0x0016: "int16", 0x0032: "int32", 0x0064: "int64",
    0x0108: "uint8", 0x0116: "uint16", 0x0132: "uint32", 0x0164: "uint64",
    0x0216: "float16", 0x0232: "float32", 0x0508: "bool",
    0x0304: "int4", 0x0308: "int8", 0x0316: "int16", 0x0332: "int32",
    0x0404: "uint4", 0x0408: "uint8", 0x0416: "uint16", 0x0432: "uint32",
}
# What stored weights may differ in: 4 bits stay in 8-bit storage unless packed, float weights may keep 32 bits.
SAME = {("int4", "int8"), ("uint4", "uint8"), ("float16", "float32")}


def mangled(name):
    """The converter's form of an ONNX name: everything but letters, digits and underscores becomes an underscore."""
    text = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return "_" + text if text[:1].isdigit() else text


def width(kind):
    digits = re.search(r"\d+", kind)
    return int(digits.group()) if digits else 0


def agrees(intended, actual, static):
    """Signedness may differ for the same grid; width and kind may not."""
    if intended == actual:
        return True
    if static and ((intended, actual) in SAME):
        return True
    integers = not intended.startswith(("float", "bfloat")) and not actual.startswith(("float", "bfloat"))
    return integers and width(intended) == width(actual)


def main(net_path, intended_path):
    with open(intended_path, encoding="utf-8") as stream:
        intended = json.load(stream)["types"]
    with open(net_path, encoding="utf-8") as stream:
        tensors = json.load(stream)["graph"]["tensors"]
    actual = {}
    for name, tensor in tensors.items():
        code = tensor["data_type"]
        actual[mangled(name)] = (CODES.get(code, hex(code)), tensor.get("type") == 4)
    differing, compared = [], 0
    for name, kind in sorted(intended.items()):
        found = actual.get(mangled(name))
        if found is None:
            continue
        compared += 1
        if not agrees(kind, found[0], found[1]):
            differing.append((name, kind, found[0]))
    for name, kind, found in differing:
        print(f"precision: {name} is {found}, intended {kind}", file=sys.stderr)
    print(f"{compared} of {len(intended)} tensors compared, {len(differing)} differ", file=sys.stderr)
    if intended and not compared:
        print("precision: not one tensor of the plan is in the converter's graph", file=sys.stderr)
        return 1
    return 1 if differing else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
