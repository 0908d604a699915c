"""Whole refusals, in ``refusals.toml`` beside the tests of a room; the test itself names the part that matters most.

After a change that is wanted: ``DEPLOYKIT_WRITE_GOLDEN=1`` with ``-n 0``.
"""

import json
import os
import tomllib
from functools import cache
from pathlib import Path


def check_whole(module: str, key: str, said: object, *folders: Path) -> None:
    """The text is the one that stands under this key beside a test module; names of ``folders`` are left out of it."""
    file, text = Path(module).with_name("refusals.toml"), str(said)
    for folder in folders:
        text = text.replace(str(folder), "$PWD")
    known = _read(file)
    if os.environ.get("DEPLOYKIT_WRITE_GOLDEN") and known.get(key) != text:
        known[key] = text
        rows = (f"{json.dumps(name)} = {json.dumps(one, ensure_ascii=False)}\n" for name, one in known.items())
        file.write_text("".join(rows), "utf-8")
    assert text == known.get(key)


@cache
def _read(file: Path) -> dict[str, str]:
    return tomllib.loads(file.read_text("utf-8")) if file.exists() else {}
