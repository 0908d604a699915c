"""What the documentation tells its reader to type is typed here; what it only shows has a form that exists."""

import json
import re
from pathlib import Path

import pytest

from documents import blocks_of, forms_of, problem_of_form, run_page

ROOT = Path(__file__).parents[1]
PAGES = {str(path.relative_to(ROOT)): path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
TEXTS = {name: path.read_text("utf-8") for name, path in PAGES.items()}
RUN = [
    name
    for name, text in TEXTS.items()
    if any(block.language in ("sh", "python") and not block.reason for block in blocks_of(text))
]
QUICK = {"README.md"}
"""What takes a few seconds; the other pages are run with the heavy tests."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.heavy) for n in RUN])
def test_every_block_of_the_page_does_as_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    # Pages with models of the repository are read in a checkout.
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    run_page(TEXTS[name])
    if name == "docs/tutorial-quantize.md":
        _the_packages_of_the_tutorial_are_as_it_says()


def _the_packages_of_the_tutorial_are_as_it_says() -> None:
    told = {name: json.loads(Path(name, "manifest.json").read_text()) for name in ("first", "second", "best", "seen")}
    rights = {name: manifest["status"]["right"] for name, manifest in told.items()}
    assert rights == {"first": "yes", "second": "yes", "best": "yes", "seen": "yes"}
    assert "DK205" in {finding["code"] for finding in told["first"]["findings"]}  # what the encodings lose is told
    assert told["seen"]["quantization"]["calibration"]["kind"] == "images"
    ladder = told["best"]["quantization"]["ladder"]
    reached = {row["precision"]: row["sqnr_db"] for row in ladder["candidates"]}
    assert reached["w16a16"] - reached["w8a8"] < 2
    assert ladder["steps"][-1]["raised"]["best"]["to"] == "float16"
    page = Path("ladder.html").read_text("utf-8")
    assert re.search('<td class="words">w8a8 <span.*</span><td class="words">reaches<td', page)
    assert "How the precision was chosen" in Path("best", "report.html").read_text("utf-8")


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if any(forms_of(text))])
def test_every_form_on_the_page_exists(name: str) -> None:
    told = {line: problem_of_form(line) for line in forms_of(TEXTS[name])}
    assert {line: problem for line, problem in told.items() if problem} == {}


def test_a_block_that_ends_or_answers_otherwise_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page("```sh\ndeploykit check --nonsense  # status 2\n```\n")
    run_page("*Not run by the tests: there is no such thing.*\n```sh\nno-such-thing\n```\n")
    run_page("```python\nprint(1 + 1, 'and', 3)\n```\n\n```text\n2 … 3\n```\n")
    with pytest.raises(AssertionError, match="the page shows '4'"):
        run_page("```python\nprint(1 + 1)\n```\n\n```text\n4\n```\n")
    with pytest.raises(AssertionError, match="nonsense"):
        run_page("```sh\ndeploykit check --nonsense\n```\n")


def test_every_link_between_pages_leads_somewhere() -> None:
    dead = [
        f"{name}: {link}"
        for name, path in PAGES.items()
        for link in re.findall(r"\]\(([^)#\s]+)[^)\s]*\)", re.sub(r"`[^`]*`", "", TEXTS[name]))
        if "://" not in link and not link.startswith("mailto:") and not (path.parent / link).exists()
    ]
    tests = [(name, test) for name in PAGES for test in re.findall(r"\btests/[\w/]+\.py\b", TEXTS[name])]
    assert dead + [f"{name}: {test}" for name, test in tests if not (ROOT / test).exists()] == []


def test_there_are_few_pages_and_the_front_page_is_short() -> None:
    assert len([name for name in PAGES if name.startswith("docs/") and "/skill/" not in name]) <= 25
    assert TEXTS["README.md"].count("\n") <= 100 and TEXTS["README.md"].count("](") <= 15
    assert "](docs/tutorial-quantize.md)" in TEXTS["README.md"]


def test_the_two_set_up_commands_stand_as_promised() -> None:
    commands = [line.strip() for line in TEXTS["README.md"].splitlines() if line.startswith("    python3 -m venv")]
    assert commands == [
        "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/deploykit demo",
        "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest",
    ]
