"""Keeps what Jinja compiled of the built-in templates where Python keeps what it compiled of modules.

That is ``__pycache__`` beside them (``PYTHONPYCACHEPREFIX`` and ``PYTHONDONTWRITEBYTECODE`` are honoured): who may
write there may change deploykit itself. A user's own templates are compiled each time; nothing here renders.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from hashlib import sha256
from importlib.util import cache_from_source
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket

__all__ = ["CompiledTemplates"]


class CompiledTemplates(jinja2.BytecodeCache):
    """One file for each template, written anew where the text, Jinja or ``environment`` is another.

    ``environment`` stands for everything else that compiling depends on.
    """

    def __init__(self, environment: bytes) -> None:
        self._rest = sha256(jinja2.__version__.encode() + b"\0" + environment).hexdigest()

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """Where it is kept, as the key by which Jinja asks; "" where there is no file to keep it beside."""
        del name
        if filename is None:
            return ""
        beside = Path(cache_from_source(filename))
        return str(beside.with_name(f"{Path(filename).name}.{sys.implementation.cache_tag}.j2c"))

    def get_source_checksum(self, source: str) -> str:
        """What the bytecode was made of: Jinja takes no other."""
        return sha256(f"{self._rest}\n{source}".encode()).hexdigest()

    def load_bytecode(self, bucket: Bucket) -> None:
        """Take what is kept, unless it is of something else or damaged."""
        if bucket.key:
            with suppress(OSError, EOFError, ValueError, TypeError), Path(bucket.key).open("rb") as file:
                bucket.load_bytecode(file)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep it, whole or not at all; a folder that cannot be written to keeps none."""
        if sys.dont_write_bytecode or not bucket.key:
            return
        path = Path(bucket.key)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
            made = Path(name)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(bucket.bytecode_to_string())
                made.chmod(0o644)
                made.replace(path)
            finally:
                made.unlink(missing_ok=True)
