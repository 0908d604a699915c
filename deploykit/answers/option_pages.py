"""Every option of ``package``, ``plan`` and ``check`` with whose it is, and how one is found by its name.

It states nothing about an option that its spec does not say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from deploykit.backend.options import OptionSpec
from deploykit.backend.plugins import all_options
from deploykit.backend.requests import CORE_OPTIONS
from deploykit.backend.targets import nearest_names
from deploykit.errors import UsageError

__all__ = ["OptionEntry", "every_option", "find_options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionEntry:
    """A spec with the ids of the backends that have it; none for an option of the core, which all understand."""

    spec: OptionSpec
    backends: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The published shape of ``deploykit package --help-backend``."""
        spec = self.spec
        return {
            "name": spec.name,
            "flag": spec.flag,
            "environment": spec.envvar,
            "kind": spec.kind,
            "expects": spec.expects,
            "default": spec.default,
            "choices": list(spec.choices),
            "since": spec.since,
            "help": spec.help,
            "backends": list(self.backends),
        }


def every_option() -> tuple[OptionEntry, ...]:
    """The options of the core, then those of the installed backends."""
    core = [OptionEntry(spec=spec) for spec in CORE_OPTIONS]
    return (*core, *(OptionEntry(spec=spec, backends=owners) for spec, owners in all_options().items()))


def find_options(name: str, entries: Iterable[OptionEntry]) -> tuple[OptionEntry, ...]:
    """The options of that name, typed as on the command line or in Python; UsageError with the nearest names."""
    entries, wanted = tuple(entries), name.lstrip("-").replace("-", "_")
    found = tuple(entry for entry in entries if wanted in (entry.spec.name, entry.spec.flag[2:].replace("-", "_")))
    if not found:
        near = ", ".join(nearest_names(wanted, [entry.spec.name for entry in entries]))
        raise UsageError(
            f"no option {name!r}",
            next=f"did you mean {near}?" if near else "'deploykit package --help-backend all' lists all",
        )
    return found
