"""The JSON Schemas of the data files, made from the dataclasses that load them.

    python docs/site/schemas.py FOLDER

writes them for an editor; the site has them when it is built.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from deploykit.errors import UsageError
from deploykit.fleet.description import schema
from deploykit.tables.devices import Device
from deploykit.tables.schemas import schema_of
from deploykit.tables.sources import SourceFile
from deploykit_qualcomm.tables import (
    ArchFile,
    CompatRuleFile,
    FeatureFile,
    KeyFile,
    MissingEncodingFile,
    OpHistoryFile,
    SdkFile,
    Series,
    ToolFile,
    WheelFile,
)

__all__ = ["SCHEMAS", "schema_texts", "write_schemas"]

_FILLED = ("since", "extent")

SCHEMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "device": ("devices/*.toml", schema_of(Device)),
    "qualcomm-sdk": ("sdks/*.toml", schema_of(SdkFile, hidden=_FILLED)),
    "qualcomm-tool": ("tools/*.toml", schema_of(ToolFile, hidden=_FILLED, optional=("tool",))),
    "qualcomm-features": ("features.toml", schema_of(FeatureFile, hidden=_FILLED)),
    "qualcomm-config-keys": ("config_keys.toml", schema_of(KeyFile, hidden=_FILLED)),
    "qualcomm-missing-encoding": ("missing_encoding.toml", schema_of(MissingEncodingFile)),
    "qualcomm-compat-rules": ("compat_rules.toml", schema_of(CompatRuleFile)),
    "qualcomm-wheels": ("wheels.toml", schema_of(WheelFile)),
    "qualcomm-op-history": ("op_history.toml", schema_of(OpHistoryFile)),
    "qualcomm-archs": ("archs.toml", schema_of(ArchFile)),
    "qualcomm-series": ("series.toml", schema_of(Series)),
    "qualcomm-sources": ("sources.toml", schema_of(SourceFile)),
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
