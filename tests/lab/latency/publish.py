"""Writes the table of published times that the product tells a network by: its structure, and what others measured.

Only rows that are wholly on the NPU and of one release each are taken, and of devices that are what they are called.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import deploykit
from deploykit.model.facts import GraphFacts
from deploykit_qualcomm.rules import published

__all__ = ["write_table"]

_CHIPS = {
    "Dragonwing IQ-9075 EVK": "qcs9075",
    "Dragonwing Q-6690 MTP": "qcm6690",
    "Dragonwing RB3 Gen 2 Vision Kit": "qcs6490",
    "SA7255P ADP": "sa7255",
    "SA8295P ADP": "sa8295",
    "SA8775P ADP": "sa8775p",
    "Samsung Galaxy S24": "sm8650",
    "Samsung Galaxy S25": "sm8750",
    "Snapdragon 7 Gen 4 QRD": "sm7750",
    "Snapdragon 8 Elite Gen 5 QRD": "sm8850",
    "Snapdragon X Elite CRD": "sc8380xp",
    "Snapdragon X2 Elite CRD": "sc8480xp",
}
_WAYS = {"onnx": ("onnx", "2.42"), "qnn_dlc": ("dlc", "2.43")}
_PRECISIONS = ("float", "w8a8", "w8a16")
_HEAD = """\
# Times that others measured, of networks that are known by their structure. Nothing here is concluded from anything.
# `python -m latency publish` in tests/lab writes this file.
schema = 1
source = "https://github.com/qualcomm/ai-hub-models/tree/v0.47.0 (perf.yaml of each model)"
licence = "BSD-3-Clause"

[ways]
onnx = "by ONNX Runtime (QAIRT 2.42)"
dlc = "as a DLC (QAIRT 2.43)"
"""


def write_table(folder: Path, checkout: Path, out: Path) -> None:
    """The table of the networks in ``folder``; two that have one structure are both left out."""
    networks = json.loads((folder / "networks.json").read_text())
    known = {path.stem: _structures(path) for path in sorted(folder.glob("*.onnx"))}
    often = Counter(one for structures in known.values() for one in structures)
    text, count = [_HEAD], 0
    for name, structures in known.items():
        _, component, of = networks[name]
        times = _times(checkout, of, component)
        if not structures or any(often[one] > 1 for one in structures) or not times:
            print(f"{name}: left out: {'not told by its structure' if times else 'no row'}")
            continue
        structure = '", "'.join(structures)
        text.append(f'\n[[network]]\nname = "{component or of}"\nstructure = ["{structure}"]\n\n[network.times]\n')
        for chip, rows in sorted(times.items()):
            cells = (
                f"{precision} = {{ {', '.join(f'{way} = {ms}' for way, ms in sorted(told.items()))} }}"
                for precision, told in rows.items()
            )
            text.append(f"{chip} = {{ {', '.join(cells)} }}\n")
            count += sum(map(len, rows.values()))
    out.write_text("".join(text))
    print(f"{count} rows of {len(known)} networks, {out.stat().st_size} bytes")


def _structures(model: Path) -> list[str]:
    """As the rule meets it: the graph as it was given, and as it is simplified."""
    seen: list[str] = []
    own = published.structure_of

    def listen(facts: GraphFacts) -> str:
        seen.append(own(facts))
        return seen[-1]

    published.structure_of = listen
    try:
        deploykit.check(model, target="qcs9075", backend="ort-qnn", second_opinion=False)
    finally:
        published.structure_of = own
    return sorted({one for one in seen if one})


def _times(checkout: Path, name: str, component: str) -> dict[str, dict[str, dict[str, float]]]:
    import yaml

    command = ["git", "-C", str(checkout), "show", f"HEAD:qai_hub_models/models/{name}/perf.yaml"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    told: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    times: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for precision in _PRECISIONS:
        parts: dict[str, Any] = (told.get("precisions", {}).get(precision) or {}).get("components") or {}
        part: dict[str, Any] = (parts.get(component) if component else next(iter(parts.values()), {})) or {}
        for device, rows in (part.get("performance_metrics") or {}).items():
            for runtime, (way, release) in _WAYS.items():
                row = rows.get(runtime) or {}
                tools = ((part.get("universal_assets") or {}).get(runtime) or {}).get("tool_versions") or {}
                layers = row.get("layer_counts") or {}
                whole = row.get("primary_compute_unit") == "NPU" and layers.get("npu") == layers.get("total")
                made_by = str((row.get("tool_versions") or tools).get("qairt", ""))
                took = row.get("inference_time_milliseconds")
                if whole and took and device in _CHIPS and made_by.startswith(f"{release}."):
                    times[_CHIPS[device]][precision][way] = float(f"{took:.3g}")
    return times
