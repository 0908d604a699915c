"""Where the tests' processor time goes: per folder, per file, and the dearest tests; collection stands apart.

    python tests/lab/times.py                  the README's tests
    python tests/lab/times.py -m heavy tests/zoo      any arguments of pytest
    python tests/lab/times.py --seed 7 --busy 2       files and their tests in another order, two idle loops beside them

Children count: a test that starts the command line pays for it here as on the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

__all__ = ["main"]

RECORD, SEED = "DEPLOYKIT_TEST_TIMES", "DEPLOYKIT_TEST_SEED"
SHOWN = 50


def spent() -> float:
    """Processor seconds of this process and of its ended children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in another order, and the tests within each, where a seed is given: modules keep their fixtures."""
    seed = os.environ.get(SEED)
    if seed:
        chance = random.Random(seed)
        files = {item.path: chance.random() for item in items}
        order = {item: (files[item.path], chance.random()) for item in items}
        items.sort(key=order.__getitem__)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """One line of JSON per test, into a file of this process's own."""
    before = spent()
    result = yield
    write(item.nodeid, spent() - before)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Imports and collection, which every worker pays for."""
    before = spent()
    result = yield
    write("imports and collection", spent() - before)
    return result


def write(name: str, seconds: float) -> None:
    folder = os.environ.get(RECORD)
    if folder:
        with Path(folder, f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps([name, seconds]) + "\n")


def main(arguments: list[str]) -> int:
    """Run pytest with this file as a plugin and print the sums; the exit status is pytest's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="")
    parser.add_argument("--busy", type=int, default=0)
    given, arguments = parser.parse_known_args(arguments)
    here = Path(__file__).resolve()
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(here.parent), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            RECORD: folder,
            SEED: given.seed,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", here.stem, *arguments]
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(given.busy)]
        try:
            status = subprocess.run(command, cwd=here.parents[2], env=environment, check=False).returncode
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
        lines = [line for path in Path(folder).glob("*.jsonl") for line in path.read_text("utf-8").splitlines()]
    show([(name, float(seconds)) for name, seconds in map(json.loads, lines)])
    return status


def show(rows: list[tuple[str, float]]) -> None:
    tests: dict[str, float] = defaultdict(float)
    for name, seconds in rows:
        tests[name] += seconds
    overhead = tests.pop("imports and collection", 0.0)
    files: dict[str, float] = defaultdict(float)
    folders: dict[str, float] = defaultdict(float)
    for name, seconds in tests.items():
        file = name.partition("::")[0]
        files[file] += seconds
        folders[str(Path(file).parent)] += seconds
    total = sum(tests.values())
    print(
        f"\n{total + overhead:.0f} s of processor time, {overhead:.0f} s of it to import and collect {len(tests)} tests"
    )
    for title, counted, most in (("folders", folders, 40), ("files", files, 60), ("tests", tests, SHOWN)):
        print(f"\nthe dearest {title}")
        table(counted, most)


def table(counted: Mapping[str, float], most: int) -> None:
    for name, seconds in sorted(counted.items(), key=lambda row: -row[1])[:most]:
        print(f"{seconds:8.2f} s  {name}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
