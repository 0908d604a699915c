"""New questions for the wide net: changes of those it has, kept where they tell apart what no other does.

    python tests/lab/candidates.py graphs 1 1200        # a seed, and seconds; kept beside the cache of pytest
    python tests/lab/candidates.py commands 1 1200
    python tests/lab/candidates.py write 250            # the best that were kept, into tests/wide: so many seconds
    python tests/lab/candidates.py tiers 30             # the first tier anew: what tells most for so many seconds

`told_apart` says what is told apart; the wide net has to have run under it before. A question is dropped where it takes
long, starts a process, ends in a defect (these are kept apart) or is answered otherwise the second time.
"""

from __future__ import annotations

import heapq
import importlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from told_apart import KEPT, ROOT, Watch, instrumented, kept

WIDE, DATA = ROOT / "tests" / "wide", ROOT / "tests" / "data"
POOLS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
MOST_SECONDS = 2.0
QUICK_SECONDS = 5.0
"""Of processor, for what `write` adds to the first tier."""
WORTH = (1.0, 0.5, 0.25, 0.1)
"""Of the first question that tells a fault apart, of the second, ...: one alone may tell it and print the same."""
OPERATOR = r"(?<== )(?:com\.microsoft\.)?[A-Z]\w+(?= ?[<(])"
NUMBER = r"(?<=[{ ,\[/])-?\d+(?:\.\d+)?(?=[,}\]/ ])"
ENTRY = r"(?<= )\w+(?::\w+)? -?[\d./]+(?:\.\.-?[\d.]+)?(?: symmetric)?(?=,|$)"


class Dropped(BaseException):
    """A question that the net cannot have."""


def sources() -> list[str]:
    """Every question that stands."""
    texts = [path.read_text("utf-8") for path in sorted(WIDE.glob("*.told"))]
    return [part.splitlines()[0].strip() for text in texts for part in re.split("^# ", text, flags=re.MULTILINE)[1:]]


def _promising(told: Any, full: Any, single: dict[str, tuple[float, bytes]]) -> dict[str, float]:
    """By the first words of a question: how much it alone, or with few others, comes to what is told apart in part."""
    seen = {name: np.frombuffer(zlib.decompress(masks), np.uint8) > 0 for name, (_, masks) in single.items()}
    many = np.maximum(sum(seen.values(), np.zeros(len(told), np.int64)), 1)
    worth = ((told > 0) & (told != full)) / many
    return {re.sub(r"^\S*\[\w+ ", "", name)[:60]: float((masks * worth).sum()) for name, masks in seen.items()}


def _kept_before() -> list[tuple[str, list[str], float, list[list[int]]]]:
    texts = (path.read_text("utf-8") for path in sorted(KEPT.glob("*.jsonl")))
    return [json.loads(line) for text in texts for line in text.splitlines()]


def _parent(chance: random.Random, parents: Sequence[str], promising: dict[str, float]) -> str:
    """Often one of the last that were kept, else rather one that comes where others do not."""
    if chance.random() < 0.3:
        return chance.choice(parents[-60:])
    return chance.choices(parents, [promising.get(one[:60], 1.0) + 0.1 for one in parents])[0]


def _made(header: str) -> list[str]:
    return re.findall(r"[{)] (\w+) = ", header) or ["x"]


class Graphs:
    """Graphs with entries, each with one to four changes."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.promising: dict[str, float] = {}
        self.parents = [one for one in sources() if one[0] in "(123456789" and len(one) < 1500]
        text = " ".join(self.parents)
        self.ops = sorted(set(re.findall(r"= ((?:com\.microsoft\.)?[A-Z]\w+) ?[<(]", text)))
        self.given = sorted(set(re.findall(r"(\w+ = (?:\[[-\d., ]*\]|-?[\d.]+|\"\w+\"))", text)))
        self.changes = (*self._of_nodes(), *self._of_values(), *self._of_entries(), self._crossed)

    def make(self) -> str:
        header = _parent(self.chance, self.parents, self.promising)
        for _ in range(self.chance.choice((1, 1, 2, 2, 3, 4))):
            header = self.chance.choice(self.changes)(header)
        return header

    def _pick(self, name: str) -> str:
        return self.chance.choice(str(POOLS[name]).split())

    def _of_nodes(self) -> Sequence[Callable[[str], str]]:
        """Other operators, attributes, inputs, outputs, names; a node more."""
        one, pick = self._one, self.chance.choice
        return (
            lambda h: one(OPERATOR, lambda _: pick(self.ops), h),
            lambda h: one(OPERATOR, lambda _: pick(self.ops), h),
            lambda h: one(r"\w+ = (?:\[[-\d., ]*\]|-?[\d.]+)(?=[,>])", lambda _: pick(self.given), h),
            lambda h: one(r"(?<=[A-Z]\w) ?<[^<>{]*> ?(?=\()", lambda _: f" <{pick(self.given)}> ", h),
            lambda h: one(r"(?<=[a-z]) (?=\()", lambda _: f" <{pick(self.given)}> ", h),
            lambda h: one(r"\b\w+(?=[,)])", lambda _: pick(_made(h)), h),
            lambda h: one(r" \[\w+\] (?=\w+ =)", lambda _: " ", h),
            lambda h: one(r"(?<=\) =>) \((.*?)\)", lambda m: f" ({m[1]}, {pick(_made(h))})", h),
            lambda h: one(r"\{ (?=\w+ =)", lambda _: f"{{ nn = {pick(self.ops)} ({pick(_made(h))}) ", h),
            lambda h: one(
                r" \}(?= with|$)", lambda _: f" nz = {pick(self.ops)} ({pick(_made(h))}, {pick(_made(h))}) }}", h
            ),
        )

    def _of_values(self) -> Sequence[Callable[[str], str]]:
        """Other numbers, types, shapes; another operator set."""
        one, pick = self._one, self._pick
        types = "|".join(POOLS["types"].split())
        return (
            lambda h: one(NUMBER, lambda _: pick("numbers"), h),
            lambda h: one(NUMBER, self._near, h),
            lambda h: one(rf"\b(?:{types})\b(?=[\[ ])", lambda _: pick("types"), h),
            lambda h: one(r"(?<=[\[,])\d+(?=[,\]])", lambda _: pick("sizes"), h),
            lambda h: one(r"(?<=t)\[[\w,]+\](?= \w)", lambda _: pick("shapes"), h),
            lambda h: f"{self.chance.randint(8, 23)} {re.sub('^[0-9]+ ', '', h)}",
        )

    def _of_entries(self) -> Sequence[Callable[[str], str]]:
        """Other grids, axes, ranges, signs; an entry less; none."""
        one, pick = self._one, self._pick
        signs = ("", " parameter", " zero=3", " zero=-128", " symmetric parameter")
        return (
            lambda h: one(ENTRY, self._entry, h),
            lambda h: one(ENTRY, self._entry, h),
            lambda h: one(r"(?<= )(\w+):\w+(?:@\d)?(?= )", lambda m: f"{m[1]}:{pick('grids')}", h),
            lambda h: one(r"(?<= )(\w+:u?int\d+)(?:@\d)?(?= )", lambda m: f"{m[1]}@{self.chance.choice('0123?')}", h),
            lambda h: one(f", {ENTRY}", lambda _: "", h),
            lambda h: one(r" symmetric", lambda _: self.chance.choice(signs), h),
            lambda h: one(r" with .*", lambda _: "", h),
        )

    def _one(self, pattern: str, new: Callable[[re.Match[str]], str], header: str) -> str:
        found = [*re.finditer(pattern, header)]
        if not found:
            return header
        at = self.chance.choice(found)
        return header[: at.start()] + new(at) + header[at.end() :]

    def _near(self, at: re.Match[str]) -> str:
        value = float(at[0])
        changed = self.chance.choice((value + 1, value - 1, 2 * value, value / 2, -value))
        return f"{changed:.10g}" if "." in at[0] or changed != int(changed) else str(int(changed))

    def _entry(self, at: re.Match[str]) -> str:
        name, ends = re.split("[ :]", at[0])[0], self.chance.choices(POOLS["ends"].split(), k=2)
        low, high = sorted(ends, key=float)
        scale = self.chance.choice(("0.02 symmetric", "1e-9", "0.5", "1e30 zero=3"))
        kind = self._pick("grids")
        ways = (
            f"{name}:{kind} {low}..{high}",
            f"{name}:{kind} {scale}",
            f"{name}:{self._pick('casts')}",
            f"{name} {low}..{high}",
        )
        return self.chance.choice(ways)

    def _crossed(self, header: str) -> str:
        """With the entries of another one, or with its nodes behind the own."""
        other = self.chance.choice(self.parents)
        if self.chance.random() < 0.5:
            return header.partition(" with ")[0] + other[len(other.partition(" with ")[0]) :]
        body = re.search(r"(?:>|\)) \{ (.*) \}(?: with|$)", other)
        if body is None or "{" in body[1]:
            return header
        renamed = re.sub(r"\b([a-z]\w?)\b(?= =|[,)])", r"b\1", body[1])
        renamed = re.sub(r"\bbx\b", self.chance.choice(_made(header)), renamed)
        return self._one(r" \}(?= with|$)", lambda _: f" {renamed} }}", header)


class Commands:
    """Command lines: other values of options, other files, files that were changed, logs."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.promising: dict[str, float] = {}
        self.parents = [one for one in sources() if one[0].islower() and "$ZOO" not in one]
        self.options: dict[str, set[str]] = defaultdict(set)
        """Of each command; what takes a value ends with a blank."""
        self.values: dict[str, set[str]] = defaultdict(set)
        self.ways = (self._varied, self._edited, self._logged, self._damaged, self._asked, self._many)
        text = "\n".join(self.parents)
        self.files = sorted(set(re.findall(r"\$DATA/\S+", text)))
        self._look_up(text)
        self.words, self.logs = self._words(), self._logs()

    def make(self) -> str:
        return self.chance.choices(self.ways, (6, 3, 3, 3, 2, 1))[0]()

    def _look_up(self, text: str) -> None:
        """Options and their values: as the commands say, as they stand in questions, as the tables have them."""
        from click import Choice, Context

        from deploykit.cli import cli
        from deploykit.rewrites.contract import transform_names

        def walk(command: Any, path: str) -> None:
            for name in command.list_commands(Context(command)) if hasattr(command, "list_commands") else []:
                walk(command.get_command(Context(command), name), f"{path} {name}".strip())
            for one in command.params:
                for option in (*one.opts, *one.secondary_opts):
                    if option.startswith("--") and option not in POOLS["never"].split():
                        self.options[path].add(
                            option if getattr(one, "is_flag", False) or getattr(one, "count", False) else f"{option} "
                        )
                        self.values[option] |= set(one.type.choices if isinstance(one.type, Choice) else ())

        walk(cli, "")
        for option, value in re.findall(r"(--[a-z-]+) ([^-\s][^\s;]*)", text):
            self.values[option].add(value)
        for option, given in POOLS["options"].items():
            self.values[option] |= set(given.split())
        tables = (ROOT / "backends").glob("*/data/*/*.toml")
        for path in tables:
            if path.parent.name in ("devices", "sdks"):
                self.values["--target" if path.parent.name == "devices" else "--sdk"].add(path.stem.split("-")[-1])
        self.values["--rewrite"] |= set(transform_names())
        more = [*POOLS["flags"]["check"].split(), *(f"{one} " for one in POOLS["flags"]["values"].split())]
        for command in ("check", "package"):
            self.options[command] |= set(more)

    def _words(self) -> list[str]:
        """Names that the tables have."""
        small = (path for path in (ROOT / "backends").glob("*/data/**/*.toml") if path.stat().st_size < 300_000)
        named = re.compile(r'^(?:id|name|key|flag) = "([^"\s]+)"', re.MULTILINE)
        return sorted({word for path in small for word in named.findall(path.read_text("utf-8"))})

    def _logs(self) -> list[str]:
        """Lines that real tools wrote, with nobody's home in them, and words that the tables know."""
        texts = [path.read_text("utf-8") for path in sorted((DATA / "logs").glob("*.txt"))]
        lines = [line.split("\t")[-1] for text in texts for line in text.splitlines() if line[:1] not in ("#", "=")]
        for path in sorted(path for path in ROOT.glob("*/**/known_errors/*.toml") if "tests" not in path.parts):
            for row in tomllib.loads(path.read_text("utf-8")).get("error", []):
                for key in ("match", "general", "weak", "mild", "follows", "unless"):
                    lines += [str(one).replace(" && ", " ").replace("…", "x7") for one in row.get(key, [])]
        return [re.sub(r"/home\b", "/data", line) for line in lines if 4 < len(line) < 400]

    def _filled(self, text: str) -> str:
        """With a value for every option in braces."""
        return re.sub(r"\{(--[\w-]+)\}", lambda at: self._value_of(at[1]), text)

    def _value_of(self, option: str) -> str:
        values = self.values.get(option)
        if option in ("--model", "--float-model", "--encodings", "--data", "--calibration", "--references"):
            suffix: str = "onnx" if "model" in option else "encodings" if option == "--encodings" else ""
            return str(self.chance.choice([one for one in self.files if one.endswith(suffix)]))
        return self.chance.choice(sorted(values)) if values else "x.json"

    def _varied(self) -> str:
        header = _parent(self.chance, self.parents, self.promising)
        lines = header.split(" ;; ")
        for _ in range(self.chance.choice((1, 1, 2, 3))):
            at = self.chance.choice([0, 0, *range(len(lines))])
            known = [one for one in self.options if one and lines[at].startswith(f"{one} ")]
            if known:
                lines[at] = " ".join(self._other(max(known, key=len), lines[at].split(" ")))
        return " ;; ".join(lines)

    def _other(self, command: str, words: list[str]) -> list[str]:
        """One option or file otherwise, an option more or less."""
        how, pick = self.chance.random(), self.chance.choice
        given = [n for n, one in enumerate(words[:-1]) if one.startswith("--") and not words[n + 1].startswith("-")]
        files = [n for n, one in enumerate(words) if one.startswith("$DATA")]
        if how < 0.35 and given:
            n = pick(given)
            words[n + 1] = self._value_of(words[n])
        elif how < 0.75:
            option = pick(sorted(self.options[command]))
            words += [option.strip(), self._value_of(option.strip())] if option.endswith(" ") else [option]
        elif how < 0.9 and files:
            n = pick(files)
            end = words[n].rpartition(".")[2]
            words[n] = pick([one for one in self.files if one.rpartition(".")[2] == end] or [words[n]])
        elif given:
            n = pick(given)
            del words[n : n + 2]
        return words

    def _sub(self, edits: Sequence[str], news: Sequence[str], old: str, new: str) -> str:
        """A command that changes a file: everywhere, or the first place behind some characters."""
        edit, text = self.chance.choice(edits), self.chance.choice(news)
        key = re.match(r'"\w+": \*', edit)
        text = f"{key[0][:-1]}{text}" + "," * edit.endswith(",") if key else text
        if self.chance.random() < 0.6:
            edit, text = rf"(?s)\A(.{{{self.chance.choice((0, 200, 1000, 2500, 6000))}}}.*?)(?:{edit})", rf"\g<1>{text}"
        return f"sub '{edit}' '{text}' {old} {new}"

    def _edited(self) -> str:
        """A file of encodings with some places changed, then what is said about it."""
        file = self.chance.choice([one for one in self.files if one.endswith(".encodings")])
        pool, folder = POOLS["encodings"], file.rpartition("/")[0]
        model = f"{folder}/model.onnx" if "derived" not in file else re.sub(r"[-.].*", ".onnx", file)
        subs = [self._sub(pool["edits"], pool["news"], file, "e.encodings")]
        while self.chance.random() < 0.4:
            subs.append(self._sub(pool["edits"], pool["news"], "e.encodings", "e.encodings"))
        then = " ;; ".join(self.chance.sample(pool["asked"], 3)).replace("{model}", model).replace("{file}", file)
        version = self.chance.choice(("0.6.1", "1.0.0", "2.0.0"))
        return self._filled(" ;; ".join([*subs, then.replace("{version}", version)]))

    def _logged(self) -> str:
        """A log of some lines, then what is known of it."""
        pool, pick = POOLS["logs"], self.chance.choice
        lines = self.chance.choices(self.logs, k=pick((1, 1, 2, 3, 6)))
        made = [pick(pool["fronts"]) + line[: pick((400, 400, 60))] for line in lines]
        if pick((True, False, False)):
            made = [re.sub(r"\d+", lambda _: pick(("0", "7", "65536")), one) for one in made]
        text = re.sub(r"[\\'$;]", "", "\n".join(made)) + pick(pool["ends"]) + "\n"
        return self._filled(f"{_written(text, 'x.log')} ;; {pick(pool['asked'])}")

    def _damaged(self) -> str:
        """A package of which a file was changed."""
        pool, pick = POOLS["packages"], self.chance.choice
        made = pick([one for one in self.parents if one.startswith("package ") and " -o p" in one]).split(" ;; ")[0]
        file = f"p/{pick(pool['files'])}"
        asked = " ;; ".join(self.chance.sample(pool["asked"], 2)).replace("{made}", made)
        return f"{made} ;; {self._sub(pool['edits'], pool['news'], file, file)} ;; {asked}"

    def _asked(self) -> str:
        kind = self.chance.choice(("compat", "compat", "others", "binary"))
        word, op = self.chance.choice(self.words), self.chance.choice(POOLS["ops"].split())
        line = self.chance.choice(POOLS["words"][kind]).replace("{word}", word).replace("{op}", op)
        asked = ("--sdk", "--target", "--arch", "--tool", "--backend", "--type")
        options = self.chance.sample(asked, self.chance.choice((0, 1, 1, 2))) if kind == "compat" else []
        return self._filled(line + "".join(f" {one} {{{one}}}" for one in options))

    def _many(self) -> str:
        """A file of models and targets."""
        pool, pick = POOLS["matrix"], self.chance.choice
        model = pick([one for one in self.files if one.endswith("/model.onnx")])
        encodings = pick([one for one in self.files if one.startswith(model.rpartition("/")[0])])
        rows = self.chance.sample(pool["rows"], pick((1, 2, 3)))
        text = "\n".join([*rows, '[[model]]\nid = "m"', f'path = "{model}"', pick(pool["more"])])
        written = _written(self._filled(text.replace("{encodings}", encodings)), "deploykit.toml")
        return f"{written} ;; matrix deploykit.toml --dry-run{pick(pool['ends'])}"


def _written(text: str, name: str) -> str:
    """A command that writes a file."""
    return "sub '\\A' '{}' /dev/null {}".format(text.replace("\n", "\\n"), name)


@contextmanager
def _alone() -> Iterator[None]:
    """An empty folder, no processes, a bound on time."""
    folder, start = Path(tempfile.mkdtemp()), subprocess.Popen.__init__

    def stop(*_: Any, **__: Any) -> NoReturn:
        raise Dropped

    subprocess.Popen.__init__ = stop  # type: ignore[method-assign]
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(15)
    (folder / "at").mkdir()
    os.environ |= {"DATA": str(DATA), "ZOO": str(folder), "DEPLOYKIT_TOOLCHAINS": str(folder / "none")}
    os.chdir(folder / "at")
    try:
        yield
    finally:
        signal.alarm(0)
        subprocess.Popen.__init__ = start  # type: ignore[method-assign]
        os.chdir(ROOT)
        shutil.rmtree(folder, ignore_errors=True)


class Grower:
    """Asks candidates and keeps those that tell apart what was not."""

    def __init__(self, kind: str, seed: int) -> None:
        self.watch = Watch()
        self.watch.install()
        warnings.simplefilter("error")  # as the tests have it
        os.environ["DEPLOYKIT_CACHE"] = tempfile.mkdtemp()
        sys.path[:0] = map(str, (WIDE, ROOT / "tests" / "support"))
        vars(importlib.import_module("deploykit_ort_qnn.bench.opinions"))["toolchain_host"] = lambda wheel: None
        self.wide, self.kind, self.seed = importlib.import_module("test_wide"), kind, seed
        head = (WIDE / "graphs.told").read_text("utf-8").partition("\n# ")[0]
        self.known = set(head.partition("\n")[0].split())
        self.ways = dict(re.findall(r"^= (\w): (.*)", head, flags=re.MULTILINE))
        whole, single = kept(KEPT, self.watch.sites)
        self.told = np.frombuffer(whole, np.uint8).copy()
        for _, _, _, places in _kept_before():
            for site, mask in places:
                self.told[site] |= mask
        chance = random.Random(f"{kind} {seed}")
        self.source: Graphs | Commands = Graphs(chance) if kind == "graphs" else Commands(chance)
        self.source.promising = _promising(self.told, np.frombuffer(self.watch.full, np.uint8), single)

    def answer(self, header: str) -> list[str]:
        """As the wide net has it."""
        with _alone():
            if self.kind == "commands":
                told = self.wide.of_commands(header, self.known)
            else:
                told = self.wide.of_model(header, self.known, self.ways)
            return [line.strip() or "nothing" for line in told]

    def gained(self, header: str) -> tuple[list[str], float, Any] | None:
        """Answers, seconds, and what is told apart by them alone; None where the net cannot have it."""
        self.watch.seen[:] = self.told.tobytes()
        began = time.process_time()
        try:
            lines = self.answer(header)
            spent = time.process_time() - began
            gained = np.frombuffer(bytes(self.watch.seen), np.uint8) & ~self.told
            if any(re.match(r"(?:.*: )?70 ", line) for line in lines):
                with (KEPT / "defects.txt").open("a", encoding="utf-8") as file:
                    file.write(json.dumps([header, lines]) + "\n")
                return None
            good = gained.any() and spent < MOST_SECONDS and self.answer(header) == lines
            return (lines, spent, gained) if good else None
        except (Dropped, Exception):
            return None

    def grow(self, seconds: float) -> None:
        """Until the time is used; what is kept, and by what, is written at once."""
        ends, asked, found = time.monotonic() + seconds, set(sources()), 0
        with (KEPT / f"{self.kind}-{self.seed}.jsonl").open("a", encoding="utf-8") as out:
            while time.monotonic() < ends:
                header = self.source.make()
                if header in asked or "\n" in header or "# " in header or len(header) > 2500:
                    continue
                asked.add(header)
                if (gain := self.gained(header)) is None:
                    continue
                lines, spent, masks = gain
                found += 1
                self.told |= masks
                self.source.parents.append(header)
                places = [[int(n), int(masks[n])] for n in np.flatnonzero(masks)]
                out.write(json.dumps([header, lines, round(spent, 3), places]) + "\n")
                out.flush()
                if found % 20 == 0:
                    print(f"{found} of {len(asked)} kept, {ends - time.monotonic():.0f} s left", flush=True)


def write(seconds: float) -> None:
    """Adds the kept ones that tell most apart for their time; the very best are asked first until `tiers` says more."""
    sized = [
        (sum(mask.bit_count() for _, mask in places) / (spent + 0.05), header, lines, spent, places)
        for header, lines, spent, places in _kept_before()
    ]
    told, files = set[tuple[int, int]](), {"grown_quick": list[str](), "grown": list[str]()}
    left = {"grown_quick": QUICK_SECONDS, "grown": seconds}
    for _, header, lines, spent, places in sorted(sized, reverse=True):
        new = {(site, bit) for site, mask in places for bit in range(8) if mask >> bit & 1} - told
        name = "grown_quick" if spent < left["grown_quick"] else "grown"
        if new and spent < left[name]:
            left[name] -= spent
            told |= new
            files[name].append("# " + "\n    ".join([header, *lines]) + "\n")
    for name, parts in files.items():
        with (WIDE / f"{name}.told").open("a", encoding="utf-8") as file:
            file.write("".join(parts))
        print(f"{name}: {len(parts)} questions more")
    print(f"{len(told)} goals more, {left['grown']:.0f} s left")


def tiers(seconds: float) -> None:
    """Writes those that tell most for their time into the files of the first tier, all others into the other files.

    `told_apart` has to have run over the whole net, in one process: its seconds count.
    """
    texts = {path: re.split("^# ", path.read_text("utf-8"), flags=re.MULTILINE) for path in sorted(WIDE.glob("*.told"))}
    rows = [(path.stem, part) for path, (_, *parts) in texts.items() for part in parts]
    asked = list(kept(KEPT, instrumented()[0])[1].values())
    assert len(asked) == len(rows), "the wide net has other questions than those that were watched"
    seen = [np.unpackbits(np.frombuffer(zlib.decompress(masks), np.uint8)) > 0 for _, masks in asked]
    often, worth = np.zeros(len(seen[0]), np.int64), np.array([*WORTH, 0])

    def rate(row: int) -> float:
        return float(worth[np.minimum(often[seen[row]], len(WORTH))].sum()) / max(asked[row][0], 0.01)

    first, heap = set[int](), [(-rate(row), row) for row in range(len(rows))]
    heapq.heapify(heap)
    while heap:
        known, row = heapq.heappop(heap)
        if asked[row][0] > seconds or not known:
            continue
        if heap and (now := -rate(row)) > heap[0][0]:  # others were chosen since
            heapq.heappush(heap, (now, row))
            continue
        first.add(row)
        often += seen[row]
        seconds -= asked[row][0]
    files = defaultdict[str, list[str]](list)
    for row, (name, part) in enumerate(rows):
        kind = (
            "grown"
            if "grown" in name
            else "commands"
            if part[0].islower()
            else "models"
            if part[0] == "$"
            else "graphs"
        )
        files[("grown_quick" if kind == "grown" else "quick") if row in first else kind].append(part.rstrip() + "\n")
    for path, (head, *_) in texts.items():
        path.write_text("# ".join([head, *files[path.stem]]), "utf-8")
    print(
        f"{len(first)} of {len(rows)} in the first tier, which tell {(often > 0).sum()} faults apart, "
        f"{(often > 1).sum()} of them more than once"
    )


if __name__ == "__main__":
    if sys.argv[1] in ("write", "tiers"):
        (write if sys.argv[1] == "write" else tiers)(float(sys.argv[2]))
    else:
        Grower(sys.argv[1], int(sys.argv[2])).grow(float(sys.argv[3]))
