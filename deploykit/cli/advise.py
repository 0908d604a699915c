"""``deploykit advise``: what accuracies at several precisions say about a model, and what to do next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from deploykit import api
from deploykit.cli.frame import Command
from deploykit.cli.output import emit, table
from deploykit.errors import UsageError

if TYPE_CHECKING:
    from deploykit.answers.precision_advice import Advice, Conclusion

__all__ = ["command"]


@click.command("advise", cls=Command)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--accuracy", "accuracies", multiple=True, metavar="NAME=VALUE", help="For instance w8a16=75.9.")
@click.option("--goal", help="drop<=1% (the default), drop<=0.5, metric>=0.75, sqnr>=30.")
@click.option("--lower-is-better", is_flag=True, help="For word error rates, perplexities and the like.")
def command(file: Path | None, accuracies: tuple[str, ...], goal: str | None, lower_is_better: bool) -> int:
    """Conclude from accuracies that were measured at several precisions, wherever that was.

    FILE is TOML or JSON with a table "accuracy" from precision to value; "goal" and "lower_is_better" may stand beside
    it. Without fp32 the reference is fp16. Exit status 1 when no precision reaches the goal.
    """
    found = api.advise(file, accuracies=dict(map(_pair, accuracies)), goal=goal, lower_is_better=lower_is_better)
    emit(found.to_json, lambda: _text(found))
    return 0 if found.best else 1


def _pair(text: str) -> tuple[str, float]:
    name, separator, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        separator = ""
    if not separator or not name:
        raise UsageError(f"--accuracy {text}: NAME=VALUE is expected", next="for instance --accuracy w8a16=75.9")
    return name.strip().lower(), number


def _text(found: Advice) -> str:
    rows = [(name, f"{value:.6g}", _verdict(found, name)) for name, value in found.values.items()]
    parts = [table(rows, header=("precision", "measured", found.goal)), *map(_conclusion, found.conclusions)]
    if found.best:
        parts.append(f"the cheapest that reaches the goal: {found.best}")
    return "\n\n".join(parts)


def _verdict(found: Advice, name: str) -> str:
    return "reference" if name == found.reference else "yes" if found.met.get(name) else "no"


def _conclusion(item: Conclusion) -> str:
    lines = [click.style(item.says, bold=True), *(f"  because {line}" for line in item.because)]
    lines += [f"  next: {item.next}"] if item.next else []
    lines += [f"  {item.command}"] if item.command else []
    return "\n".join(lines)
