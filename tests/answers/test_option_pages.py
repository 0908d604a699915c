"""Generated pages: options complete, each with its owner; rules with the words of what they say."""

from __future__ import annotations

from pathlib import Path

from deploykit import check
from deploykit.backend.options import OptionSpec
from reference import cell, every_option, option_page, pages


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


def test_a_rule_is_found_by_the_words_of_what_it_says() -> None:
    """The site's search knows the pages' words; names of the user's are in none of them."""
    data, told = Path(__file__).parents[1] / "data/aimet", pages()
    vit = check(data / "vit/model.onnx", target="sm8650", sdk="2.33")
    found = (*vit, *check(data / "cnn/model.onnx", target="vek385", encodings=data / "cnn/w8a16.v1.0.0.encodings"))
    assert len({finding.code for finding in found}) > 2
    for finding in found:
        page = told[f"reference/rules/{finding.code}.md"]
        words = [word.strip(",:;()") for word in finding.message.split() if word.islower() and len(word) > 4]
        assert sum(word in page for word in words) >= 0.7 * len(words), (finding.code, finding.message)
