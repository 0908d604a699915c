"""What mkdocs calls while it builds: adds the front page and the reference pages made from the code; writes nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

__all__ = ["on_files"]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The README is the front page; the pages of ``reference.py`` stand under ``reference/``."""
    from mkdocs.structure.files import File

    sys.path.insert(0, str(Path(__file__).parent))
    import reference

    docs = Path(config.docs_dir)
    front = (docs.parent / "README.md").read_text("utf-8").replace("](docs/", "](")
    for path, text in {"index.md": front, **reference.pages(docs)}.items():
        files.append(File.generated(config, path, content=text))
    return files
