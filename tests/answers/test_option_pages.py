"""The page of options: complete, each option with its owner."""

from __future__ import annotations

from deploykit.backend.options import OptionSpec
from reference import cell, every_option, option_page


def test_the_page_names_every_option_and_its_owner() -> None:
    owned = every_option()
    page = option_page(owned)
    for spec in owned:
        assert f"`{spec.flag}`" in page
        assert f"`{spec.name}`" in page
        assert cell(spec.help) in page
    assert "## Options of every backend" in page
    assert "## Options of vitis-ai" in page


def test_a_shared_option_names_both_owners() -> None:
    spec = OptionSpec(name="depth", kind="choice", choices=("a", "b|c"), help="How deep.", since="2.40")
    page = option_page({spec: ("one", "two")})
    assert "## Options of one and two" in page
    assert "| `--depth` | `depth` | one of a, b\\|c | – | How deep. Since 2.40. |" in page
