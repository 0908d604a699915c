"""Writes the JSON Schema of ``deploykit.toml``: ``python -m deploykit.fleet FOLDER``."""

import json
import sys
from pathlib import Path

from deploykit.fleet.description import schema

if __name__ == "__main__":
    text = json.dumps(schema(), indent=2) + "\n"
    (Path(sys.argv[1]) / "deploykit.schema.json").write_text(text, "utf-8", newline="\n")
