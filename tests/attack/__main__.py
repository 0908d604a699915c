"""``python tests/attack MINUTES [--write]``: the whole attack, round after round with new seeds, and its figures.

``--write`` puts the figures into docs/security.md. A file that got no answer is kept and named on standard error.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backends"), str(ROOT / "templates"), str(ROOT / "tests" / "support")]

from attacks.kinds import KINDS, PACKAGING, Kind, drawn  # noqa: E402
from attacks.mutations import broken_json  # noqa: E402
from attacks.victims import Ending, run_cli  # noqa: E402

PAGE = ROOT / "docs" / "security.md"
MEMORY, SECONDS = 1024.0, 10.0
ROWS = (
    "commands run",
    "exit 70",
    "hangs",
    "memory above 1 GB",
    "computing time above 10 s",
    "other endings without an answer",
    "changed bits",
    "changed bits unseen with --expect-digest",
    "runs that died",
    "lost or changed user files and packages",
    "litter after the next run",
    "pairs of runs at one place",
    "pairs of which both, or none, won",
)


class Attack:
    """One run of the whole; ``figures`` are by the rows of the page."""

    def __init__(self, seed: int, place: Path) -> None:
        self.figures = Counter(dict.fromkeys(ROWS, 0))
        self.seed = seed
        self.chance = random.Random(seed)
        self.place = place
        self.good = place / "good"
        self.events = self.told(run_cli(*PACKAGING, self.good)).events

    def told(self, ending: Ending, what: str = "") -> Ending:
        """Count how a command ended."""
        self.figures["commands run"] += 1
        hung = ending.status in (None, -24)
        faults = {
            "exit 70": ending.status == 70,
            "hangs": hung,
            "memory above 1 GB": ending.peak_mb > MEMORY,
            "computing time above 10 s": ending.cpu_seconds > SECONDS,
            "other endings without an answer": not hung and ending.status not in (0, 1, 2, 3, 4, 5, 6, 70, -9, 143),
        }
        for fault, found in faults.items():
            if found:
                self.fault(fault, f"{what}: {ending}")
        return ending

    def fault(self, row: str, what: str) -> None:
        """Count something that must not be, and say what."""
        self.figures[row] += 1
        print(f"{row}: {what}", file=sys.stderr, flush=True)

    def fuzz(self, kind: Kind, count: int) -> None:
        """Bad files of one kind."""

        def use(data: bytes) -> None:
            with tempfile.TemporaryDirectory(dir=self.place) as folder:
                path = Path(folder, kind.name)
                path.write_bytes(data)
                words = [w.replace("FILE", str(path)).replace("OUT", str(Path(folder, "out"))) for w in kind.arguments]
                before = sum(self.figures[row] for row in ROWS[1:6])
                self.told(run_cli(*words), kind.id)
                if sum(self.figures[row] for row in ROWS[1:6]) > before:
                    kept = Path(tempfile.mkdtemp(prefix="attack-"), kind.name)
                    shutil.copy(path, kept)
                    print(f"  kept as {kept}", file=sys.stderr, flush=True)

        drawn(kind.strategy, count, self.chance.randrange(1 << 32), use)

    def forge(self, count: int) -> None:
        """Manifests with something wrong in them, sealed again."""
        from deploykit.packages.manifests import sealed_text

        package = self.place / "forged"
        shutil.copytree(self.good, package)

        def use(data: bytes) -> None:
            value = json.loads(data)
            (package / "manifest.json").write_text(sealed_text(value) if isinstance(value, dict) else "[]", "utf-8")
            for command in ("verify", "build"):
                self.told(run_cli(command, package), f"{command} of {data!r:.300}")

        drawn(broken_json((self.good / "manifest.json").read_bytes()), count, self.chance.randrange(1 << 32), use)
        shutil.rmtree(package)

    def flip(self, count: int) -> None:
        """Single bits anywhere in a package, verified with the digest that was kept."""
        from deploykit.errors import PackageError
        from deploykit.packages.manifests import read_manifest
        from deploykit.packages.verifying import verify_package

        digest = str(read_manifest(self.good)["digest"])
        files = sorted(path for path in self.good.rglob("*") if path.is_file())
        for _ in range(count):
            path = self.chance.choice(files)
            before = path.read_bytes()
            data = bytearray(before)
            data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
            path.write_bytes(data)
            self.figures["changed bits"] += 1
            with suppress(PackageError):
                if verify_package(self.good, expect_digest=digest).ok:
                    self.fault("changed bits unseen with --expect-digest", str(path))
            path.write_bytes(before)

    def die(self, count: int) -> None:
        """Runs that are killed, ended or starved of disk at a file event or a moment, then the run after them."""
        for _ in range(count):
            with tempfile.TemporaryDirectory(dir=self.place) as folder:
                self.die_in(Path(folder))

    def die_in(self, folder: Path) -> None:
        out, mine = folder / "out", folder / "mine.txt"
        mine.write_text("mine")
        over = self.chance.random() < 0.5
        if over:
            shutil.copytree(self.good, out)
        arguments = (*PACKAGING, str(out), *(["--force"] if over else []))
        if self.chance.random() < 0.3:
            self.told(run_cli(*arguments, after_seconds=self.chance.random() * 3), "died at a moment")
        else:
            at = self.events - self.chance.randrange(-60, 120 if self.chance.random() < 0.7 else self.events)
            then = self.chance.choice(("kill", "kill", "term", "full"))
            self.told(run_cli(*arguments, at_event=max(at, 1), then=then), f"{then} at {at}")
        self.figures["runs that died"] += 1
        if out.exists() and not _same(out, self.good):
            self.fault("lost or changed user files and packages", str(arguments))
        if over and not out.exists() and not list(folder.glob(".out.deploykit-*/old")):
            self.fault("lost or changed user files and packages", f"nothing is left: {arguments}")
        self.told(run_cli(*PACKAGING, out, "--force"), "the run after")
        if mine.read_text() != "mine" or not _same(out, self.good):
            self.fault("lost or changed user files and packages", f"after the next run: {arguments}")
        if {path.name for path in folder.iterdir()} != {"out", "mine.txt"}:
            self.fault("litter after the next run", str([path.name for path in folder.iterdir()]))

    def race(self) -> None:
        """Two different packages for one place at one time."""
        other = tuple(word.replace("/cnn/", "/cnn_bnfold/") for word in PACKAGING)
        with tempfile.TemporaryDirectory(dir=self.place) as folder:
            out = Path(folder, "out")
            with ThreadPoolExecutor(2) as pool:
                endings = list(pool.map(lambda words: self.told(run_cli(*words, out), "race"), (PACKAGING, other)))
            self.figures["pairs of runs at one place"] += 1
            if sorted(ending.status or 0 for ending in endings) != [0, 6]:
                self.fault("pairs of which both, or none, won", str(endings))


def _same(one: Path, other: Path) -> bool:
    def content(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    return content(one) == content(other)


def main(minutes: float, seed: int, write: bool) -> int:
    """The number of faults found."""
    began, until = time.monotonic(), time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as place:
        attack = Attack(seed, Path(place))
        while time.monotonic() < until:
            for kind in KINDS:
                if time.monotonic() < until:
                    attack.fuzz(kind, 3)
            attack.forge(6)
            attack.flip(200)
            attack.die(12)
            attack.race()
    spent = (time.monotonic() - began) / 60
    table = "\n".join(["| what | count |", "|---|---|", *(f"| {row} | {attack.figures[row]:,} |" for row in ROWS)])
    print(table)
    if write:
        told = f"Run for {spent:.0f} minutes on {date.today().isoformat()} with seed {seed}.\n\n{table}\n"
        text = PAGE.read_text("utf-8")
        marked = r"(<!-- figures -->\n).*?(<!-- end of figures -->)"
        PAGE.write_text(re.sub(marked, lambda found: found[1] + told + found[2], text, flags=re.DOTALL), "utf-8")
    counted = {"commands run", "changed bits", "runs that died", "pairs of runs at one place"}
    return sum(count for row, count in attack.figures.items() if row not in counted)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    sys.exit(1 if main(given.minutes, given.seed, given.write) else 0)
