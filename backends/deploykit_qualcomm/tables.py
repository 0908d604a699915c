"""Loads the SDK tables from the data files, following ``extends``. It knows nothing about models.

A file is read once, when a table needs it. A wrong file is an InputError with the dotted path of the wrong entry, for
instance ``sdks/2.33.0.toml: flag[3].confidence``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from packaging.version import InvalidVersion, Version

from deploykit.errors import InputError
from deploykit.findings import Confidence
from deploykit.findings.records import Json, Names, Record, replace
from deploykit.tables.capabilities import ConfigKey, Feature, Flag, ReleaseChange, SdkTable, Status
from deploykit.tables.devices import Fact
from deploykit.tables.reading import parse_rows, read_toml, structure
from deploykit.tables.sources import SourcedRow, SourceFile, read_source_file, write_out

__all__ = ["DATA", "FAMILY", "MACHINES", "WINE", "Tables", "Wheel", "row_key", "tables"]


class ToolFlags(Record):
    """``tools/<tool>.toml``: the flags of one tool. ``read_at`` is the release whose flags the rows describe."""

    schema: int
    tool: str
    read_at: str
    flag: tuple[Flag, ...] = ()


class SdkFile(SourcedRow):
    """``sdks/<version>.toml``: one release and what it changes.

    ``extends`` is the earlier release whose rows hold here too, ``base`` for the files beside ``sdks/``, or empty for a
    release known by name only. ``carrier`` names the package that contained the release if its tools were not seen.
    ``facts`` hold for this release only and are not inherited.
    """

    schema: int
    sdk: str
    version: str
    extends: str
    builds: Names
    month: str = ""
    carrier: str = ""
    facts: Mapping[str, Fact] = {}
    change: tuple[ReleaseChange, ...] = ()
    flag: tuple[Flag, ...] = ()
    feature: tuple[Feature, ...] = ()
    key: tuple[ConfigKey, ...] = ()


class Series(SourcedRow):
    """The content of ``series.toml``: what to do for a version without a table."""

    schema: int
    sdk: str
    below_oldest: Literal["error", "warning"]
    newer: Literal["error", "warning"]
    far_newer: Literal["error", "warning"]
    far_series: int


class WheelPair(Record):
    """Whether one wheel was seen to work with one ONNX Runtime, which reads models up to ``opset`` and ``ir``."""

    version: str
    status: Status
    opset: int
    ir: int
    note: str = ""


class WheelReads(SourcedRow):
    """The newest operator set and IR version that the ONNX Runtime inside a wheel reads."""

    opset: int
    ir: int


class WheelHost(Record):
    """One build of a wheel's compiler: its system, its machine code, and the machines that can execute it.

    ``observed`` lists what was seen of it. ``file`` and ``sha256`` name the file that was read, "" if none was.
    """

    system: Literal["linux", "windows"]
    machine: Literal["x86-64", "aarch64"]
    runs: tuple[Literal["linux-x86-64", "wine-x86-64", "windows-x86-64", "windows-arm64"], ...]
    observed: tuple[Literal["device", "compile", "emulate", "refuse"], ...] = ()
    file: str = ""
    sha256: str = ""


class Wheel(SourcedRow):
    """One onnxruntime-qnn wheel: the QAIRT inside, the form of its provider, and where its compiler runs.

    ``loadable`` is False if ONNX Runtime is only inside the Python module; then ``asked_by`` is the wheel whose
    provider was seen to work with this backend. ``onnxruntime`` are the versions a plugin was tried with,
    ``reads`` is the newest operator set and IR of a wheel's own ONNX Runtime. ``blob`` is the version of the
    context blobs it writes. ``refuses`` are forms written for other releases that this provider refuses or silently
    changes, ``lacks`` operators and forms that it does not have, ``absent`` ONNX operators that it does not know.
    """

    version: str
    sdk: str
    build: str
    provider: Literal["built-in", "append", "plugin"]
    qnn_api: str = ""
    htp_api: str = ""
    blob: str = ""
    loadable: bool = True
    asked_by: str = ""
    refuses: tuple[
        Literal["symmetric-int16", "block-weights", "per-block", "centred-softmax", "float16-of-float"], ...
    ] = ()
    lacks: tuple[
        Literal[
            "allowzero",
            "asymmetric-operand",
            "bool-gather",
            "channel-bias",
            "gather-before-concat",
            "hardsigmoid-range",
            "isnan",
            "mod",
            "reciprocal",
            "sigmoid-before-linear",
        ],
        ...,
    ] = ()
    absent: Names = ()
    reads: WheelReads | None = None
    onnxruntime: tuple[WheelPair, ...] = ()
    host: tuple[WheelHost, ...] = ()

    @property
    def runs_on_linux(self) -> bool:
        """True if Linux x86-64 can execute some build of the compiler without Wine."""
        return any(LINUX in host.runs for host in self.host)


class Arch(Record):
    """One HTP architecture: its number and its capabilities by name; an absent name is unknown."""

    number: int
    facts: Mapping[str, Fact] = {}
    note: str = ""


class ArchFile(Record):
    """The content of ``archs.toml``. ``features`` names the capabilities that are also a feature of every SDK
    release.
    """

    schema: int
    features: Names
    arch: Mapping[str, Arch]


LINUX = "linux-x86-64"
WINE = "wine-x86-64"
# The words for the machines that can execute a compiler.
MACHINES = {
    LINUX: "Linux x86-64",
    WINE: "Linux x86-64 under Wine",
    "windows-x86-64": "Windows x86-64",
    "windows-arm64": "Windows on ARM",
}

DATA = Path(__file__).parent / "data"
FAMILY = "qairt"
BASE = "base"
_LOWERED = "the list describes {read_at}; for earlier releases nobody published one"

T = TypeVar("T")
R = TypeVar("R", Flag, Feature, ConfigKey)


class Tables:
    """The tables of one data folder; every file is read at most once, and only when it is needed."""

    def __init__(self, data: Path = DATA) -> None:
        self.data = data
        self._files: dict[str, SdkFile] = {}
        self._tables: dict[str, SdkTable] = {}
        self._lists: dict[str, Any] = {}
        # The features of each table before their confidence was adjusted to its release.
        self._stated: dict[str, dict[Any, Feature]] = {}

    @cached_property
    def versions(self) -> Names:
        """Every release that has a file, with or without rows, oldest first."""
        return tuple(sorted([path.stem for path in (self.data / "sdks").glob("*.toml")], key=_parsed))

    @cached_property
    def with_rows(self) -> Names:
        """The releases that have tool tables, oldest first."""
        return tuple(version for version in self.versions if self.file(version).extends)

    def file(self, version: str) -> SdkFile:
        """The content of ``sdks/<version>.toml``, without inherited rows."""
        if version not in self._files:
            name = f"sdks/{version}.toml"
            made = structure(SdkFile, self._raw(name, since=version), where=f"{name}:")
            if made.version != version:
                raise InputError(f"{name}: version: {made.version!r} differs from the file name")
            self._files[version] = made
        return self._files[version]

    def table(self, version: str) -> SdkTable:
        """One release with the rows of its ancestors. A release without rows has empty ``flags``."""
        lineage = [version]
        while lineage[-1] not in self._tables:
            parent, where = self.file(lineage[-1]).extends, f"sdks/{lineage[-1]}.toml: extends"
            if parent in ("", BASE):
                break
            if parent not in self.versions:
                raise InputError(f"{where}: there is no sdks/{parent}.toml")
            if _parsed(parent) >= _parsed(lineage[-1]):
                raise InputError(f"{where}: {parent} is not an earlier release than {lineage[-1]}")
            if not self.file(parent).extends:
                raise InputError(f"{where}: {parent} has no rows to extend")
            lineage.append(parent)
        for step in reversed(lineage):
            if step not in self._tables:
                self._tables[step] = self._merged(self.file(step))
        return self._tables[version]

    def _merged(self, file: SdkFile) -> SdkTable:
        """The rows of the parent release, replaced or extended by those of one file."""
        name, parent = f"sdks/{file.version}.toml", self._tables.get(file.extends)
        flags = dict[Any, Flag]()
        features = dict[Any, Feature]()
        keys = dict[Any, ConfigKey]()
        before = dict[Any, Feature]()
        if parent is not None:
            flags, before = {row_key(row): row for row in parent.flags}, {row_key(row): row for row in parent.features}
            features, keys = dict(self._stated[file.extends]), {row_key(row): row for row in parent.config_keys}
        elif file.extends:
            features = {row_key(row): row for row in self._arch_features(file.version)}
            _replace_rows(
                features, self.rows(Feature, "features.toml", "feature", file.version), "features.toml: feature"
            )
            rows = self.rows(ConfigKey, "config_keys.toml", "key", file.version)
            _replace_rows(keys, rows, "config_keys.toml: key")
        # A list of flags describes the release at which it was read; for earlier ones it is an inference.
        for tool in self.tools if file.extends else ():
            note, here = _LOWERED.format(read_at=tool.read_at), _parsed(tool.read_at) <= _parsed(file.version)
            if parent is None:
                sure = () if here else [row for row in tool.flag if row.confidence is not Confidence.INFERRED]
                lowered = {
                    row_key(row): replace(row, confidence=Confidence.INFERRED, confidence_note=note) for row in sure
                }
                _replace_rows(flags, tool.flag, f"tools/{tool.tool}.toml: flag")
                flags |= lowered
            elif here and _parsed(file.extends) < _parsed(tool.read_at):
                raised = [row for row in tool.flag if flags[row_key(row)].confidence_note == note]
                flags |= {row_key(row): replace(row, since=file.version) for row in raised}
        _replace_rows(flags, file.flag, f"{name}: flag")
        _replace_rows(features, file.feature, f"{name}: feature")
        _replace_rows(keys, file.key, f"{name}: key")
        self._stated[file.version] = features
        return SdkTable(
            sdk=file.sdk,
            version=file.version,
            extends=file.extends,
            builds=file.builds,
            source=file.source,
            confidence=file.confidence,
            flags=tuple(flags.values()),
            features=tuple(_judged(row, before.get(key), file.version) for key, row in features.items()),
            config_keys=tuple(keys.values()),
            changes=file.change,
            carrier=file.carrier,
            facts=file.facts,
        )

    def _arch_features(self, since: str) -> Iterator[Feature]:
        """Yields the capabilities of architectures as features of the oldest release with rows."""
        for arch, row in self.archs.arch.items():
            for name in self.archs.features:
                fact = row.facts.get(name)
                if fact is not None:
                    yield Feature(
                        feature=name.replace("_", "-"),
                        arch=arch,
                        status=Status.SUPPORTED if fact.value is True else Status.UNSUPPORTED,
                        note=fact.note,
                        source=fact.source,
                        confidence=fact.confidence,
                        contradicts=fact.contradicts,
                        since=since,
                    )

    def all(self) -> tuple[SdkTable, ...]:
        """Every release that has rows, oldest first."""
        return tuple(self.table(version) for version in self.with_rows)

    @cached_property
    def series(self) -> Series:
        """What to do for a version without a table."""
        return structure(Series, self._raw("series.toml"), where="series.toml:")

    @cached_property
    def archs(self) -> ArchFile:
        """The capabilities of each HTP architecture."""
        return structure(ArchFile, self._raw("archs.toml"), where="archs.toml:")

    @cached_property
    def tools(self) -> tuple[ToolFlags, ...]:
        """The flags of every tool, as of the release at which its list was read."""
        found = []
        # The oldest release, which extends the files beside ``sdks/``.
        oldest = next((version for version in self.versions if self.file(version).extends == BASE), "")
        for path in sorted((self.data / "tools").glob("*.toml")):
            name = f"tools/{path.name}"
            found.append(structure(ToolFlags, self._raw(name, since=oldest), where=f"{name}:"))
            if found[-1].tool != path.stem:
                raise InputError(f"{name}: tool: {found[-1].tool!r} differs from the file name")
        return tuple(found)

    @cached_property
    def wheels(self) -> tuple[Wheel, ...]:
        """The onnxruntime-qnn wheels, oldest first."""
        return self.rows(Wheel, "wheels.toml", "wheel")

    @cached_property
    def source_file(self) -> SourceFile:
        """The short names of sources with their full names, and the releases they describe."""
        return read_source_file(self.data / "sources.toml")

    def rows(self, kind: type[T], name: str, key: str, since: str = "") -> tuple[T, ...]:
        """The rows of a file that is one list."""
        if name not in self._lists:
            raw = self._raw(name, since=since)
            for unknown in raw.keys() - {"schema", key}:
                raise InputError(f"{name}: {unknown}: unknown key", next=f"known keys: schema, {key}")
            self._lists[name] = parse_rows(kind, raw.get(key), where=f"{name}: {key}")
        found: tuple[T, ...] = self._lists[name]
        return found

    def _raw(self, name: str, *, since: str = "") -> Json:
        """A file with its derived keys added; a file that sets one itself is refused, as it could contradict them."""
        raw = read_toml(self.data / name, shipped=True)
        write_out(raw, self.source_file.sources)
        for section in ("flag", "feature", "key"):
            rows = raw.get(section, ())
            for index, row in enumerate(rows if isinstance(rows, list) else ()):
                if not isinstance(row, dict):
                    continue
                for filled in ("since", "extent") if section == "feature" else ("since",):
                    if filled in row:
                        raise InputError(f"{name}: {section}[{index}].{filled}: unknown key", why="the loader fills it")
                row["since"] = since
                if section == "flag" and row.setdefault("tool", raw.get("tool")) != raw.get("tool", row["tool"]):
                    raise InputError(f"{name}: flag[{index}].tool: {row['tool']!r} is not the tool of this file")
                if section == "feature" and isinstance(row.get("source"), list):
                    extent = self.source_file.extent_of(map(str, row["source"]))
                    row |= {} if extent is None else {"extent": list(extent)}
        return raw


@cache
def tables() -> Tables:
    """The tables that are shipped."""
    return Tables()


def _judged(row: Feature, before: Feature | None, version: str) -> Feature:
    """A row as it holds at one release; an inference if its sources describe other releases.

    An unchanged row is the same object as the parent release's.
    """
    if row.extent and row.confidence is not Confidence.INFERRED:
        first, last = row.extent
        if _is_before(version, first) or (last and _is_before(last, version)):
            seen = f"its sources speak of {first}{'' if last == first else f' to {last}' if last else ' and later'}"
            note = "; ".join(part for part in (row.confidence_note, f"{seen}; for this release by inference") if part)
            row = replace(row, confidence=Confidence.INFERRED, confidence_note=note)
    if before is None or row is before:
        return row
    return before if replace(row, since=before.since) == before else replace(row, since=version)


def _is_before(version: str, other: str) -> bool:
    """True if a version is older, by the numbers that both have: 2.36 is not older than 2.36.1, as it means
    the series.
    """
    pairs = zip(_parsed(version).release, _parsed(other).release, strict=False)
    return next((one < two for one, two in pairs if one != two), False)


def _replace_rows(into: dict[Any, R], rows: Iterable[R], where: str) -> None:
    seen = set[Any]()
    for index, row in enumerate(rows):
        if row_key(row) in seen:
            raise InputError(f"{where}[{index}]: the same row occurs twice: {row_key(row)}")
        seen.add(row_key(row))
        into[row_key(row)] = row


def row_key(row: Flag | Feature | ConfigKey) -> Any:
    """The key that identifies a row of a table."""
    match row:
        case Flag():
            return row.tool, row.flags
        case Feature():
            return row.feature, row.tool, row.arch
        case ConfigKey():
            return row.path


@cache
def _parsed(version: str) -> Version:
    try:
        return Version(version)
    except InvalidVersion:
        raise InputError(f"sdks/{version}.toml: {version!r} is not a version") from None
