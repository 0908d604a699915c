"""Takes out of names and texts what says whose they are: accounts, machines, folders, addresses. It opens nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

__all__ = ["BundleNames", "clean_text", "personal_words"]

_NOBODY = frozenset({"root", "user", "home", "localhost", "runner", "build", "work", "model"})
_TOKEN = re.compile(r"[A-Za-z]:[\\/][^\s'\"`,;()<>|=]+|\\\\[^\s'\"`,;()<>|=]+|~?/[^\s'\"`,;:()<>|=\]\[{}]+|[\w./$-]+")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_ADDRESS = re.compile(r"\b(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2,3}\b")
_PATH = re.compile(r"[A-Za-z]:[\\/]|\\\\|~?/")
_SUFFIX = re.compile(r"\.[A-Za-z]\w{0,9}$")


@dataclass(slots=True, kw_only=True)
class BundleNames:
    """What tensors and nodes are called: as they were, or with ``numbered`` by numbers, in the order they are met.

    A name that holds one of the ``personal`` words is always numbered.
    """

    numbered: bool
    personal: tuple[str, ...]
    given: dict[str, str] = field(default_factory=dict)

    def of_kind(self, letter: str) -> Callable[[str], str]:
        """What gives a name of one kind (``t`` tensors, ``n`` nodes); the same for the same name."""

        def name(old: str) -> str:
            if not old:
                return old
            if old not in self.given:
                hidden = self.numbered or any(word in old.lower() for word in self.personal)
                self.given[old] = f"{letter}{len(self.given) + 1}" if hidden else old
            return self.given[old]

        return name

    @property
    def scopes(self) -> frozenset[str]:
        """What names with slashes begin with: a text may speak of a scope, and it looks like a folder."""
        found = set()
        for name in self.given:
            parts = name.split("/")
            found |= {"/".join(parts[:count]) for count in range(2, len(parts))}
        return frozenset(found)


def personal_words(account: str, machine: str, home: str) -> tuple[str, ...]:
    """What may stand nowhere, in lower case: too short or general words say nothing about anybody."""
    words = (word.lower() for word in (account, machine, machine.partition(".")[0], home))
    return tuple(sorted({word for word in words if len(word) > 2 and word not in _NOBODY}, key=len, reverse=True))


def clean_text(text: str, names: BundleNames, personal: Iterable[str]) -> str:
    """The text with every absolute path, address and personal word replaced, and names as they are in the model."""
    mangled = {re.sub(r"\W", "_", old): new for old, new in names.given.items() if new != old}
    known, scopes = {**mangled, **names.given}, names.scopes

    def token(found: re.Match[str]) -> str:
        word, plain = found[0], found[0].rstrip(".:/-")
        rest = word[len(plain) :]
        if plain in known:
            return known[plain] + rest
        if plain in scopes:
            return f"<scope>{rest}" if names.numbered else word
        if _PATH.match(plain) and plain.count("/") + plain.count("\\") > 1:
            suffix = _SUFFIX.search(plain)
            return f"<path>{suffix[0] if suffix else ''}{rest}"
        return word

    text = _TOKEN.sub(token, _MAIL.sub("<mail>", text))
    text = _ADDRESS.sub("<address>", text)
    for word in personal:
        text = re.sub(re.escape(word), "<name>", text, flags=re.IGNORECASE)
    return text
