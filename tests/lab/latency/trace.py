"""A second reader of the compiler's trace, which shares no code with the product's: who takes how long.

It reads the file as a whole, walks over the moments between two changes, and joins names by hand. `worker` holds the
ten dearest operators of the product against it.
"""

from __future__ import annotations

import bisect
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["operator_cycles"]

# What ONNX Runtime, the provider and its compiler add to a name that they use again or fuse.
_ENDING = re.compile(r"(_token)?_\d+$|/duplicated$|^fused |\.n[ch][wh][cw]$|_new_reshape$|/[A-Za-z]+Fusion/?$")


def operator_cycles(trace: Path, schematic: Path, graph: Path, operators: Iterable[str]) -> dict[str, float]:
    """Cycles of each operator of the model; they add up to the whole.

    Where several operators compute at one moment they share it; a moment in which none does belongs to those that move
    data, and an empty one to the operator that comes next.
    """
    owners = _owners(schematic, json.loads(graph.read_text())["graph"], operators)
    kernels = []
    for found in re.finditer(rb'\{"name":[^\n]*', trace.read_bytes()):
        row, _ = json.JSONDecoder().raw_decode(found[0].decode("utf-8", "replace"))
        if row["ph"] == "X":
            owner = owners.get(int(row["args"]["id"], 16) % 2**32, "(unnamed)")
            moves = "uses_hmx" not in row["args"].get("flags", ()) and row["tid"] >= 5
            kernels.append((row["ts"], row["ts"] + row["dur"], owner, moves))
    moments = sorted({moment for start, end, _, _ in kernels for moment in (start, end)})
    computing: list[set[str]] = [set() for _ in moments]
    moving: list[set[str]] = [set() for _ in moments]
    coming: dict[float, str] = {}
    for start, end, owner, moves in sorted(kernels, key=lambda kernel: (kernel[0], kernel[2])):
        coming.setdefault(start, owner)
        for place in range(bisect.bisect_left(moments, start), bisect.bisect_left(moments, end)):
            (moving if moves else computing)[place].add(owner)
    cycles: dict[str, float] = defaultdict(float)
    for place in range(len(moments) - 1):
        who = computing[place] or moving[place] or {coming[moments[place + 1]]}
        for owner in who:
            cycles[owner] += (moments[place + 1] - moments[place]) / len(who)
    return dict(cycles)


def _owners(schematic: Path, graph: Mapping[str, Any], operators: Iterable[str]) -> dict[int, str]:
    """The operator behind each number in a trace; a transpose of the provider's own is told by what wants it."""
    text = schematic.read_bytes().decode("utf-8", "replace")
    table = text[text.index("qnn_name_translations") :]
    names = {int(number, 16): name for number, name in re.findall(r"^0x([0-9a-f]+): '(.*)',$", table, re.MULTILINE)}
    known = set(operators)

    def plain(name: str) -> str:
        shorter = name
        while shorter not in known and _ENDING.search(shorter):
            shorter = _ENDING.sub("", shorter)
        return shorter if shorter in known else name

    layouts = {}
    for name, node in graph["nodes"].items():
        if node["type"] == "Transpose" and plain(name) not in known:
            readers = (n for n, o in graph["nodes"].items() if set(o["input_names"]) & set(node["output_names"]))
            makers = (n for n, o in graph["nodes"].items() if set(o["output_names"]) & set(node["input_names"]))
            wanted = (plain(beside) for beside in (*readers, *makers))
            layouts[name] = next((f"layout of {one}" for one in wanted if one in known), plain(name))
    return {2: "graph input", 3: "graph output"} | {n: layouts.get(name) or plain(name) for n, name in names.items()}
