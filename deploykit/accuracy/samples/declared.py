"""What the user says about an input: ``--input NAME=VALUE | LOW..HIGH | FILE.npy``, parsed and checked at once.

No text of a declaration is looked at again after this, and no path leaves it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeAlias

from deploykit.accuracy.samples.calibration import places_in
from deploykit.accuracy.samples.inputs import InputSpec
from deploykit.errors import InputError, UsageError
from deploykit.system.files import open_regular

__all__ = ["Declaration", "parse_declarations"]

_Number: TypeAlias = int | float
_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*")
_ONE = re.compile(rf"\s*({_NUMBER}|true|false)\s*")
_FORMS = "NAME=VALUE (a number, or numbers with commas), NAME=LOW..HIGH or NAME=FILE.npy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What one input is: fixed ``values`` that broadcast to its shape, a range with both ends included, or a file.

    A file holds one or several samples of the input, and ``sha256`` is that of its bytes.
    """

    name: str
    kind: Literal["value", "range", "file"]
    values: tuple[_Number, ...] = ()
    low: _Number = 0
    high: _Number = 0
    file: Path | None = field(default=None, repr=False)
    sha256: str = ""

    @property
    def described(self) -> str:
        """The declaration in words, without a path."""
        match self.kind:
            case "value":
                return f"declared as {', '.join(map(str, self.values))}"
            case "range":
                return f"declared as {self.low} to {self.high}"
            case "file":
                return f"declared by the file {'' if self.file is None else self.file.name}"

    def to_json(self) -> dict[str, Any]:
        """Plain values for the manifest: a file by its name and SHA-256, never by its path."""
        match self.kind:
            case "value":
                return {"kind": "value", "values": list(self.values)}
            case "range":
                return {"kind": "range", "low": self.low, "high": self.high}
            case "file":
                return {"kind": "file", "file": "" if self.file is None else self.file.name, "sha256": self.sha256}


def parse_declarations(texts: Iterable[str], inputs: tuple[InputSpec, ...]) -> dict[str, Declaration]:
    """One declaration per text, by input. Raises UsageError for an unknown input or a value that its type or shape
    does not hold, InputError for a file that does not fit.
    """
    found: dict[str, Declaration] = {}
    for text in texts:
        spec, said = _split(text, inputs)
        if spec.name in found:
            raise UsageError(f"--input {text}: {spec.name!r} is declared twice", next="give it once")
        found[spec.name] = _declaration(text, spec, said)
    return found


def _split(text: str, inputs: tuple[InputSpec, ...]) -> tuple[InputSpec, str]:
    """The input and what is said of it. Names may hold '=' themselves: the longest that matches is meant."""
    matching = [spec for spec in inputs if text.startswith(f"{spec.name}=")]
    if matching:
        spec = max(matching, key=lambda item: len(item.name))
        return spec, text[len(spec.name) + 1 :]
    name, equals, _ = text.partition("=")
    if not equals:
        raise UsageError(f"--input {text}: says nothing of an input", next=f"write {_FORMS}")
    names = [spec.name for spec in inputs]
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the inputs are {', '.join(map(repr, names)) or 'none'}"
    raise UsageError(f"--input {text}: the model has no input {name!r}", next=hint)


def _declaration(text: str, spec: InputSpec, said: str) -> Declaration:
    spec.numpy_type  # noqa: B018 (refuses inputs that hold text)
    ends = _RANGE.fullmatch(said)
    if ends is not None:
        low, high = (_number(text, spec, end) for end in ends.groups())
        if low > high:
            raise UsageError(f"--input {text}: the range is empty", why=f"{low} is above {high}")
        return Declaration(name=spec.name, kind="range", low=low, high=high)
    parts = [_ONE.fullmatch(part) for part in said.split(",")]
    if all(parts):
        values = tuple(_number(text, spec, part[1]) for part in parts if part is not None)
        last = spec.shape[-1] if spec.shape else 1
        if len(values) != 1 and last is not None and len(values) != last:
            why = f"the last dimension of {spec} is {last}" if spec.shape else f"{spec} is a single number"
            advice = "give one value for all, or one for each"
            raise UsageError(f"--input {text}: {len(values)} values", why=why, next=advice)
        return Declaration(name=spec.name, kind="value", values=values)
    if said.endswith((".npy", ".npz")):
        path = Path(said)
        if not places_in(path, (spec,)):
            raise InputError(f"{path}: holds no sample for the input {spec}")
        digest = hashlib.sha256()
        with open_regular(path) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        return Declaration(name=spec.name, kind="file", file=path, sha256=digest.hexdigest())
    raise UsageError(f"--input {text}: neither numbers nor a range nor a .npy file", next=f"write {_FORMS}")


def _number(text: str, spec: InputSpec, word: str) -> _Number:
    """A number that the type of the input holds."""
    import numpy as np

    from deploykit.accuracy.samples.domains import stored_integers

    dtype = spec.numpy_type
    if word in ("true", "false"):
        if dtype.kind != "b":
            raise UsageError(f"--input {text}: {word} for the input {spec}", next="give a number")
        return int(word == "true")
    value = float(word)
    if spec.is_float:
        with np.errstate(over="ignore"):
            if not np.isfinite(np.asarray(value).astype(dtype).astype(np.float64)):
                raise UsageError(f"--input {text}: {word} is more than {spec.dtype} holds")
        return value
    if not value.is_integer():
        raise UsageError(f"--input {text}: {word} is no whole number", why=f"the input is {spec}")
    whole = int(word) if re.fullmatch(r"[-+]?\d+", word) else int(value)
    low, high = stored_integers(spec.dtype) or (0, 1)
    if not low <= whole <= high:
        raise UsageError(f"--input {text}: {word} is not within {low}..{high}", why=f"the input is {spec}")
    return whole
