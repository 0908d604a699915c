"""Runs the code cells of a notebook in order, in one namespace, and keeps what a notebook would show.

What is shown is the value of a cell's last expression, as HTML where it has one and as text, and what is printed. There
is no kernel, so no magics; a notebook that needs one fails here.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

__all__ = ["executed", "read_notebook", "shown_text", "write_notebook"]

_LARGEST = 20_000
"""Characters of one output: what is kept in the repository stays small."""


def read_notebook(path: Path) -> dict[str, Any]:
    """The notebook as JSON, of format 4 and in Python."""
    told: dict[str, Any] = json.loads(path.read_text("utf-8"))
    assert told["nbformat"] == 4, path
    return told


def write_notebook(path: Path, notebook: dict[str, Any]) -> None:
    """The same form each time, so that a difference is one of content."""
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of a run in the current folder; what a cell raises is raised."""
    space: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell = {**cell, "execution_count": count, "outputs": _run("".join(cell["source"]), space, count)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _run(source: str, space: dict[str, Any], count: int) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"<cell {count}>", "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {count}>", "eval"), space)  # noqa: S307 - the repository's own
    text = printed.getvalue()
    outputs = [{"output_type": "stream", "name": "stdout", "text": _lines(text)}] if text else []
    return outputs + ([] if value is None else [_result(value, count)])


def _result(value: Any, count: int) -> dict[str, Any]:
    data = {"text/plain": _lines(repr(value)[:_LARGEST])}
    html = getattr(value, "_repr_html_", None)
    if html is not None:
        made = html()
        assert len(made) <= _LARGEST, f"cell {count} shows {len(made)} characters"
        data = {"text/html": _lines(made), "text/plain": [f"<{type(value).__name__}>"]}
    return {"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def shown_text(notebook: dict[str, Any]) -> list[str]:
    """What each code cell shows, tags and the digits of numbers left out: those may differ between releases."""
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            parts = map(_text, cell["outputs"])
            plain = re.sub(r"<[^>]*>", " ", "\n".join(parts))
            shown.append(re.sub(r"\s+", " ", re.sub(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?", "#", plain)).strip())
    return shown


def _text(output: dict[str, Any]) -> str:
    lines = output["text"] if "text" in output else output["data"].get("text/html", output["data"]["text/plain"])
    return "".join(lines)
