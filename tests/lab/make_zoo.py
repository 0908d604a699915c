"""Makes the zoo's recorded models anew: ``python tests/lab/make_zoo.py WORK [NAME …]``.

``--python`` names a Python that has it all.

It needs the network once, for an environment of its own below WORK, and some minutes; after that
``DEPLOYKIT_WRITE_DOCS=1 pytest -m "" tests/zoo`` writes the rows, ``tests/lab/zoo_page.py`` the page.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "data" / "zoo"


def environment(work: Path) -> Path:
    """The Python of deploykit's own AIMET environment, with what exporting needs beside it."""
    settings = {**os.environ, "DEPLOYKIT_TOOLCHAINS": str(work / "toolchains")}
    command = [sys.executable, "-m", "deploykit"]
    subprocess.run([*command, "toolchain", "install", "aimet"], env=settings, check=True)
    listed = subprocess.run([*command, "--json", "toolchain", "list"], env=settings, check=True, stdout=subprocess.PIPE)
    path = next(row["path"] for row in json.loads(listed.stdout)["toolchains"] if row["name"] == "aimet")
    python = Path(path) / "bin" / "python"
    wanted = HERE / "exporting" / "requirements.txt"
    subprocess.run([python, "-m", "pip", "install", "--no-deps", "-r", wanted], check=True)
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--python", type=Path)
    given = parser.parse_args()
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    python = given.python or environment(work)
    made = work / "made"
    offline = {**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, "-m", "exporting", made, *given.names], cwd=HERE, env=offline, check=False)
    subprocess.run([python, "-m", "exporting", made, "--record", DATA], cwd=HERE, env=offline, check=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
