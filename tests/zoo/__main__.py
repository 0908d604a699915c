"""``python -m zoo ARCHIVE FOLDER SETTING…``: rows of one model as JSON on stdout, in a process that may die."""

import json
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path

from zoo_subjects import Subject

from .rows import SETTINGS, run


def main(archive: Path, folder: Path, names: list[str]) -> None:
    """Unpacks into the folder and leaves the packages there."""
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder / archive.stem)
    subject = Subject(folder / archive.stem)
    rows = [run(subject, one, folder / one.name.replace(" ", "_")) for one in SETTINGS if one.name in names]
    json.dump([asdict(row) for row in rows], sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
