"""Makes text harmless to a terminal, which obeys what it is shown: names come from strangers. It styles nothing.

A name that moves the cursor could overwrite "problem" with "ok"; one with a line break could add such a line.
"""

from __future__ import annotations

import re

__all__ = ["defused", "plain"]

_STYLES = re.compile(r"(\x1b\[(?:0|1|2|22|3[1236])m)")
"""What the commands style their own words with: bold, dim, and four colours that are none to hide in."""


def plain(text: str) -> str:
    """One line, in which whatever is not printable stands as an escape: ``\\x1b``, ``\\n``, ``\\u202e``."""
    return text if text.isprintable() else "".join(map(_shown, text))


def defused(text: str) -> str:
    """Lines, styled or not, without anything else that a terminal would obey."""
    parts = _STYLES.split(text)
    # Every other part is a style.
    parts[::2] = [part if _is_harmless(part) else "".join(map(_shown_in_lines, part)) for part in parts[::2]]
    return "".join(parts)


def _is_harmless(text: str) -> bool:
    return text.replace("\n", "").replace("\t", "").isprintable()


def _shown(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()


def _shown_in_lines(letter: str) -> str:
    return letter if letter in "\n\t" else _shown(letter)
