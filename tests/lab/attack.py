"""``python tests/lab/attack.py MINUTES``: the whole attack with new seeds, and its figures.

The table goes into ``evidence/attack.md``. A file that got no answer is kept and named on standard error.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in (".", "backends", "templates", "tests/support", "tests/lab")]

from attacks.kinds import COMPILING, KINDS, Ground, Kind  # noqa: E402
from attacks.many import Case, run_many  # noqa: E402
from victims import MARKED, PACKAGING, QUANTIZING, Ending, mark, run_cli  # noqa: E402

MEMORY, SECONDS = 1024.0, 10.0
STATUSES = (0, 1, 2, 3, 4, 5, 6)
FAULTS = (
    "exit 70",
    "hangs",
    "memory above 1 GB",
    "computing time above 10 s",
    "other endings without an answer",
    "changed bits unseen with --expect-digest",
    "lost or changed user files and packages",
    "litter after the next run",
    "orphans",
    "pairs of which both, or none, won",
)
ANSWERED = "ended by a library, and answered so where the command is typed"
GOALS = {"bad files": 6000, "changed bits": 3000, "runs that died": 400, "pairs of runs at one place": 40}
"""What a whole run tries of each; the turns keep them in this proportion, however long it takes."""


def leftovers(seconds: float = 5.0) -> dict[int, str]:
    """Programs that commands under attack have started and that still run: by their number, what they are.

    They have some seconds to end. They are ended here, so that each is told once. Without /proc nothing is known.
    """
    until = time.monotonic() + seconds
    while (found := _marked()) and time.monotonic() < until:
        time.sleep(0.1)
    for pid in found:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return found


def _marked() -> dict[int, str]:
    sought, found = f"{MARKED}={mark()}".encode(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if sought in (folder / "environ").read_bytes():
                words = (folder / "cmdline").read_bytes().split(b"\0")
                found[int(folder.name)] = b" ".join(words[:6]).decode(errors="replace")
    return found


class Attack:
    """One run; ``figures`` are by the rows of the page, ``answers`` the cases by the status that answered them."""

    def __init__(self, seed: int, place: Path) -> None:
        self.figures: Counter[str] = Counter(dict.fromkeys((*GOALS, *FAULTS, ANSWERED), 0))
        self.answers: Counter[str] = Counter()
        self.chance = random.Random(seed)
        self.place = place
        (place / "ground").mkdir()
        self.ground = Ground(place / "ground")
        self.good = place / "good"
        self.events = run_cli(*PACKAGING, self.good).events

    def faults(self, ending: Ending, what: str, killed: tuple[int, ...] = ()) -> bool:
        """Count what is wrong with an ending; True when anything is."""
        hung = ending.status in (None, -24)
        wrong = {
            "exit 70": ending.status == 70,
            "hangs": hung,
            "memory above 1 GB": ending.peak_mb > MEMORY,
            "computing time above 10 s": ending.cpu_seconds > SECONDS,
            "other endings without an answer": not hung and ending.status not in (*STATUSES, 70, *killed),
        }
        for fault in (fault for fault, found in wrong.items() if found):
            self.fault(fault, f"{what}: {ending.status}, {ending.peak_mb:.0f} MB, {ending.cpu_seconds:.1f} s")
            print("  " + "\n  ".join(ending.output.splitlines()[-6:]), file=sys.stderr, flush=True)
        return any(wrong.values())

    def fault(self, row: str, what: str) -> None:
        """Count something that must not be, and say what."""
        self.figures[row] += 1
        print(f"{row}: {what}", file=sys.stderr, flush=True)

    def fuzz(self, count: int) -> None:
        """Bad files of several kinds, in one child."""
        with tempfile.TemporaryDirectory(dir=self.place) as name:
            chosen = [self._kind() for _ in range(count)]
            arranged = [self._arranged(kind, Path(name, str(number))) for number, kind in enumerate(chosen)]
            for number, (kind, ending) in enumerate(zip(chosen, run_many(arranged), strict=True)):
                self.figures["bad files"] += 1
                if ending.retyped:
                    self.figures[ANSWERED] += 1
                    print(f"{ANSWERED}: {kind.id}: {arranged[number]}", file=sys.stderr, flush=True)
                self.answers[str(ending.status)] += 1
                if self.faults(ending, f"{kind.id}: {arranged[number]}"):
                    kept = shutil.copytree(Path(name, str(number)), Path(tempfile.mkdtemp(prefix="attack-"), "case"))
                    print(f"  kept as {kept}", file=sys.stderr, flush=True)

    def _kind(self) -> Kind:
        while True:
            kind = self.chance.choice(KINDS)
            if not kind.costly or self.chance.random() < 0.1:
                return kind

    def _arranged(self, kind: Kind, folder: Path) -> Case:
        folder.mkdir()
        return kind.arrange(self.chance, folder, self.ground)

    def flip(self, count: int) -> None:
        """Single bits anywhere in a package, verified with the digest that was kept; one in four in the manifest."""
        from deploykit.errors import PackageError
        from deploykit.packages.manifests import MANIFEST, read_manifest
        from deploykit.packages.verifying import verify_package

        digest = str(read_manifest(self.good)["digest"])
        files = sorted(path for path in self.good.rglob("*") if path.is_file())
        for _ in range(count):
            path = self.good / MANIFEST if self.chance.random() < 0.25 else self.chance.choice(files)
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
        """One of them, in a folder with something of the user's beside the package."""
        out, mine = folder / "out", folder / "mine.txt"
        mine.write_text("mine")
        # Some die while a compiler or a quantizer works for them in processes of its own.
        quantizing = (*QUANTIZING, str(self.ground.data()), "-o")
        first = self.chance.choice((*[PACKAGING] * 12, COMPILING, quantizing))
        over = self.chance.random() < 0.5 and first is not quantizing
        if over:
            shutil.copytree(self.good, out)
        arguments = (*first, str(out), *(["--force"] if over else []))
        self.faults(self._died(arguments, first is PACKAGING), f"died: {arguments}", killed=(-9, 143))
        self.figures["runs that died"] += 1
        if first is PACKAGING and out.exists() and not _same(out, self.good):
            self.fault("lost or changed user files and packages", str(arguments))
        if over and not out.exists() and not list(folder.glob(".out.deploykit-*/old")):
            self.fault("lost or changed user files and packages", f"nothing is left: {arguments}")
        if first is quantizing and (out / "report.json").exists():
            shutil.rmtree(out)  # it was done before it could die, and no package replaces its results
        after = run_cli(*PACKAGING, out, "--force")
        self.faults(after, "the run after")
        if mine.read_text() != "mine" or not _same(out, self.good):
            self.fault("lost or changed user files and packages", f"after the next run: {arguments}")
        if {path.name for path in folder.iterdir()} != {"out", "mine.txt"}:
            left = sorted(path.relative_to(folder).as_posix() for path in folder.glob(".*/**/*"))
            self.fault("litter after the next run", f"{left} after {arguments}; the run after said: {after.output}")

    def _died(self, arguments: Sequence[str], light: bool) -> Ending:
        if not light:
            return run_cli(*arguments, after_seconds=self.chance.random() * 8)
        if self.chance.random() < 0.3:
            return run_cli(*arguments, after_seconds=self.chance.random() * 2)
        at = self.events - self.chance.randrange(-60, 120 if self.chance.random() < 0.7 else self.events)
        return run_cli(*arguments, at_event=max(at, 1), then=self.chance.choice(("kill", "kill", "term", "full")))

    def race(self, count: int) -> None:
        """Two different packages for one place at one time."""
        other = tuple(word.replace("/cnn/", "/cnn_bnfold/") for word in PACKAGING)
        for _ in range(count):
            with tempfile.TemporaryDirectory(dir=self.place) as folder, ThreadPoolExecutor(2) as pool:
                out = Path(folder, "out")
                endings = list(pool.map(lambda words: run_cli(*words, out), (PACKAGING, other)))  # noqa: B023
            self.figures["pairs of runs at one place"] += 1
            for ending in endings:
                self.faults(ending, "race")
            if sorted(ending.status or 0 for ending in endings) != [0, 6]:
                self.fault("pairs of which both, or none, won", str(endings))

    def turn(self) -> None:
        """Some of what is furthest behind."""
        turns: Mapping[str, tuple[Callable[[int], None], int]] = {
            "bad files": (self.fuzz, 30),
            "changed bits": (self.flip, 100),
            "runs that died": (self.die, 5),
            "pairs of runs at one place": (self.race, 1),
        }
        row = min(GOALS, key=lambda row: self.figures[row] / GOALS[row])
        attack, count = turns[row]
        attack(count)
        left = leftovers()
        self.figures["orphans"] += len(left)
        if left:
            print(f"orphans after {row}: {left}", file=sys.stderr, flush=True)


def _same(one: Path, other: Path) -> bool:
    def content(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    return content(one) == content(other)


def main(minutes: float, seed: int) -> int:
    """The number of faults found."""
    until = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as place:
        attack = Attack(seed, Path(place))
        while time.monotonic() < until:
            attack.turn()
    answers = ", ".join(f"{status}: {count:,}" for status, count in sorted(attack.answers.items()))
    print(f"{minutes:.0f} minutes, seed {seed}; {len(KINDS)} kinds of bad files, answered by status {answers}\n")
    print("| what | found |\n|---|---|")
    print("\n".join(f"| {row} | {attack.figures[row]:,} |" for row in (*GOALS, *FAULTS, ANSWERED)))
    return sum(attack.figures[fault] for fault in FAULTS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    sys.exit(1 if main(given.minutes, given.seed) else 0)
