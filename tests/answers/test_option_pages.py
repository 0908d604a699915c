"""The page of options: complete, each option with its owner."""

from __future__ import annotations

from deploykit.answers.option_pages import OptionEntry, every_option, find_options
from deploykit.backend.options import OptionSpec
from reference import cell, option_page


def test_the_page_names_every_option_and_its_owner() -> None:
    entries = every_option()
    page = option_page(entries)
    for entry in entries:
        assert f"`{entry.spec.flag}`" in page
        assert f"`{entry.spec.name}`" in page
        assert cell(entry.spec.help) in page
    assert "## Options of every backend" in page
    assert "## Options of vitis-ai" in page


def test_a_shared_option_names_both_owners() -> None:
    spec = OptionSpec(name="depth", kind="choice", choices=("a", "b|c"), help="How deep.", since="2.40")
    page = option_page([OptionEntry(spec=spec, backends=("one", "two"))])
    assert "## Options of one and two" in page
    assert "| `--depth` | `depth` | one of a, b\\|c | – | How deep. Since 2.40. |" in page


def test_an_option_is_found_by_every_spelling() -> None:
    for name in ("exclude_node", "exclude-node", "--exclude-node"):
        (entry,) = find_options(name, every_option())
        assert entry.backends == ("vitis-ai",)
    assert find_options("input", every_option()) == find_options("inputs", every_option())
