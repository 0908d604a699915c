"""Unpacks what ``tests/data`` keeps packed, beside its archives; what was unpacked once is not unpacked again.

Every process of a test run may ask at the same time. What lies there unpacked is not in git.
"""

import fcntl
import hashlib
import lzma
import tarfile
import zipfile
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
FOLDERS = {
    DATA / "aimet" / "recorded.tar.xz": DATA / "aimet",
    DATA / "exports" / "recorded.tar.xz": DATA / "exports",
    # The models that tests of single rules ask about; the rest of the zoo is unpacked by who goes through it.
    **{
        DATA / "zoo" / f"{name}.zip": DATA / "zoo" / name
        for name in ("detr", "distilbert", "gru_lstm", "segformer", "superres")
    },
}
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python 3.11.0 to 3.11.3 know no filters; the archives are ours."""


def unpack() -> None:
    """All of it, unless each archive is the one that was unpacked last and all of its files are still there."""
    stamp = DATA / ".unpacked"
    archives = {archive: archive.read_bytes() for archive in FOLDERS}
    wanted = hashlib.sha256(b"".join(archives.values())).hexdigest()
    if stamp.exists() and _is_whole(stamp.read_text("utf-8"), wanted):  # also where nothing may be written
        return
    with stamp.open("a+", encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.seek(0)
        if _is_whole(held.read(), wanted):
            return
        written = [
            f"{folder.relative_to(DATA)}/{name}"
            for archive, folder in FOLDERS.items()
            for name in _extract(archive, folder)
        ]
        held.truncate(0)
        held.write("\n".join([wanted, *written]))


def _is_whole(stamp: str, wanted: str) -> bool:
    digest, *files = stamp.splitlines() or [""]
    return digest == wanted and all((DATA / file).exists() for file in files)


def _extract(archive: Path, folder: Path) -> list[str]:
    """The names of its files, which are in the folder then."""
    folder.mkdir(exist_ok=True)
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
            return packed.namelist()
    with lzma.open(archive) as stream, tarfile.open(fileobj=stream) as packed_tar:
        packed_tar.extractall(folder, **SAFELY)
        return packed_tar.getnames()
