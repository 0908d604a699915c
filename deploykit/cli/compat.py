"""``deploykit compat``: which SDK, tool, architecture and device has which feature, since when, and by which source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deploykit.answers.asking import CompatAnswer, ask, ask_binary, compare, features
from deploykit.backend.backend import Request
from deploykit.backend.plugins import catalog_of, load_backends
from deploykit.cli.frame import BranchingCommand, Command
from deploykit.cli.options import argument, option, options, path
from deploykit.cli.terminal import emit, progress, table
from deploykit.errors import UsageError
from deploykit.findings import Confidence
from deploykit.tables.capabilities import CompatRow

if TYPE_CHECKING:
    from deploykit.tables.known_errors import KnownError

__all__ = ["command"]

_HEADER = ("feature", "backend", "tool", "arch", "sdk", "status", "confidence")
_CAUSES_SHOWN = 8
_ONLY = (
    option("--target", "DEVICE", "Only what concerns this device, and its own facts.", default=""),
    option("--arch", "ARCH", "Only what concerns this architecture.", default=""),
    option("--tool", "TOOL", "Only the rows of this tool.", default=""),
    option("--backend", "ID", "Only the rows of this backend.", default=""),
)


@click.command(cls=BranchingCommand, context_settings={"ignore_unknown_options": True})
@click.argument("feature", nargs=-1)
@option("--sdk", "VERSION", "Only what holds at this release; repeatable.", "sdks", multiple=True)
@options(*_ONLY)
@option("--type", "TYPE", "Only kernels of this type: u8, u16, float.", "kind", default="")
@path("--model", None, "Find the lowest SDK that takes this model on --target.")
@path("--encodings", None, "The encodings that go with --model.")
def command(
    feature: tuple[str, ...],
    sdks: tuple[str, ...],
    kind: str,
    model: Path | None,
    encodings: Path | None,
    **only: str,
) -> int:
    """Say which SDK, tool and device has FEATURE: a feature, flag, configuration key, provider option, wheel or device.

    Nothing is guessed: "unknown" means that no source says it. Where no table has the words, known causes of failures
    that have them are named.

    \b
    deploykit compat lpbq --sdk 2.33
    deploykit compat op Conv --target sm8650
    """
    feature = (*feature, "in", kind) if kind else feature
    if len(sdks) > 1 and model:
        raise UsageError("more than one --sdk goes with a feature", next="ask for one release at a time")
    if model is not None:
        if not only["target"]:
            raise UsageError("--model needs --target", next="name the device")
        return _lowest(model, encodings, only["target"], only["backend"])
    if not (feature or sdks or any(only.values())):
        emit(ask, lambda: _overview(features()))
        return 0
    asked = [ask(feature, sdk=one, **only) for one in sdks or ("",)]
    # Words without a row may be from a message: the known causes of failures with these words are named.
    causes: Sequence[KnownError] = ()
    if feature and not any(found.rows for found in asked):
        from deploykit.tables.known_errors import search_errors

        causes = search_errors(catalog_of(load_backends()), " ".join(feature))

    def text() -> str:
        answers = [
            _answer_text(found, feature) if feature or only["tool"] else _overview(row.feature for row in found.rows)
            for found in asked
        ]
        if causes:
            named = "\n".join(f"    {row.id}: {row.cause}" for row in causes[:_CAUSES_SHOWN])
            answers.append(f"known causes of failures ('deploykit diagnose --known WORDS' says all of each):\n{named}")
        return "\n\n".join(answers)

    if len(asked) == 1:
        emit(lambda: {**asked[0].to_json(), "causes": [row.id for row in causes]}, text)
    else:
        emit({"answers": asked}, text)
    return 0


def _lowest(model: Path, encodings: Path | None, target: str, backend: str) -> int:
    """Prints the lowest release that takes a model; returns 1 if none does."""
    from deploykit.flow.releases import lowest_sdk

    found = lowest_sdk(Request(model=model, target=target, backend=backend or None, encodings=encodings))

    def text() -> str:
        rows = [(trial.sdk, trial.state, " ".join((*trial.blocking, *trial.open))) for trial in found.trials]
        known = "no release is known to take it" if any(trial.open for trial in found.trials) else "no release takes it"
        closing = f"lowest: {found.lowest}" if found.lowest else known
        shown = table(rows, header=("sdk", "", "what stops it, or is not known"))
        return f"{shown}\n{closing} ({found.backend}, {found.target})"

    emit(found, text)
    return 0 if found.lowest is not None else 1


@command.branch
@click.command("compilers", cls=Command)
@argument("model")
@option("--target", "DEVICE", "The device.", required=True)
@path("--encodings", None, "The encodings that go with MODEL.")
@path("--calibration", None, "Samples to judge the outputs on.")
@option("--backend", "ID", "Whose compilers. Default: the first that has some here.")
def compilers_command(model: Path, **given: Any) -> int:
    """Compile MODEL with each compiler that runs on this machine: taken, right, and how fast by its own estimate.

    A release is newer, not faster: the estimates say which one is, for this model. Exit status 1 where none takes it.

    \b
    deploykit compat compilers model.onnx --target qcs9075
    """
    from deploykit.accuracy.latency import in_time
    from deploykit.flow.releases import try_compilers

    with progress() as tell:
        trials = try_compilers(Request(model=model, **given), tell)

    def text() -> str:
        rows = []
        for one in trials:
            estimate = one.estimate
            band = "" if estimate is None else f" ({in_time(estimate.lower_us)} to {in_time(estimate.upper_us)})"
            time = "no estimate of this chip" if estimate is None else f"{in_time(estimate.time_us)}{band}"
            where = f", on {estimate.chip}" if estimate is not None and estimate.instead_of else ""
            moved = "" if estimate is None else f"{sum(estimate.ddr.values()):,}"
            name = one.status.compiled.by.partition(" for ")[0] or one.sdk
            state = one.status.compiled.state or " ".join(one.blocking)
            right = str(one.status.right.state) if one.is_compiled else "-"
            rows.append((name, state, right, f"{time}{where}", moved))
        return table(
            rows, header=("compiler", "compiled", "right", "time by its own cost model", "bytes from or to DDR")
        )

    emit({"compilers": trials}, text)
    return 0 if any(one.is_compiled and one.status.good for one in trials) else 1


@command.branch
@click.command("diff", cls=Command)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.argument("feature", nargs=-1)
@options(*_ONLY)
def diff_command(before: str, after: str, feature: tuple[str, ...], **only: str) -> int:
    """What changes from release A to release B, about FEATURE or altogether."""
    found = compare(before, after, feature, **only)

    def state(row: CompatRow | None) -> str:
        return "no row" if row is None else " ".join(word for word in (row.status, row.lifecycle) if word)

    def text() -> str:
        rows = []
        for one in found.differences:
            row = one.row
            rows.append((row.feature, row.backend, row.tool, row.arch, state(one.before), state(one.after)))
        header = ("feature", "backend", "tool", "arch", found.before, found.after)
        notes = dict.fromkeys((row.since, row.note) for row in found.releases)
        lines = [table(rows, header=header) if rows else "no row differs"]
        return "\n".join([*lines, *(f"{release}: {note}" for release, note in notes)])

    emit(found, text)
    return 0


@command.branch
@click.command("binary", cls=Command)
@argument("file", required=False)
@option("--sdk", "VERSION", "Does it load on this release?", "--runtime", "sdk", default="")
@option("--target", "DEVICE", "Does it load on this device?", default="")
@option("--arch", "ARCH", "Without FILE: does it load on this architecture?", default="")
@option("--backend", "ID", "Whose binary it is.", default="")
@option("--built-with", "VERSION", "Without FILE: a binary made by this release ...", default="")
@option("--built-for", "ARCH", "... for this architecture.", default="")
def binary_command(
    file: Path | None, sdk: str, target: str, arch: str, backend: str, built_with: str, built_for: str
) -> int:
    """Who built the binary FILE, and what loads it; or whether one that was built so would load."""
    if file is not None:
        from deploykit.cli.explain import emit_binary

        return emit_binary(file, backend=backend or None, runtime=sdk, target=target)
    if not (built_with or built_for):
        raise UsageError("which binary?", next="name a file, or say --built-with VERSION --built-for ARCH")
    found = ask_binary(built_with, built_for, sdk, target=target, arch=arch)
    emit(found, lambda: _answer_text(found, ()))
    return 0


def _answer_text(found: CompatAnswer, words: Iterable[str]) -> str:
    if not found.rows:
        near = f"; did you mean {', '.join(found.near)}?" if found.near else ""
        return f"unknown: no row about {' '.join(words)!r}{near or '; deploykit compat lists what there is'}"
    lines = [_rows_text(found.rows)]
    shown = {row.family for row in found.rows}
    for family, release in found.answered_by.items():
        if family in shown:
            # Another release was executed than the one that the row describes.
            lent = (row.ran and row.confidence is Confidence.INFERRED for row in found.rows if row.family == family)
            how = ", by inference" if any(lent) else ""
            lines.append(f"{found.requested} is answered by {family or 'release'} {release}{how}")
    return "\n".join(lines)


def _rows_text(shown: Sequence[CompatRow]) -> str:
    """Aligned columns; under each row its right name, note, contradiction and sources."""
    cells = [
        (row.feature, row.backend, row.tool, row.arch, row.sdk, str(row.status), str(row.confidence or ""))
        for row in shown
    ]
    used = [index for index in range(len(_HEADER)) if any(cell[index] for cell in cells)]
    lines = table([[cell[i] for i in used] for cell in cells], header=[_HEADER[i] for i in used]).split("\n")
    blocks = [lines[0]]
    for line, row in zip(lines[1:], shown, strict=True):
        parts = (
            f"use {row.renamed_to}" if row.renamed_to else "",
            row.note,
            f"but: {row.contradicts}" if row.contradicts else "",
            f"source: {'; '.join(row.source)}" if row.source else "",
        )
        remarks = [click.style(f"    {part}", dim=part.startswith("source:")) for part in parts if part]
        blocks += [line, *remarks]
    return "\n".join(blocks)


def _overview(every: Iterable[str]) -> str:
    """The names of all features, with the numbers of flags, keys and operators only."""
    counted, found = ("flag ", "key ", "op "), list(every)
    names = {feature for feature in found if not feature.startswith((*counted, "release "))}
    kinds = Counter(feature.split(" ", 1)[0] for feature in found if feature.startswith(counted))
    lines = [*sorted(names), "", ", ".join(f"{kind}: {count} rows" for kind, count in kinds.items())]
    return "\n".join([*lines, "'deploykit compat NAME' answers for one of them, a flag, a key or a device"])
