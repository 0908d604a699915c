"""One test that walks a table and names each row that fails, where the rows differ in values alone."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytest


def each_row(names: str | Sequence[str], *rows: Any) -> Callable[[Callable[..., None]], Any]:
    """As ``pytest.mark.parametrize``, but one test: every row is run, and the failure lists all bad ones.

    ``tmp_path`` is a folder of each row's own. A row that skips is passed over.
    """
    given = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

    def walk(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        def every_row(**fixtures: Any) -> None:
            bad = []
            for number, row in enumerate(rows):
                values = getattr(row, "values", None)  # pytest.param keeps its values there
                cells = row if values is None or callable(values) else values
                own = dict(zip(given, (cells,) if len(given) == 1 and cells is row else tuple(cells), strict=True))
                if "tmp_path" in fixtures:
                    folder = fixtures["tmp_path"] / f"row{number}"
                    folder.mkdir()
                    own["tmp_path"] = folder
                try:
                    test(**{**fixtures, **own})
                except pytest.skip.Exception:
                    continue
                except (Exception, pytest.fail.Exception) as error:
                    own.pop("tmp_path", None)
                    said = str(error).strip() or "an assertion fails"
                    bad.append(f"{own}: {type(error).__name__}: {said[:500]}")
            assert not bad, f"{len(bad)} of {len(rows)} rows fail\n" + "\n".join(bad)

        others = [parameter for parameter in signature.parameters.values() if parameter.name not in given]
        every_row.__name__, every_row.__doc__, every_row.__module__ = test.__name__, test.__doc__, test.__module__
        every_row.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return every_row

    return walk
