"""A ``dataclass`` that is quick to define, for modules that every command or every package loads.

It stays because a query has 0.15 s of processor time, and a package of gigabytes is to take little more than hashing
them: the standard decorator compiles six methods per class each time Python starts, five times the work, which was
0.13 s of every package. Here all classes share the same methods; an instance takes a quarter longer to make, so what
there are thousands of is a standard one. What comes out is a dataclass in every other respect (``fields``, ``replace``,
``is_dataclass``): frozen, slotted, keyword-only. Fields that are no part of ``init`` or of ``compare`` are not for it.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool, slots: bool, kw_only: bool, eq: bool = True):
        """The decorator; the options are written out so that a reader and a type checker see them."""
        if not (frozen and slots and kw_only):
            raise TypeError("only frozen, slotted, keyword-only dataclasses are made here")
        return partial(_record, eq=eq)


__all__ = ["dataclass"]

_MISSING = dataclasses.MISSING


def _record(cls: type[Any], *, eq: bool) -> type[Any]:
    above: list[Any] = [base for base in cls.__mro__[1:] if "__record_plan__" in vars(base)]
    for base in above:
        base.__dataclass_params__.frozen = False  # the standard decorator compiles two methods for whoever says so
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False, slots=True, kw_only=True)(cls)
    made.__init__ = _init
    made.__repr__ = _repr
    if eq:
        made.__eq__, made.__hash__ = _eq, _hash
    made.__setattr__ = _refuse
    made.__delattr__ = _refuse
    made.__getstate__ = _values
    made.__setstate__ = _restore
    for base in (made, *above):
        base.__dataclass_params__.frozen = True  # a standard frozen dataclass may be made of it
    made.__record_plan__ = tuple((f.name, getattr(made, f.name).__set__, f) for f in dataclasses.fields(made))
    return cast("type[Any]", made)


def _init(self: Any, **values: Any) -> None:
    for name, put, field in self.__record_plan__:
        put(self, values.pop(name) if name in values else _default(self, field))
    if values:
        raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {next(iter(values))!r}")
    post = getattr(self, "__post_init__", None)
    if post is not None:
        post()


def _default(self: Any, field: dataclasses.Field[Any]) -> Any:
    if field.default is not _MISSING:
        return field.default
    if field.default_factory is not _MISSING:
        return field.default_factory()
    raise TypeError(f"{type(self).__name__}() missing the keyword argument {field.name!r}")


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, field.name) for field in dataclasses.fields(self))


def _restore(self: Any, state: tuple[Any, ...]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


def _repr(self: Any) -> str:
    parts = ", ".join(f"{name}={getattr(self, name)!r}" for name, _, field in self.__record_plan__ if field.repr)
    return f"{type(self).__qualname__}({parts})"


def _eq(self: Any, other: object) -> Any:
    return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name, _, _ in self.__record_plan__)


def _refuse(self: Any, name: str, *_: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r} of {type(self).__name__}")
