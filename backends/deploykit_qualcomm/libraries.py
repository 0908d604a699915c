"""Recognises that the vendor's libraries do not load for want of one of the system's; it loads none itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Unloadable", "unloadable_library"]

_SAID = re.compile(r"Unable to load backend, error:\s*(?P<provider>.+)|^OSError: (?P<python>\S*\.so[\d.]*: .+)")
"""In the words of ONNX Runtime's provider, and of Python."""
_ABSENT = re.compile(r"(?P<file>[^\s/]+): cannot open shared object")
_PACKAGES = {"libatomic.so.1": "libatomic1"}
"""Of Debian and Ubuntu, by the library: slim container images leave it out (seen with the wheel 2.7.0 on Debian)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloadable:
    """``why`` is what the system's linker said."""

    why: str

    @property
    def advice(self) -> str:
        """What to install, by its package's name where that is known."""
        absent = _ABSENT.search(self.why)
        if absent is None:
            return "'ldd' on the libraries in the folder of onnxruntime_qnn shows which are not what they should be"
        package = _PACKAGES.get(absent["file"])
        by = f"apt-get install {package}" if package else f"apt-file search {absent['file']}"
        return f"install the system's package that has {absent['file']} (Debian, Ubuntu: {by})"


def unloadable_library(lines: Iterable[str]) -> Unloadable | None:
    """The first one that a log tells of."""
    found = next(filter(None, map(_SAID.search, lines)), None)
    return None if found is None else Unloadable(why=(found["provider"] or found["python"]).strip())
