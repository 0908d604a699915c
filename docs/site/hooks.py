"""What mkdocs calls while it builds: adds the front page and the reference pages made from the code; writes nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

__all__ = ["on_files", "on_post_page"]

_STYLE = """
.md-typeset p a, .md-typeset li a, .md-typeset td a { text-decoration: underline; }
.md-tabs__link { opacity: 1; }
.md-copyright, .md-copyright a { color: #d5d9dc; }
.md-typeset code { --md-code-hl-operator-color: #5c5c5c; --md-code-hl-comment-color: #5c5c5c;
  --md-code-hl-variable-color: #5c5c5c; --md-code-hl-punctuation-color: #5c5c5c; --md-code-hl-generic-color: #5c5c5c; }
[data-md-color-scheme="slate"] .md-typeset code {
  --md-code-hl-constant-color: #b3a6f0; --md-code-hl-operator-color: #c3c7d0;
  --md-code-hl-number-color: #f29088; --md-code-hl-comment-color: #c3c7d0; --md-code-hl-variable-color: #c3c7d0;
}
"""
"""What the theme leaves below the contrast that WCAG 2.1 (AA) asks for, and links that only their colour tells."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The README is the front page; the pages of ``reference.py`` stand under ``reference/``."""
    from mkdocs.structure.files import File

    sys.path.insert(0, str(Path(__file__).parent))
    import reference

    docs = Path(config.docs_dir)
    front = (docs.parent / "README.md").read_text("utf-8").replace("](docs/", "](")
    for path, text in {"index.md": front, **reference.pages()}.items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, "site.css", content=_STYLE))
    return files


def on_post_page(output: str, **_of: object) -> str:
    """A name for the search dialog, which the theme leaves without one."""
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">')
