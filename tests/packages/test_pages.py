"""The report in a real browser: it lays out, fits a narrow window, and names that strangers chose stay text."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from deploykit.accuracy.latency import Estimate, TraceEvent
from deploykit.backend.demo_model import write_demo
from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.report.charts import timeline
from deploykit.report.rendering import render

CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
MLP = Path(__file__).parents[1] / "data" / "aimet" / "mlp" / "model.onnx"
HOSTILE = "<img src=x onerror=document.body.dataset.owned=1>"
PROBE = """
<script>
const all = query => [...document.querySelectorAll(query)];
const sized = box => box.width > 0 && box.height > 0;
const drawn = element => element.checkVisibility() && sized(element.getBoundingClientRect());
const atFirst = () => all(".finding").filter(drawn).length;
const unfolded = () => {
  all("details").forEach(folded => folded.open = true);
  all(".picks input").filter(box => !box.checked).forEach(box => box.click());
  return all(".finding, .finding li").filter(drawn).length;
};
const filtered = words => {
  const field = all(".filter")[0];
  if (!field) return null;
  field.value = words;
  field.dispatchEvent(new Event("input"));
  const told = [all(".finding").filter(drawn).length, all(".hits")[0].textContent];
  field.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
  return [...told, field.value];
};
const typed = key => {
  dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
  return document.activeElement.className;
};
const told = keys => {
  const lanes = all(".lanes")[0];
  if (!lanes) return null;
  keys.forEach(key => lanes.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })));
  return [all(".lane rect").length, all(".lane rect.on").length, all(".told")[0].textContent];
};
setTimeout(() => document.title = JSON.stringify({
  heading: all("h1")[0].textContent,
  atFirst: atFirst(),
  findings: unfolded(),
  points: all("circle").filter(drawn).length,
  strip: all(".strip span").filter(drawn).length,
  ranges: all(".range .eight").filter(drawn).length,
  verdict: (all(".verdict .word")[0] || {}).textContent,
  slash: typed("/"),
  filtered: filtered("dk2"),
  told: told(["ArrowRight", "ArrowDown"]),
  heat: all(".heat span").length,
  copies: all(".copied button").length,
  images: all("img, iframe, object, link, script[src]").length,
  hostile: document.body.textContent.split("<img src=x").length - 1,
  owned: document.body.dataset.owned || "",
  overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
}), 200);
</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The demo, packaged with a tensor whose name is markup; its manifest beside it."""
    folder = tmp_path_factory.mktemp("report")
    model_path, encodings_path = write_demo(folder)
    model = onnx.load(model_path)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [HOSTILE if name == "logit" else name for name in names]
    for value in model.graph.value_info:
        value.name = HOSTILE if value.name == "logit" else value.name
    onnx.save(model, model_path)
    encodings_path.write_text(encodings_path.read_text().replace('"logit"', json.dumps(HOSTILE)))
    words = ["--encodings", str(encodings_path), "--target", "sm8650", "--sdk", "2.37", "-o", str(folder / "out")]
    assert run(cli, ["package", str(model_path), *words, "--quiet"]) == 0
    return folder / "out" / "report.html", json.loads((folder / "out" / "manifest.json").read_text())


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_report_in_a_browser(page: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    report, manifest = page
    probed = tmp_path / "report.html"
    probed.write_text(report.read_text() + PROBE)
    seen, complaints = look_at(probed, tmp_path / "profile")
    assert complaints == []
    assert seen["heading"] == "detector.onnx for SM8650"
    still_open = [one for one in manifest["findings"] if one["handled"] is None and one["severity"] != "info"]
    asking = {(one["code"], one["severity"]) for one in still_open}
    assert seen["atFirst"] == len(asking), "what is handled, and what is only to know, is folded away"
    assert seen["findings"] == len(manifest["findings"]) and seen["strip"] > 1
    assert seen["ranges"] > 5 and seen["verdict"] == "Not judged"
    rows = {(one["code"], one["handled"] is None) for one in manifest["findings"]}
    left = sum(code.startswith("DK2") for code, _ in rows)
    assert (seen["slash"], seen["filtered"]) == ("filter", [left, f"{left} of {len(rows)}", ""])
    assert seen["copies"] > len(manifest["steps"]) and seen["hostile"] > 0
    assert (seen["images"], seen["owned"], seen["overflow"]) == (0, "", 0)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_story_of_a_ladder_in_a_browser(tmp_path: Path) -> None:
    rows = np.random.default_rng(5).normal(size=(6, 1, 8, 64)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", hidden_states=rows)
    asked = ["accuracy", "ladder", str(MLP), "--data", str(tmp_path / "rows.npz"), "--goal", "sqnr>=45", "--quiet"]
    assert run(cli, [*asked, "--report", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text("utf-8")
    (tmp_path / "probed.html").write_text(text + PROBE)
    seen, complaints = look_at(tmp_path / "probed.html", tmp_path / "profile")
    assert complaints == []
    assert seen["points"] == text.count("<circle") > 5
    assert (seen["images"], seen["overflow"]) == (0, 0)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_kernels_are_told_by_the_keyboard(tmp_path: Path) -> None:
    events = [TraceEvent("</rect><img>", "HVX 1", 0, 60, "vector"), TraceEvent("conv", "HVX 1", 60, 40, "vector")]
    events.append(TraceEvent("conv", "HVX 2", 55, 45, "vector"))
    estimate = Estimate(time_us=50.0, lower_us=40.0, upper_us=60.0, cycles=100, events=tuple(events))
    frame = '{% extends "page.html.j2" %}{% import "parts.html.j2" as parts %}{% block body %}{{ parts.lanes(line) }}'
    (tmp_path / "lanes.html.j2").write_text(frame + "<h1>x</h1>{% endblock %}")
    page = render("lanes.html.j2", {"line": timeline(estimate)}, templates=tmp_path)
    (tmp_path / "page.html").write_text(page + PROBE)
    seen, complaints = look_at(tmp_path / "page.html", tmp_path / "profile")
    assert complaints == []
    assert seen["told"] == [3, 2, "conv\n22 us at 28 us"], "right to the first kernel, down to the one nearest to it"
    assert (seen["images"], seen["overflow"]) == (0, 0)


def look_at(page: Path, profile: Path) -> tuple[dict[str, Any], list[str]]:
    """What the probe measured in a narrow window, and what the browser's console said."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]
    places = [
        "--virtual-time-budget=2000",
        f"--user-data-dir={profile}",
        "--window-size=500,900",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(
        [str(CHROMIUM), *options, *places], capture_output=True, encoding="utf-8", timeout=120, check=True
    )
    found = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert found is not None
    return json.loads(found[1].replace("&amp;", "&")), [row for row in done.stderr.splitlines() if "CONSOLE" in row]
