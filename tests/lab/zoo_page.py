"""``PYTHONPATH=tests:tests/support python tests/lab/zoo_page.py``: ``evidence/zoo.md`` from what is recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.records import Short, archives, exceptions, info, recorded
from zoo.rows import DEVICE, SETTINGS, Row

INTRODUCTION = """# The zoo

{count} architectures as their authors wrote them, small and with random weights, exported by torch, quantized by real
AIMET (aimet-onnx 2.42.0, `htp_v73`, minimum and maximum of 24 samples), and then packaged for {device} by one command
each, with no option that a new user would not give. Look here first for the model that is most like yours.

{good} of {count} are as they should be in all six columns: packaged by `qnn-htp` for 2.33 and 2.44, compiled wholly by
`ort-qnn` with the compiler of QAIRT 2.51 (no node on the CPU), in float16 and in W8A16, and W8A16 on the emulator at
least as near to the float model as AIMET's own simulation, minus 1 dB. What is not, stands below the tables with its
reason.

* **yes**: packaged. **no** with codes: refused (`deploykit explain CODE` says what they mean).
* **dB**: signal to noise of the worst output against the float model on the CPU, over four samples that were not used
  for calibration; the device's side ran on the compiler's own emulator. In brackets the same output in AIMET's
  simulation. Where that is far below, a mask of -3.4e38 swamps a grid of the file; deploykit replaces such masks.
  % of rows with a partner: for detections behind a TopK, which have no fixed place.
* **CPU s**: processor seconds for `qnn-htp` (four packages) and for `ort-qnn` (two, compiled and run), on one core.

The models are in `tests/data/zoo`, the scripts that made them in `tests/lab/exporting`, what is asked of this table in
`tests/zoo`. No weight is trained: the figures say what packaging does to an architecture, not how good a model is.
"""


def page(models: Mapping[str, Mapping[str, Any]], rows: Sequence[Row], short: Iterable[Short], device: str) -> str:
    """``models`` are what the recorded files say of themselves, by name."""
    good = sum(all(row.good for row in rows if row.model == name) for name in models)
    text = [INTRODUCTION.format(count=len(models), good=good, device=device.upper())]
    columns = [setting.name.replace("w8a16", "W8A16") for setting in SETTINGS]
    head = ["model", "export", *columns, "CPU s", "as it should be"]
    for group in sorted({str(told["group"]) for told in models.values()}):
        text.append(f"## {group[0].upper()}{group[1:]}\n")
        named = [name for name, told in models.items() if told["group"] == group]
        text.append(_table(head, [_line(models[name], [row for row in rows if row.model == name]) for name in named]))
    if short:
        text.append("## What is not as it should be\n")
        text.append(_table(["model", "where", "should be", "why it is not"], [_why(one) for one in short]))
    return "\n".join(text)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    every = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in every) + "\n"


def _line(info: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    steps = f"{info['exporter']} {info['opset']}{', simplified' if info['simplified'] else ''}, {info['nodes']} nodes"
    seconds = [sum(row.seconds for row in rows if row.setting.startswith(name)) for name in ("qnn-htp", "ort-qnn")]
    cost = " + ".join(f"{value:.0f}" if value >= 1 else "<1" for value in seconds)
    good = "yes" if all(row.good for row in rows) else "**no**"
    return [str(info["name"]), steps, *(_cell(row) for row in rows), cost, good]


def _cell(row: Row) -> str:
    measured = _measured(row)
    if row.packaged:
        return "yes" + (", partly" if row.wholly is False else "") + measured
    codes = sorted({re.split(r"\W", text, maxsplit=1)[0] for text in row.blocking})
    return f"**no**: {', '.join(codes)}{measured}"


def _measured(row: Row) -> str:
    if not row.decibels:
        return ""
    worst = min(row.decibels, key=lambda name: row.decibels[name] - row.aimet.get(name, 0))
    unit = "%" if worst.endswith("%") else " dB"
    beside = f" ({row.aimet[worst]:.1f})" if worst in row.aimet else ""
    return f", {row.decibels[worst]:.1f}{unit}{beside}"


def _why(one: Short) -> list[str]:
    return [one.model, ", ".join(one.settings).replace("w8a16", "W8A16"), one.should, one.reason]


if __name__ == "__main__":
    models = {archive.stem: info(archive) for archive in archives()}
    text = page(models, recorded(), exceptions(), DEVICE)
    (Path(__file__).parent / "evidence" / "zoo.md").write_text(text, "utf-8")
