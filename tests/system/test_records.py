from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import pytest

from deploykit.system.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    name: str
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Base):
    size: int = 0
    extra: Mapping[str, int] = field(default_factory=dict)

    @property
    def double(self) -> int:
        return 2 * self.size


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    name: str
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("negative")


def test_it_is_a_dataclass() -> None:
    row = Row(name="a", size=2)
    assert dataclasses.is_dataclass(row)
    assert [f.name for f in dataclasses.fields(Row)] == ["name", "tags", "size", "extra"]
    assert (row.name, row.tags, row.size, row.extra, row.double) == ("a", (), 2, {}, 4)
    assert dataclasses.asdict(row) == {"name": "a", "tags": (), "size": 2, "extra": {}}
    assert not hasattr(row, "__dict__")


def test_it_behaves_as_the_standard_one() -> None:
    ours = Base(name="a", tags=("x",))
    standard: Any = Standard(name="a", tags=("x",))
    assert repr(ours) == repr(standard).replace("Standard", "Base")
    assert ours == Base(name="a", tags=("x",))
    assert ours != Base(name="b")
    assert ours != standard
    assert hash(ours) == hash(Base(name="a", tags=("x",)))
    assert replace(ours, name="b") == Base(name="b", tags=("x",))
    assert {ours: 1}[Base(name="a", tags=("x",))] == 1


def test_a_default_factory_is_called_for_each() -> None:
    assert Row(name="a").extra is not Row(name="a").extra


def test_fields_do_not_change() -> None:
    row: Any = Row(name="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        del row.name
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
        row.other = 1


@pytest.mark.parametrize("values", [{}, {"name": "a", "colour": 1}])
def test_wrong_arguments_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Row"):
        Row(**values)
    with pytest.raises(TypeError):
        Row("a")  # type: ignore[call-arg]


def test_copies_and_pickles() -> None:
    row = Row(name="a", extra={"k": 1})
    assert copy.deepcopy(row) == copy.copy(row) == row
    assert pickle.loads(pickle.dumps(row)) == row
    assert copy.deepcopy(row).extra is not row.extra


def test_checks_after_the_fields_are_set() -> None:
    assert Checked(size=1).size == 1
    with pytest.raises(ValueError, match="negative"):
        Checked(size=-1)


def test_only_this_kind_is_made() -> None:
    with pytest.raises(TypeError, match="only frozen"):

        @dataclass(frozen=False, slots=True, kw_only=True)
        class Loose:
            name: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Itself:
    name: str


def test_one_that_equals_nothing_else_is_compared_by_identity() -> None:
    one = Itself(name="a")
    assert one == one and one != Itself(name="a") and len({one, Itself(name="a")}) == 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Further(Base):
    more: int = 0


def test_a_standard_one_may_be_made_of_it() -> None:
    made = Further(name="a", more=2)
    assert pickle.loads(pickle.dumps(made)) == made == copy.copy(made) != Further(name="a")
    assert replace(made, more=3).more == 3


def test_what_equals_nothing_equals_itself_inside_as_in_the_standard_one() -> None:
    nothing: Any = float("nan")
    standard = Standard(name=nothing)
    assert (Base(name=nothing) == Base(name=nothing)) == (standard == Standard(name=nothing)) == True  # noqa: E712
