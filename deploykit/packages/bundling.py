"""Packs a failing case into one file for a report: the graph without weights, encodings, logs, versions.

The file lists its own contents. Accounts, machine names, folders and addresses are removed. Nothing is sent anywhere.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from deploykit.errors import DefectError, InputError, PackageError
from deploykit.findings.records import Published
from deploykit.model.emptying import Emptied, emptied
from deploykit.model.load import load_model
from deploykit.model.weights import load_small_weights
from deploykit.system.files import read_regular, unwritable
from deploykit.system.folders import workspace

__all__ = ["pack_bundle"]

_CASE, _READ_ME = "case.json", "README.txt"
_LARGEST = 512 << 20
_BLOCK = 1 << 16  # elements written at once
_EPOCH = (1980, 1, 1, 0, 0, 0)


class Bundle(Published):
    """One case: its path, and a description of each file in it."""

    path: Path
    contents: Mapping[str, str]


def pack_bundle(
    model: Path,
    out: Path,
    *,
    encodings: Path | None = None,
    logs: Iterable[Path] = (),
    asked: Mapping[str, str] | None = None,
    versions: str = "",
    numbered: bool = False,
) -> Bundle:
    """Write a case. ``asked`` holds the arguments of the failed command; ``numbered`` also replaces names by numbers.

    Raises InputError for an unreadable file, PackageError if ``out`` exists or cannot be written.
    """
    home = os.path.expanduser("~")  # noqa: PTH111 (Path.home raises where there is none)
    account = ""
    with suppress(OSError, KeyError, ImportError):  # an account without a name, as in some containers
        account = getpass.getuser()
    personal = personal_words(account, platform.node(), Path(home).name)
    names = BundleNames(numbered=numbered, personal=personal)
    made = emptied(load_small_weights(load_model(model), limit=1024), names.of_kind("t"), names.of_kind("n"))
    texts = {"versions.txt": versions}
    if encodings is not None:
        texts["model.encodings"] = _encodings(encodings, names, personal)
    for number, log in enumerate(logs, 1):
        text = read_regular(log, limit=_LARGEST).decode("utf-8", "replace")
        texts[f"log-{number}.txt"] = clean_text(text, names, personal)
    contents = _contents(made, texts, names)
    said = {key: clean_text(value, names, personal) for key, value in (asked or {}).items()}
    texts[_CASE] = json.dumps({"schema": 1, "asked": said, "contents": contents}, indent=1)
    lines = [f"{name}: {text}" for name, text in contents.items()]
    head = "A case for a report about deploykit. In this file:"
    texts[_READ_ME] = "\n".join([head, "", *lines, "", _NOT_INSIDE, _TO_READ, ""])
    files = {"model.onnx": made.model.SerializeToString(deterministic=True)}
    files |= {name: text.encode() for name, text in texts.items()}
    # Final check: search the bytes themselves for forbidden words.
    for name, data in files.items():
        low = data.lower()
        if any(word.encode() in low for word in personal):
            raise DefectError(
                f"{name} of the bundle would hold the name of an account or a machine; nothing was written"
            )
    _write(out, files, made.files)
    return Bundle(path=out, contents=contents)


def _encodings(path: Path, names: BundleNames, personal: Iterable[str]) -> str:
    """Return the encodings file in its own layout, with names as in the model and other texts cleaned."""
    data = read_regular(path, limit=_LARGEST)
    tensor = names.of_kind("t")

    def clean(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            renames = key.endswith("_encodings")
            return {tensor(name) if renames else name: clean(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [clean(item) for item in value]
        if isinstance(value, str):
            return tensor(value) if key == "name" else clean_text(value, names, personal)
        return value

    try:
        return json.dumps(clean(json.loads(data)), indent=1)
    except ValueError as error:
        raise InputError(f"{path}: is not JSON", why=str(error)) from None
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply") from None


def _contents(made: Emptied, texts: Mapping[str, str], names: BundleNames) -> dict[str, str]:
    changed = sum(new != old for old, new in names.given.items())
    told = {
        "model.onnx": f"the graph; {made.replaced} stored values are ones of the same type and shape; {made.kept} "
        f"are as they were: small integers and settings (factors, bounds, grids of quantizers); no documentation, "
        f"no metadata; {changed} of {len(names.given)} names are numbers",
        "model.encodings": "the encodings as they were, ranges and scales included; names as in the graph",
        "versions.txt": "deploykit --version -v",
        _CASE: "what was asked for, and this list",
        _READ_ME: "this list, for people",
    }
    told |= dict.fromkeys(made.files, "ones, for the weights of the graph")
    for name in texts:
        if name.startswith("log-"):
            told[name] = "a log; paths, addresses, account and machine are replaced, names are as in the graph"
    present = {"model.onnx", _CASE, _READ_ME, *made.files, *texts}
    return {name: text for name, text in told.items() if name in present}


_NOT_INSIDE = "Not inside: weights, samples, paths, the names of the account and of the machine."
_TO_READ = "To see it again: unpack the file, then deploykit check model.onnx --target DEVICE"


def _write(out: Path, files: Mapping[str, bytes], stubs: Mapping[str, tuple[bytes, int]]) -> None:
    """Write all files with a fixed date, so that the same case has the same bytes.

    ``stubs`` maps a file name to one element and the file's length in bytes.
    """
    try:
        with workspace(out.parent, out.name) as room:
            made = room / "case.zip"
            with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
                for name in sorted(files):
                    archive.writestr(zipfile.ZipInfo(name, _EPOCH), files[name], zipfile.ZIP_DEFLATED)
                for name, (element, size) in sorted(stubs.items()):
                    info = zipfile.ZipInfo(name, _EPOCH)
                    info.compress_type = zipfile.ZIP_DEFLATED
                    block = element * _BLOCK
                    with archive.open(info, "w", force_zip64=True) as stream:
                        for start in range(0, size, len(block)):
                            stream.write(block[: size - start])
            if os.path.lexists(out):
                raise PackageError(f"{out}: exists", next="name another file")
            made.rename(out)
    except OSError as error:
        raise unwritable(out, error) from None


_NOBODY = frozenset({"root", "user", "home", "localhost", "runner", "build", "work", "model"})
_TOKEN = re.compile(r"[A-Za-z]:[\\/][^\s'\"`,;()<>|=]+|\\\\[^\s'\"`,;()<>|=]+|~?/[^\s'\"`,;:()<>|=\]\[{}]+|[\w./$-]+")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_ADDRESS = re.compile(r"\b(?:10|192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2,3}\b")
_PATH = re.compile(r"[A-Za-z]:[\\/]|\\\\|~?/")
_SUFFIX = re.compile(r"\.[A-Za-z]\w{0,9}$")


class BundleNames(Struct, kw_only=True):
    """Names for tensors and nodes in a bundle: the original ones, or numbers in order of appearance if ``numbered``.

    A name that contains a ``personal`` word is always replaced by a number.
    """

    numbered: bool
    personal: tuple[str, ...]
    given: dict[str, str] = {}

    def of_kind(self, letter: str) -> Callable[[str], str]:
        """Return a function that names one kind of thing (``t`` tensors, ``n`` nodes).

        Equal names get equal results.
        """

        def name(old: str) -> str:
            if not old:
                return old
            if old not in self.given:
                hidden = self.numbered or any(word in old.lower() for word in self.personal)
                self.given[old] = f"{letter}{len(self.given) + 1}" if hidden else old
            return self.given[old]

        return name

    @property
    def scopes(self) -> frozenset[str]:
        """The prefixes of names with slashes: a text may mention such a scope, which looks like a folder."""
        found = set()
        for name in self.given:
            parts = name.split("/")
            found |= {"/".join(parts[:count]) for count in range(2, len(parts))}
        return frozenset(found)


def personal_words(account: str, machine: str, home: str) -> tuple[str, ...]:
    """Return words that must not appear, in lower case, without those that are too short or too general."""
    words = (word.lower() for word in (account, machine, machine.partition(".")[0], home))
    return tuple(sorted({word for word in words if len(word) > 2 and word not in _NOBODY}, key=len, reverse=True))


def clean_text(text: str, names: BundleNames, personal: Iterable[str]) -> str:
    """Replace every absolute path, address and personal word in a text; names are replaced as in the model."""
    mangled = {re.sub(r"\W", "_", old): new for old, new in names.given.items() if new != old}
    known, scopes = {**mangled, **names.given}, names.scopes

    def token(found: re.Match[str]) -> str:
        word, plain = found[0], found[0].rstrip(".:/-")
        rest = word[len(plain) :]
        if plain in known:
            return known[plain] + rest
        if plain in scopes:
            return f"<scope>{rest}" if names.numbered else word
        if _PATH.match(plain) and plain.count("/") + plain.count("\\") > 1:
            suffix = _SUFFIX.search(plain)
            return f"<path>{suffix[0] if suffix else ''}{rest}"
        return word

    text = _TOKEN.sub(token, _MAIL.sub("<mail>", text))
    text = _ADDRESS.sub("<address>", text)
    for word in personal:
        text = re.sub(re.escape(word), "<name>", text, flags=re.IGNORECASE)
    return text
