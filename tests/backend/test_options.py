"""Specs of options: what is a right value, in Python, on a command line and in an environment variable."""

from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploykit.backend.options import OptionSpec, OptionValue, check_value, read_value
from deploykit.backend.plugins import all_options
from deploykit.backend.requests import CORE_OPTIONS
from deploykit.cli.options import SpecOption
from deploykit.errors import UsageError
from tables import each_row

NAMES = st.lists(st.sampled_from(["a", "depth", "x1", "node"]), min_size=1, max_size=3).map("_".join)
TEXTS = st.text("ab-=_,:. /\\\"'…é\n\t*$", max_size=8)
NUMBERS = ("integer", "number")
INSTALLED = (*CORE_OPTIONS, *all_options())


def value_of(spec: OptionSpec) -> st.SearchStrategy[Any]:
    """Any right value of an option."""
    low = None if spec.low is None else int(spec.low)
    high = None if spec.high is None else int(spec.high)
    return {
        "flag": st.booleans(),
        "switch": st.booleans(),
        "integer": st.integers(low, high),
        "number": st.floats(spec.low, spec.high, allow_nan=False, allow_infinity=False),
        "text": TEXTS,
        "choice": st.sampled_from(spec.choices or ("",)),
        "path": TEXTS.map(Path),
        "texts": st.lists(TEXTS, max_size=4).map(tuple),
    }[spec.kind]


@st.composite
def specs(draw: st.DrawFn) -> OptionSpec:
    """Any option that a third party could declare."""
    kind: Any = draw(st.sampled_from(["flag", "switch", "integer", "number", "text", "choice", "path", "texts"]))
    bounds = (
        sorted(draw(st.tuples(st.integers(-99, 99), st.integers(-99, 99)))) if kind in ("integer", "number") else []
    )
    choices = tuple(draw(st.lists(TEXTS, min_size=1, unique=True))) if kind == "choice" else ()
    low, high = (float(bounds[0]), float(bounds[1])) if bounds else (None, None)
    bare = OptionSpec(name=draw(NAMES), kind=kind, help="What it is.", choices=choices, low=low, high=high)
    default = draw(st.none() | value_of(bare)) if kind not in ("flag", "texts") else None
    return OptionSpec(name=bare.name, kind=kind, help=bare.help, choices=choices, low=low, high=high, default=default)


def argv(spec: OptionSpec, value: OptionValue) -> list[str]:
    """The words that mean the value."""
    if spec.kind == "switch":
        return [spec.flag if value else f"--no-{spec.flag[2:]}"]
    if spec.kind == "flag":
        return [spec.flag] if value else []
    return [f"{spec.flag}={text}" for text in (value if isinstance(value, tuple) else (value,))]


def parsed(spec: OptionSpec, words: list[str], **settings: Any) -> OptionValue:
    """What the command line makes of the words."""
    command = click.Command("c", params=[SpecOption((spec,))], callback=lambda **values: values)
    (value,) = command.main(words, standalone_mode=False, **settings).values()
    return check_value(spec, value)


@given(st.data(), st.sampled_from(INSTALLED) | specs())
def test_every_value_survives_the_command_line(data: st.DataObject, spec: OptionSpec) -> None:
    value = data.draw(value_of(spec))
    assert parsed(spec, argv(spec, value)) == value and check_value(spec, value) == value


@given(st.sampled_from(INSTALLED) | specs())
def test_without_a_word_an_option_is_its_default(spec: OptionSpec) -> None:
    nothing = {"flag": False, "texts": ()}.get(spec.kind)
    assert parsed(spec, []) == (nothing if spec.default is None else spec.default)


@given(
    specs(), st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.lists(st.integers())
)
def test_a_value_is_in_the_options_type_or_refused(spec: OptionSpec, value: Any) -> None:
    types: dict[str, type[Any]] = {
        "flag": bool, "switch": bool, "integer": int, "number": float, "text": str, "choice": str, "path": Path
    }  # fmt: skip
    try:
        checked = check_value(spec, value)
    except UsageError as error:
        assert spec.flag in error.what and spec.expects in error.what
        return
    if spec.kind == "texts":
        assert isinstance(checked, tuple) and all(isinstance(text, str) for text in checked)
    elif checked is not None:
        assert type(checked) is types[spec.kind] or isinstance(checked, types[spec.kind])
        assert isinstance(checked, bool) == (spec.kind in ("flag", "switch"))
    if spec.kind in NUMBERS and isinstance(checked, int | float):
        assert spec.low is not None and spec.high is not None and spec.low <= checked <= spec.high
    if spec.kind == "choice" and checked is not None:
        assert checked in spec.choices


COUNT = OptionSpec(name="count", kind="integer", help="How many.", low=0, high=3)


def test_two_backends_with_other_limits_share_a_name() -> None:
    """The command line takes what one of them takes; the one that packages has the last word."""
    wider = OptionSpec(name="count", kind="integer", help="How many.", low=0, high=9)
    command = click.Command("c", params=[SpecOption((COUNT, wider), ("one", "two"))], callback=lambda count: count)
    assert command.main(["--count", "7"], standalone_mode=False) == 7
    with pytest.raises(UsageError, match="from 0 to 9"):
        command.main(["--count", "10"], standalone_mode=False)


@each_row(
    ("spec", "expects", "default", "unset"),
    (OptionSpec("a_b", "flag", help=""), "true or false", "", False),
    (OptionSpec("a_b", "switch", help="", default=True), "true or false", "on", True),
    (OptionSpec("a_b", "switch", help="", default=False), "true or false", "off", False),
    (OptionSpec("a_b", "integer", help="", low=1, default=3), "a whole number of at least 1", "3", 3),
    (OptionSpec("a_b", "number", help="", high=2.5, default=2.0), "a number of at most 2.5", "2", 2.0),
    (OptionSpec("a_b", "number", help="", low=0, high=1), "a number from 0 to 1", "", None),
    (OptionSpec("a_b", "choice", help="", choices=("x", "y"), default="y"), "one of x, y", "y", "y"),
    (OptionSpec("a_b", "text", help=""), "text", "", None),
    (OptionSpec("a_b", "path", help=""), "a path", "", None),
    (OptionSpec("a_b", "texts", help=""), "text, or several", "", ()),
)
def test_an_option_in_words(spec: OptionSpec, expects: str, default: str, unset: OptionValue) -> None:
    assert (spec.expects, spec.default_text, spec.unset) == (expects, default, unset)
    assert (spec.flag, spec.envvar) == ("--a-b", "DEPLOYKIT_A_B")
    assert OptionSpec("a_b", "flag", help="", spelling="with").flag == "--with"


@each_row(
    ("kind", "text", "value"),
    *(("flag", text, True) for text in ("1", "true", "Yes", "ON")),
    *(("switch", text, False) for text in ("0", "false", "No", "OFF")),
    ("integer", "-3", -3),
    ("integer", "+4", 4),
    ("number", "-1.5e1", -15.0),
    ("text", "1", "1"),
    ("path", "a/b", Path("a/b")),
    ("texts", "a,b", ("a,b",)),
    *((kind, text, None) for kind, text in (("flag", "2"), ("integer", "1.0"), ("integer", "1_0"), ("number", "x"))),
    *(("number", text, None) for text in ("inf", "nan")),
)
def test_a_text_means_a_value_or_is_refused(kind: Any, text: str, value: OptionValue) -> None:
    spec = OptionSpec("count", kind, help="")
    if value is not None:
        assert read_value(spec, text) == value
        return
    with pytest.raises(UsageError) as refused:
        read_value(spec, text)
    assert (
        refused.value.what == f"--count {float(text) if text in ('inf', 'nan') else text}: {spec.expects} is expected"
    )
