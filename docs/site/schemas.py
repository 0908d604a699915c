"""The JSON Schemas of the data files, made from the classes that load them.

    python docs/site/schemas.py FOLDER

writes them for an editor; the site has them when it is built.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

from deploykit.errors import UsageError
from deploykit.fleet.description import schema
from deploykit.tables.capabilities import ConfigKey, Feature
from deploykit.tables.devices import Device
from deploykit.tables.reading import schema_of
from deploykit.tables.sources import SourceFile
from deploykit_qualcomm.compat import CompatRule, MissingEncoding, OpChange
from deploykit_qualcomm.tables import ArchFile, SdkFile, Series, ToolFlags, Wheel

__all__ = ["SCHEMAS", "schema_texts", "write_schemas"]

_FILLED = ("since", "extent")


def written(kind: type, *, hidden: Collection[str] = (), optional: Collection[str] = ()) -> dict[str, Any]:
    """The schema of a file as it is written.

    ``hidden`` fields are set by the loader; ``optional`` ones may be left out although the class requires them.
    """
    made = dict(schema_of(kind))
    for each in (made, *made.get("$defs", {}).values()):
        if "properties" in each:
            each["properties"] = {name: one for name, one in each["properties"].items() if name not in hidden}
            each["required"] = [name for name in each["required"] if name not in {*hidden, *optional}]
    return made


def rows_of(kind: type, key: str, **options: Any) -> dict[str, Any]:
    """The schema of a file that is one list of rows."""
    return written(make_dataclass("Rows", [("schema", int), (key, tuple[kind, ...])]), **options)  # type: ignore[valid-type]


SCHEMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "device": ("devices/*.toml", written(Device)),
    "qualcomm-sdk": ("sdks/*.toml", written(SdkFile, hidden=_FILLED)),
    "qualcomm-tool": ("tools/*.toml", written(ToolFlags, hidden=_FILLED, optional=("tool",))),
    "qualcomm-features": ("features.toml", rows_of(Feature, "feature", hidden=_FILLED)),
    "qualcomm-config-keys": ("config_keys.toml", rows_of(ConfigKey, "key", hidden=_FILLED)),
    "qualcomm-missing-encoding": ("missing_encoding.toml", rows_of(MissingEncoding, "case")),
    "qualcomm-compat-rules": ("compat_rules.toml", rows_of(CompatRule, "rule")),
    "qualcomm-wheels": ("wheels.toml", rows_of(Wheel, "wheel")),
    "qualcomm-op-history": ("op_history.toml", rows_of(OpChange, "op")),
    "qualcomm-archs": ("archs.toml", written(ArchFile)),
    "qualcomm-series": ("series.toml", written(Series)),
    "qualcomm-sources": ("sources.toml", written(SourceFile)),
}
"""Per schema the data files that it describes, relative to the data folder, and the schema itself."""


def schema_texts() -> dict[str, str]:
    """The schema files by name, as they are written."""
    schemas = {"deploykit": schema(), **{name: made for name, (_, made) in SCHEMAS.items()}}
    return {
        f"{name}.schema.json": json.dumps(made, indent=1, ensure_ascii=False) + "\n" for name, made in schemas.items()
    }


def write_schemas(folder: Path) -> None:
    """Write every schema into a folder that exists."""
    for name, text in schema_texts().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise UsageError("one folder is wanted", next="python docs/site/schemas.py FOLDER")
    write_schemas(Path(sys.argv[1]))
