"""A wide net: what is told about very many inputs, in short; each question is a test.

    ! DK010 fold-batchnorm 2.51.0                      rules, rewrites and releases told of: new ones change nothing
    = a: check m.onnx --target sm8650 --sdk 2.33       a way; every model is asked about some of them
    # (float[2] x) => (float[2] y) { ... } with x 0..1 a graph as in graphs.txt, or files of a model and of encodings
        fused~1f02 bounds~03aa                         questions of other rooms, with a sum of each answer
        a legacy-complete~8449: 0 DK010 y ~1f02        ways, with a sum of what would be done; status, findings
    # encodings show $DATA/a.encodings ;; ls p         command lines in one empty folder; ``sub PATTERN NEW FROM TO``
                                                       writes a changed file. What begins with ``grown`` was made by
                                                       tests/lab/candidates.py, which says too what is
                                                       quick: tells most faults for its time

Who reads a difference is shown what the new sums are of. After a change that is wanted: ``DEPLOYKIT_WRITE_GOLDEN=1``
with ``-n 0 -m ""``, then read the difference.
"""

import contextlib
import io
import json
import os
import re
import shlex
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from functools import cache, partial
from pathlib import Path
from typing import Any

import onnx
import pytest

from deploykit.cli import cli
from deploykit.cli.frame import run
from deploykit.encodings.formats.aimet import read_encodings, write_encodings
from deploykit.model.load import load_model
from deploykit.rewrites.contract import transform_names
from deploykit_qualcomm.tables import tables
from graph_questions import Asked, entries, graph
from rule_cases import module_at
from sums import flat, sum_of

DATA = Path(__file__).parents[1] / "data"
TABLES = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.told"))}
ASKED = {
    "accuracy": "inputs judged kinds quantized",
    "model": "blocks bounds choices emptied fused norms parameters patterns pruned shapes sizes tensors",
    "encodings": "carried completed coverage ends float-set grids halves inserted lpbq reach",
}


def blocks(path: Path) -> list[str]:
    """What stands before the first, then each question with its answers."""
    return re.split(r"^# ", path.read_text("utf-8"), flags=re.MULTILINE)


CASES = [
    pytest.param(name, number, id=f"{name} {part[:70]}", marks=[] if "quick" in name else [pytest.mark.heavy])
    for name, path in TABLES.items()
    for number, part in enumerate(blocks(path))
    if number
]
DECIMAL = re.compile(r"-?\b\d+\.\d*(?:e[-+]?\d+)?|-?\b\d+e-?\d+\b")
SUMS: dict[str, str] = {}


def cut(text: str, most: int = 0) -> str:
    """Its beginning and a sum of it; without decimals where it tells simulated numbers: processors round otherwise."""
    text = re.sub(r"[0-9a-f]{64}|\bulps\W+[\d.e+-]+", "", text)  # of a package with simulated numbers too
    simulated = re.search("dB|db|sqnr", text)
    text = DECIMAL.sub(lambda one: "." if simulated else f"{float(one[0]):.3g}", text)
    total = sum_of(text)
    SUMS[total] = text
    return text if len(text) <= most else " ".join(text[:most].split()) + total


def typed(line: str, known: Set[str]) -> tuple[int, Any]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        status = run(cli, [*shlex.split(os.path.expandvars(line)), "--json"])
    told = json.loads(said.getvalue().replace(str(DATA), "$DATA").replace(str(Path.cwd().parent), "") or "{}")
    told["findings"] = [one for one in told.get("findings", ()) if one["code"] in known]
    told["chapters"] = [one for one in told.get("chapters", ()) if not re.search(r"(DK|QNN|ORT|VAI)\d{3}", str(one))]
    return status, told


def decided(line: str, known: Set[str]) -> tuple[str, str]:
    """What is found (``-``: it is handled), and what is decided and would be done."""
    status, said = typed(line, known)
    if "error" in said:
        return cut(f"{status} {flat(said['error'])}", 60), ""
    names, told = defaultdict[str, list[str]](list), ""
    for one in said["findings"]:
        sign = "-" if one["handled"] else "!" if one["severity"] == "error" else ""
        names[one["code"] + sign].append(one["subject"]["name"])
        said_by_us = re.sub(r"\d+ : [A-Z_]+ : .*", "", f"{one['message']} {one['hint']} {one['evidence']}")
        words = re.findall(r"\S*[\d_/']\S*", said_by_us)
        told += f"{one['code']} {one['subject']} {words} "
    found = [f"{code} {one[0][-20:]}{f' x{len(one)}' if one[1:] else ''}" for code, one in names.items()]
    kept = [said[key] for key in ("precision", "steps", "configs")]
    kept += [[one["id"] for one in said[key]] for key in ("rejected", "alternatives")]
    kept.append([one["id"] + "!" * one["won"] + "?" * (one["right"] is None) for one in said["candidates"]])
    return " ".join([str(status), *found, cut(told)]), (said["route"] or {}).get("id", "none") + cut(flat(kept))


@cache
def questions() -> Mapping[str, Any]:
    every = {room: module_at(f"{room}/test_questions.py") for room in (*ASKED, "rewrites")}
    found = {name: every[room].QUESTIONS[name] for room, names in ASKED.items() for name in names.split()}
    return found | {name: partial(every["rewrites"].rewritten, name) for name in transform_names()}


def of_model(header: str, known: Set[str], ways: Mapping[str, str]) -> Iterator[str]:
    model, _, given = os.path.expandvars(header).partition(" with ")
    packed, named = header.startswith("$"), given.endswith(".encodings")
    listed = read_encodings(Path(given)) if named else entries(given)
    asked = Asked(load_model(Path(model)) if packed else graph(model), listed, ())
    sums = list[str]()
    for name, question in questions().items():
        if name in known or name not in transform_names():
            try:
                told = "; ".join(question(asked))
            except Exception as error:
                told = type(error).__name__
            sums += [] if told.startswith("no") or not told else [name + cut(told)]
    yield " ".join(sums)
    onnx.save(asked.proto, "m.onnx")
    Path("e.json").write_text(write_encodings(asked.encodings, "1.0.0"), "utf-8")
    parts = defaultdict[str, list[str]](list)
    for name, line in [*ways.items()][len(header) % 3 :: 7 if packed else 3]:
        found, route = decided(line, known)
        parts[found].append(f"{name} {route}".strip())
    yield from (f"{', '.join(said)}: {found}" for found, said in parts.items())


def of_commands(header: str, known: Set[str]) -> Iterator[str]:
    for line in header.split(" ;; "):
        if line.startswith("ls "):
            files = [path for path in sorted(Path(line[3:]).rglob("*")) if path.suffix in (".json", ".py", ".sh")]
            told = [path.suffix == ".json" and path.name != "manifest.json" for path in files]
            yield " ".join(one.name + cut(one.read_text("utf-8")) * told for one, told in zip(files, told, strict=True))
        elif line.startswith("sub "):
            pattern, new, old, to = shlex.split(os.path.expandvars(line))[1:]
            Path(to).write_text(re.sub(pattern, new, Path(old).read_text("utf-8")), "utf-8")
        else:
            status, said = typed(line, known)
            yield f"{status} {cut(flat(said), 140)}"


@pytest.mark.parametrize(("name", "number"), CASES)
def test_what_is_told(name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, place in {"DATA": DATA, "ZOO": tmp_path, "DEPLOYKIT_TOOLCHAINS": tmp_path / "none"}.items():
        monkeypatch.setenv(variable, str(place))
    parts = blocks(TABLES[name])
    head, (header, *was) = parts[0], (line.strip() for line in parts[number].strip().splitlines())
    for one in set(re.findall(r"\$ZOO/(\w+)/", header)):
        zipfile.ZipFile(DATA / "zoo" / f"{one}.zip").extractall(tmp_path / one)
    known, ways = set(head.partition("\n")[0].split()), dict(re.findall(r"^= (\w): (.*)", head, flags=re.MULTILINE))
    for releases in ("versions", "with_rows"):
        monkeypatch.setitem(vars(tables()), releases, tuple(one for one in getattr(tables(), releases) if one in known))
    (tmp_path / "at").mkdir()
    monkeypatch.chdir(tmp_path / "at")
    told = of_commands(header, known) if header[0].islower() else of_model(header, known, ways)
    now = [line.strip() or "nothing" for line in told]
    if os.environ.get("DEPLOYKIT_WRITE_GOLDEN"):
        parts[number] = "\n    ".join([header, *now]) + "\n"
        TABLES[name].write_text("# ".join(parts), "utf-8")
    bad = [
        f"{sign} {line}" for sign, some, others in (("-", was, now), ("+", now, was)) for line in {*some} - {*others}
    ]
    new = set(re.findall("~....", " ".join(now))) - set(re.findall("~....", " ".join(was)))
    bad += [f"    {total}: {SUMS[total][:600]}" for total in sorted(new & SUMS.keys())]
    assert not bad, "\n".join(bad[:99])
