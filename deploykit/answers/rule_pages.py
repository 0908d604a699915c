"""Collects every registered rule, finds one by its code or name, and renders a rule's page.

The core's registries are passed in, as they are in rooms above this one. A
page states only what the rule itself states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deploykit.backend.plugins import load_backends
from deploykit.backend.targets import nearest_names
from deploykit.errors import DefectError, UsageError
from deploykit.findings import Answerer
from deploykit.findings.records import Json, Names, Published
from deploykit.findings.rules import Registry, Rule

__all__ = ["RuleEntry", "all_rules", "find_rule", "rule_page"]


class RuleEntry(Published):
    """A rule with the ids of the backends that apply it; empty for the core's own rules, which every backend
    applies.
    """

    rule: Rule[Any]
    backends: Names

    def as_published(self) -> Json:
        """The JSON of ``deploykit explain`` for a rule."""
        names = ("code", "slug", "severity", "scope", "what", "why", "fix", "sources")
        return {**{name: getattr(self.rule, name) for name in names}, "backends": self.backends}


def all_rules(core: Iterable[Registry[Any]]) -> tuple[RuleEntry, ...]:
    """Every rule of the core and of all installed backends, sorted by code; a repeated code or slug is a defect."""
    entries = dict[str, RuleEntry]()
    found: list[tuple[Rule[Any], Names]] = [(rule, ()) for registry in core for rule in registry]
    for backend in load_backends():
        found += [(rule, (backend.id,)) for registry in backend.registries() for rule in registry]
    for rule, backends in found:
        known = entries.get(rule.code)
        others = (entry.rule for entry in entries.values() if entry.rule is not rule)
        twin = next((other for other in others if rule.code == other.code or rule.slug == other.slug), None)
        if twin is not None:
            raise DefectError(f"rules {twin.code} {twin.slug} and {rule.code} {rule.slug} share their code or name")
        if known is None:
            entries[rule.code] = RuleEntry(rule=rule, backends=backends)
        elif known.backends:
            entries[rule.code] = RuleEntry(rule=rule, backends=tuple(sorted({*known.backends, *backends})))
    return tuple(entries[code] for code in sorted(entries))


def reserved_codes() -> Mapping[str, str]:
    """Codes that are no longer used, each with the code of the rule that replaced it."""
    taken_over = dict[str, str]()
    for backend in load_backends():
        taken_over |= backend.reserved_codes()
    return taken_over


def find_rule(name: str, entries: Iterable[RuleEntry]) -> RuleEntry:
    """One rule by code, by slug, or by a code it replaced. Raises UsageError with the nearest names."""
    entries, wanted = tuple(entries), name.lower()
    wanted = reserved_codes().get(name.upper(), wanted).lower()
    for entry in entries:
        if wanted in (entry.rule.code.lower(), entry.rule.slug):
            return entry
    known = {text.lower(): text for entry in entries for text in (entry.rule.code, entry.rule.slug)}
    near = ", ".join(known[name] for name in nearest_names(wanted, [*known]))
    raise UsageError(
        f"no rule {name!r}", next=f"did you mean {near}?" if near else "'deploykit explain rules' lists all"
    )


def rule_page(entry: RuleEntry) -> str:
    """The page of one rule, in Markdown."""
    rule, applied_by = entry.rule, ", ".join(entry.backends) or "every backend"
    # Hints are written as after 'next:'; a page has whole sentences.
    text = rule.fix[:1].upper() + rule.fix[1:].removesuffix(".")
    return "\n".join(
        [
            f"# {rule.code}: {rule.slug}",
            "",
            f"*Severity:* {rule.severity}. *Looks at:* {rule.scope}. *Applied by:* {applied_by}.",
            "",
            "## What",
            "",
            rule.what,
            "",
            "## Why it matters",
            "",
            rule.why,
            "",
            "## How to fix it",
            "",
            f"{text}.",
            "",
            "## Sources",
            "",
            *(f"* {source}" for source in rule.sources),
            "",
            *_trial(rule),
        ]
    )


_ANSWERERS = {
    Answerer.COMPILER: "the compiler for the device, whichever backend finds it",
    Answerer.TOOLS: "the tools of the backend that finds it, and nobody else",
}


def _trial(rule: Rule[Any]) -> tuple[str, ...]:
    """The section on how the rule can be refuted by trying; empty if it cannot."""
    if rule.claim is None:
        return ()
    seen = f", seen with {rule.claim.seen_with}" if rule.claim.seen_with else ""
    told = f"It is {rule.claim.confidence}{seen}; {_ANSWERERS[rule.claim.answered_by]}, can refute it by trying"
    return ("## Second opinion", "", f"{told}.", "")
