"""What the user gave as calibration data: a folder of images, .npy or .npz files, or a reader ``module:Class``.

Files are listed and not opened; a user's reader is never imported here, only named.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from deploykit.accuracy.samples.arrays import ARRAY_SUFFIXES
from deploykit.accuracy.samples.images import IMAGE_SUFFIXES
from deploykit.accuracy.samples.recipe import RECIPE_FILE, ImageRecipe, read_recipe
from deploykit.errors import InputError, UsageError
from deploykit.system.files import read_regular

__all__ = ["Calibration", "load_calibration"]

_READER = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
LABELS_FILE = "labels.csv"
_LARGEST_TABLE = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Calibration data by kind: ``arrays``, ``images`` (with a recipe) or ``reader`` (``module:Class``).

    ``labels`` maps a file to its class where the user gave labels (``labels.csv``, or one folder per class).
    """

    kind: str
    origin: str
    files: tuple[Path, ...] = ()
    recipe: ImageRecipe | None = None
    reader: str = ""
    reader_file: Path | None = None
    labels: Mapping[Path, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def load_calibration(source: Path) -> Calibration:
    """List what ``source`` holds; raises InputError or UsageError with what to do. Reads no sample yet."""
    if source.is_dir():
        return _folder(source)
    if source.is_file():
        if source.suffix not in ARRAY_SUFFIXES:
            raise InputError(f"{source}: neither .npy nor .npz", next="give a folder, a .npy, a .npz or module:Class")
        return Calibration(kind="arrays", origin=source.name, files=(source,))
    if _READER.fullmatch(str(source)):
        module = Path(*str(source).partition(":")[0].split(".")).with_suffix(".py")
        return Calibration(
            kind="reader",
            origin=str(source),
            reader=str(source),
            reader_file=module if module.is_file() else None,
        )
    raise InputError(f"{source}: no such file or folder", next="give a folder, a .npy, a .npz or module:Class")


def _folder(folder: Path) -> Calibration:
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    _refuse_strays(folder, found)
    images = [path for path in found if path.suffix.lower() in IMAGE_SUFFIXES]
    arrays = [path for path in found if path.suffix in ARRAY_SUFFIXES]
    if images and arrays:
        raise UsageError(f"{folder}: holds images and arrays", next="give a folder with one kind")
    files = images or arrays
    if not files:
        raise InputError(f"{folder}: holds no image and no .npy or .npz file")
    used = {*files, folder / RECIPE_FILE, folder / LABELS_FILE}
    return Calibration(
        kind="images" if images else "arrays",
        origin=folder.name,
        files=tuple(files),
        recipe=read_recipe(folder) if images else None,
        labels=_labels(folder, files),
        ignored=tuple(path.relative_to(folder).as_posix() for path in found if path not in used),
    )


def _refuse_strays(folder: Path, found: Iterable[Path]) -> None:
    """A link out of the folder would put some other file of this machine into the package."""
    home = folder.resolve()
    for path in found:
        if not path.resolve().is_relative_to(home):
            raise InputError(
                f"{path}: leaves the calibration folder through a symbolic link",
                why="what lies elsewhere on this machine is not taken into a package",
                next="replace the link by the file, or name the folder that it leads to",
            )


def _labels(folder: Path, files: Iterable[Path]) -> dict[Path, str]:
    """Labels out of ``labels.csv`` (file name, class), else one class per sub-folder where there are several."""
    table = folder / LABELS_FILE
    if table.is_file():
        given = _label_rows(table)
        known = {path: given.get(path.relative_to(folder).as_posix()) for path in files}
        return {path: label for path, label in known.items() if label is not None}
    folders = {path: path.parent.relative_to(folder).as_posix() for path in files}
    return folders if len(set(folders.values())) > 1 and "." not in folders.values() else {}


def _label_rows(table: Path) -> dict[str, str]:
    try:
        text = read_regular(table, limit=_LARGEST_TABLE).decode("utf-8-sig")
        return {row[0].strip(): row[1].strip() for row in csv.reader(StringIO(text, newline="")) if len(row) >= 2}
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{table}: not a table of labels", why=str(error)) from None
