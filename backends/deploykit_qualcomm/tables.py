"""Loads the SDK tables from the data files, following ``extends``; it answers no question about a model.

Files are read when a table that needs them is asked for, once. A file that is wrong is an InputError with the dotted
path of the offending entry, for instance ``sdks/2.33.0.toml: flag[3].confidence``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

from packaging.version import InvalidVersion, Version

from deploykit.errors import InputError
from deploykit.findings import Confidence
from deploykit.tables.capabilities import ConfigKey, Feature, Flag, SdkTable, Status
from deploykit.tables.reading import read_toml, structure
from deploykit.tables.sources import Extent, SourceFile, extent_of, read_source_file, write_out
from deploykit_qualcomm.extents import judged_features
from deploykit_qualcomm.rows import (
    ArchFile,
    CompatRule,
    CompatRuleFile,
    FeatureFile,
    KeyFile,
    MissingEncoding,
    MissingEncodingFile,
    OpChange,
    OpHistoryFile,
    SdkFile,
    Series,
    ToolFile,
    Wheel,
    WheelFile,
)

__all__ = ["DATA", "Tables", "load_sdk_table", "tables"]

DATA = Path(__file__).parent / "data"
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
        self._stated: dict[str, dict[Any, Feature]] = {}

    @cached_property
    def versions(self) -> tuple[str, ...]:
        """Every release that has a file, oldest first, with or without rows."""
        stems = [path.stem for path in (self.data / "sdks").glob("*.toml")]
        return tuple(sorted(stems, key=_parsed))

    @cached_property
    def with_rows(self) -> tuple[str, ...]:
        """The releases that have tool tables, oldest first."""
        return tuple(version for version in self.versions if self.file(version).extends)

    def file(self, version: str) -> SdkFile:
        """What ``sdks/<version>.toml`` itself says."""
        if version not in self._files:
            name = f"sdks/{version}.toml"
            made = self._read(SdkFile, name, since=version)
            if made.version != version:
                raise InputError(f"{name}: version: {made.version!r} differs from the file name")
            self._files[version] = made
        return self._files[version]

    def table(self, version: str) -> SdkTable:
        """One release with the rows of its ancestors. A release without rows has empty ``flags``."""
        missing = [step for step in self._lineage(version) if step not in self._tables]
        for step in reversed(missing):
            self._tables[step] = self._build(step)
        return self._tables[version]

    def all(self) -> tuple[SdkTable, ...]:
        """Every release that has rows, oldest first."""
        return tuple(self.table(version) for version in self.with_rows)

    @cached_property
    def _oldest(self) -> str:
        """The release that the files beside ``sdks/`` describe: the one that extends them."""
        return next((version for version in self.versions if self.file(version).extends == BASE), "")

    @cached_property
    def series(self) -> Series:
        """How a version that no table has is answered."""
        return self._read(Series, "series.toml")

    @cached_property
    def missing_encodings(self) -> tuple[MissingEncoding, ...]:
        """What becomes of tensors without encodings."""
        return self._read(MissingEncodingFile, "missing_encoding.toml").case

    @cached_property
    def compat_rules(self) -> tuple[CompatRule, ...]:
        """Statements about files and libraries of different releases."""
        return self._read(CompatRuleFile, "compat_rules.toml").rule

    @cached_property
    def op_history(self) -> tuple[OpChange, ...]:
        """What documents say releases brought for operators; none where a folder has no such file."""
        there = (self.data / "op_history.toml").is_file()
        return self._read(OpHistoryFile, "op_history.toml").op if there else ()

    @cached_property
    def wheels(self) -> tuple[Wheel, ...]:
        """The onnxruntime-qnn wheels, oldest first."""
        return self._read(WheelFile, "wheels.toml").wheel

    @cached_property
    def archs(self) -> ArchFile:
        """What each HTP architecture can do."""
        return self._read(ArchFile, "archs.toml")

    @cached_property
    def keys(self) -> KeyFile:
        """The configuration keys of the oldest table, with the layout of the two files."""
        return self._read(KeyFile, "config_keys.toml", since=self._oldest)

    @cached_property
    def tools(self) -> tuple[ToolFile, ...]:
        """The flags of every tool, each as of the release its list was read at."""
        names = sorted(path.name for path in (self.data / "tools").glob("*.toml"))
        return tuple(self._tool(name) for name in names)

    def _tool(self, name: str) -> ToolFile:
        made = self._read(ToolFile, f"tools/{name}", since=self._oldest, fill_tool=True)
        if made.tool != name.removesuffix(".toml"):
            raise InputError(f"tools/{name}: tool: {made.tool!r} differs from the file name")
        return made

    @cached_property
    def source_file(self) -> SourceFile:
        """What the short names of sources stand for, and the releases that they speak of."""
        return read_source_file(self.data / "sources.toml")

    def further(self, kind: type[T], name: str) -> T:
        """A file of the folder that no release changes, its sources written out."""
        return self._read(kind, name)

    def _read(self, kind: type[T], name: str, *, since: str = "", fill_tool: bool = False) -> T:
        raw = read_toml(self.data / name)
        if fill_tool:
            _fill_tool(raw, name)
        _fill_since(raw, name, since)
        write_out(raw, self.source_file.sources)
        _fill_extent(raw, name, self.source_file.extents)
        return structure(kind, raw, where=f"{name}:")

    def _lineage(self, version: str) -> Iterator[str]:
        """The release and its ancestors, youngest first, up to the first that is built already."""
        while version not in self._tables:
            yield version
            parent = self.file(version).extends
            if parent in ("", BASE):
                return
            where = f"sdks/{version}.toml: extends"
            if parent not in self.versions:
                raise InputError(f"{where}: there is no sdks/{parent}.toml")
            if _parsed(parent) >= _parsed(version):
                raise InputError(f"{where}: {parent} is not an earlier release than {version}")
            if not self.file(parent).extends:
                raise InputError(f"{where}: {parent} has no rows to extend")
            version = parent

    def _build(self, version: str) -> SdkTable:
        file = self.file(version)
        flags, features, keys = self._inherited(file)
        name = f"sdks/{version}.toml"
        _replace_rows(flags, file.flag, _flag_key, f"{name}: flag")
        _replace_rows(features, file.feature, _feature_key, f"{name}: feature")
        _replace_rows(keys, file.key, _config_key, f"{name}: key")
        self._stated[version] = features
        parent = self._tables[file.extends].features if file.extends in self._tables else ()
        judged = judged_features(features, {_feature_key(row): row for row in parent}, version)
        return SdkTable(
            sdk=file.sdk,
            version=version,
            extends=file.extends,
            builds=file.builds,
            source=file.source,
            confidence=file.confidence,
            flags=tuple(flags.values()),
            features=tuple(judged.values()),
            config_keys=tuple(keys.values()),
            changes=file.change,
            carrier=file.carrier,
            facts=file.facts,
        )

    def _inherited(self, file: SdkFile) -> tuple[dict[Any, Flag], dict[Any, Feature], dict[Any, ConfigKey]]:
        if not file.extends:
            return {}, {}, {}
        if file.extends == BASE:
            return self._base(file.version)
        parent = self._tables[file.extends]
        flags = {_flag_key(row): row for row in parent.flags}
        self._raise_confidence(flags, file)
        features = dict(self._stated[file.extends])
        return flags, features, {_config_key(row): row for row in parent.config_keys}

    def _base(self, version: str) -> tuple[dict[Any, Flag], dict[Any, Feature], dict[Any, ConfigKey]]:
        flags: dict[Any, Flag] = {}
        for tool in self.tools:
            later = _parsed(tool.read_at) > _parsed(version)
            rows = tuple(_lowered(row, tool.read_at) for row in tool.flag) if later else tool.flag
            _replace_rows(flags, rows, _flag_key, f"tools/{tool.tool}.toml: flag")
        features = {_feature_key(row): row for row in self._arch_features(version)}
        base = self._read(FeatureFile, "features.toml", since=version).feature
        _replace_rows(features, base, _feature_key, "features.toml: feature")
        keys: dict[Any, ConfigKey] = {}
        _replace_rows(keys, self.keys.key, _config_key, "config_keys.toml: key")
        return flags, features, keys

    def _arch_features(self, since: str) -> Iterator[Feature]:
        """What an architecture can or cannot do, as a feature of the oldest release that has rows."""
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

    def _raise_confidence(self, flags: dict[Any, Flag], file: SdkFile) -> None:
        """Give rows their own confidence from the release on that their list describes."""
        for tool in self.tools:
            if not _parsed(file.extends) < _parsed(tool.read_at) <= _parsed(file.version):
                continue
            note = _LOWERED.format(read_at=tool.read_at)
            for row in tool.flag:
                if flags[_flag_key(row)].confidence_note == note:
                    flags[_flag_key(row)] = replace(row, since=file.version)


@cache
def tables() -> Tables:
    """The tables that are shipped."""
    return Tables()


def load_sdk_table(version: str) -> SdkTable:
    """The shipped table of one release, by the exact name of its file; see ``resolving`` for what a user types."""
    return tables().table(version)


def _fill_tool(raw: dict[str, Any], name: str) -> None:
    """The rows of a tool's own file need not repeat its name."""
    rows = raw.get("flag", ())
    for index, row in enumerate(rows if isinstance(rows, list) else ()):
        if isinstance(row, dict) and row.setdefault("tool", raw.get("tool")) != raw.get("tool"):
            raise InputError(f"{name}: flag[{index}].tool: {row['tool']!r} is not the tool of this file")


def _fill_since(raw: dict[str, Any], name: str, since: str) -> None:
    """``since`` follows from the file a row stands in; written by hand it could contradict that."""
    for section in ("flag", "feature", "key"):
        rows = raw.get(section, ())
        for index, row in enumerate(rows if isinstance(rows, list) else ()):
            if isinstance(row, dict) and "since" in row:
                raise InputError(f"{name}: {section}[{index}].since: unknown key", why="the loader fills it")
            if isinstance(row, dict):
                row["since"] = since


def _fill_extent(raw: dict[str, Any], name: str, extents: Mapping[str, Extent]) -> None:
    """``extent`` follows from the sources; written by hand it could contradict them."""
    rows = raw.get("feature", ())
    for index, row in enumerate(rows if isinstance(rows, list) else ()):
        if isinstance(row, dict) and "extent" in row:
            raise InputError(f"{name}: feature[{index}].extent: unknown key", why="the loader fills it")
        sources = row.get("source") if isinstance(row, dict) else None
        if isinstance(sources, list) and (found := extent_of(map(str, sources), extents)) is not None:
            row["extent"] = list(found)


def _lowered(row: Flag, read_at: str) -> Flag:
    if row.confidence is Confidence.INFERRED:
        return row
    return replace(row, confidence=Confidence.INFERRED, confidence_note=_LOWERED.format(read_at=read_at))


def _replace_rows(into: dict[Any, R], rows: Iterable[R], key: Callable[[R], Any], where: str) -> None:
    seen: set[Any] = set()
    for index, row in enumerate(rows):
        name = key(row)
        if name in seen:
            raise InputError(f"{where}[{index}]: the same row occurs twice: {name}")
        seen.add(name)
        into[name] = row


def _flag_key(row: Flag) -> tuple[str, tuple[str, ...]]:
    return row.tool, row.flags


def _feature_key(row: Feature) -> tuple[str, str, str]:
    return row.feature, row.tool, row.arch


def _config_key(row: ConfigKey) -> str:
    return row.path


@cache
def _parsed(version: str) -> Version:
    try:
        return Version(version)
    except InvalidVersion:
        raise InputError(f"sdks/{version}.toml: {version!r} is not a version") from None
