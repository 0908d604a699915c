"""Loads the SDK tables from the data files, following ``extends``; it answers no question about a model.

Files are read when a table that needs them is asked for, once. A file that is wrong is an InputError with the dotted
path of the offending entry, for instance ``sdks/2.33.0.toml: flag[3].confidence``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

from packaging.version import InvalidVersion, Version

from deploykit.errors import InputError
from deploykit.findings import Confidence
from deploykit.tables.capabilities import ConfigKey, Feature, Flag, ReleaseChange, SdkTable, Status
from deploykit.tables.devices import Fact
from deploykit.tables.reading import read_toml, structure
from deploykit.tables.sources import Extent, SourceFile, extent_of, read_source_file, write_out

__all__ = ["DATA", "LINUX", "MACHINES", "WINE", "FeatureFile", "Tables", "Wheel", "load_sdk_table", "tables"]


def beyond_sources(row: Feature, version: str) -> bool:
    """True when the row's sources are bound to releases and this is none of them."""
    if not row.extent:
        return False
    first, last = row.extent
    return _before(version, first) or bool(last and _before(last, version))


def judged_features(stated: Mapping[Any, Feature], parent: Mapping[Any, Feature], version: str) -> dict[Any, Feature]:
    """The rows as they hold at one release; a row that did not change is the very object of the parent release."""
    found = {}
    for key, row in stated.items():
        made = _beyond_extent(row) if beyond_sources(row, version) else row
        before = parent.get(key)
        if before is made:
            found[key] = before
            continue
        same = before is not None and _say_the_same(made, before)
        found[key] = before if same and before is not None else replace(made, since=version) if before else made
    return found


@cache
def _say_the_same(one: Feature, other: Feature) -> bool:
    """Equal but for when that began; release after release asks it of the same two."""
    return replace(one, since=other.since) == other


@cache
def _beyond_extent(row: Feature) -> Feature:
    if row.confidence is Confidence.INFERRED:
        return row
    first, last = row.extent
    seen = f"its sources speak of {first}{'' if last == first else f' to {last}' if last else ' and later'}"
    note = "; ".join(part for part in (row.confidence_note, f"{seen}; for this release by inference") if part)
    return replace(row, confidence=Confidence.INFERRED, confidence_note=note)


def _before(version: str, other: str) -> bool:
    """Older, as far as both have numbers: 2.36 is not older than 2.36.1, it is the series."""
    one, two = _release(version), _release(other)
    length = min(len(one), len(two))
    return one[:length] < two[:length]


@cache
def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version; the same few are asked about for every row of every release."""
    return Version(version).release


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFile:
    """``tools/<tool>.toml``: the flags of one tool. ``read_at`` is the release whose flags the rows describe."""

    schema: int
    tool: str
    read_at: str
    flag: tuple[Flag, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureFile:
    """``features.toml``: the features of the oldest table."""

    schema: int
    feature: tuple[Feature, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLayout:
    """How the two configuration files hang together."""

    outer_file: str
    outer_keys: tuple[str, ...]
    inner_file: str
    inner_keys: tuple[str, ...]
    shared_library_linux: str
    shared_library_windows: str
    pitfall: str
    contradicts: str
    source: tuple[str, ...]
    confidence: Confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFile:
    """``config_keys.toml``: the keys of the backend-extensions files."""

    schema: int
    layout: KeyLayout
    key: tuple[ConfigKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SdkFile:
    """``sdks/<version>.toml``: one release and what it changes.

    ``extends`` is the earlier release whose rows hold here too, ``base`` for the files beside ``sdks/``, or empty for
    a release that is known to exist and about whose tools nothing was read. ``carrier`` names the package inside which
    the release was met when its tools were not seen. ``facts`` speak of this release alone and are not inherited.
    """

    schema: int
    sdk: str
    version: str
    extends: str
    builds: tuple[str, ...]
    source: tuple[str, ...]
    confidence: Confidence
    month: str = ""
    stamp: str = ""
    carrier: str = ""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    change: tuple[ReleaseChange, ...] = ()
    flag: tuple[Flag, ...] = ()
    feature: tuple[Feature, ...] = ()
    key: tuple[ConfigKey, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """``series.toml``: how a version that no table has is answered."""

    schema: int
    sdk: str
    below_oldest: Literal["error", "warning"]
    newer: Literal["error", "warning"]
    far_newer: Literal["error", "warning"]
    far_series: int
    source: tuple[str, ...]
    confidence: Confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingEncoding:
    """What becomes of a tensor without an encoding, for one tool and one choice of options."""

    id: str
    tools: tuple[str, ...]
    quantizer: str
    input_list: str
    float_fallback: str
    status: Status
    result: str
    source: tuple[str, ...]
    confidence: Confidence
    trigger: str = ""
    needs: str = ""
    known_bad: str = ""
    confidence_note: str = ""
    contradicts: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingEncodingFile:
    """``missing_encoding.toml``."""

    schema: int
    case: tuple[MissingEncoding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatRule:
    """One statement about files and libraries of different releases; ``words`` are other names that find it."""

    topic: str
    text: str
    source: tuple[str, ...]
    confidence: Confidence
    confidence_note: str = ""
    contradicts: str = ""
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatRuleFile:
    """``compat_rules.toml``."""

    schema: int
    rule: tuple[CompatRule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpChange:
    """What the documents say one release brought for one operator; ``onnx`` are the operators lowered to it."""

    op: str
    onnx: tuple[str, ...]
    since: str
    text: str
    source: tuple[str, ...]
    confidence: Confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class OpHistoryFile:
    """``op_history.toml``."""

    schema: int
    op: tuple[OpChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPair:
    """Whether one wheel was seen to work in one ONNX Runtime, which reads models up to ``opset`` and ``ir``."""

    version: str
    status: Status
    opset: int
    ir: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelReads:
    """The newest operator set and IR version that the ONNX Runtime inside a wheel reads."""

    opset: int
    ir: int
    source: tuple[str, ...]
    confidence: Confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelHost:
    """One build of a wheel's compiler: the system it is made for, its machine code, and where that can be executed.

    ``observed`` is what was really seen of it. ``file`` and ``sha256`` name the file that was read, "" where none was.
    """

    system: Literal["linux", "windows"]
    machine: Literal["x86-64", "aarch64"]
    runs: tuple[Literal["linux-x86-64", "wine-x86-64", "windows-x86-64", "windows-arm64"], ...]
    observed: tuple[Literal["device", "compile", "emulate", "refuse"], ...] = ()
    file: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One onnxruntime-qnn wheel: the QAIRT inside, the form of its provider, and where its compiler runs.

    ``loadable`` is False where ONNX Runtime is inside the Python module only; then ``asked_by`` is the wheel whose
    provider asks this backend, where that was seen to work. ``onnxruntime`` are the versions a plugin was tried with,
    ``onnxruntime_api`` the number of the C API of a wheel that brings its own, and ``reads`` what that one reads.
    ``blob`` is the version of the context blobs it writes.
    ``refuses`` are forms that are written for other releases and that this provider does not take or changes without a
    word, ``lacks`` operators and forms that it does not have, ``absent`` ONNX operators that it does not
    know.
    """

    version: str
    sdk: str
    build: str
    provider: Literal["built-in", "append", "plugin"]
    source: tuple[str, ...]
    confidence: Confidence
    qnn_api: str = ""
    htp_api: str = ""
    blob: str = ""
    loadable: bool = True
    asked_by: str = ""
    onnxruntime_api: int = 0
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
    absent: tuple[str, ...] = ()
    reads: WheelReads | None = None
    onnxruntime: tuple[WheelPair, ...] = ()
    host: tuple[WheelHost, ...] = ()

    @property
    def newest_read(self) -> tuple[int, int] | None:
        """The newest operator set and IR version that an ONNX Runtime with this wheel reads; None where unknown."""
        if self.reads is not None:
            return self.reads.opset, self.reads.ir
        limits = [(pair.opset, pair.ir) for pair in self.onnxruntime if pair.status is Status.SUPPORTED]
        return max(limits, default=None)

    def runs_on(self, place: str) -> WheelHost | None:
        """The build of the compiler that can be executed at ``place``, such as ``wine-x86-64``."""
        return next((host for host in self.host if place in host.runs), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """``wheels.toml``."""

    schema: int
    wheel: tuple[Wheel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arch:
    """One HTP architecture: its number and what it can do, by name; an absent name is unknown."""

    number: int
    facts: Mapping[str, Fact] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchFile:
    """``archs.toml``. ``features`` names the capabilities that are a feature of every SDK release as well."""

    schema: int
    features: tuple[str, ...]
    arch: Mapping[str, Arch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method: the spellings that find it, and the option of the quantizer that runs it ("" for none)."""

    name: str
    words: tuple[str, ...]
    status: Status
    note: str
    source: tuple[str, ...]
    confidence: Confidence
    option: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFile:
    """``methods.toml``."""

    schema: int
    method: tuple[Method, ...]


LINUX = "linux-x86-64"
WINE = "wine-x86-64"
# Where a compiler can be executed, in words.
MACHINES = {
    LINUX: "Linux x86-64",
    WINE: "Linux x86-64 under Wine",
    "windows-x86-64": "Windows x86-64",
    "windows-arm64": "Windows on ARM",
}

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
            file = self.file(step)
            flags, features, keys = self._inherited(file)
            name = f"sdks/{step}.toml"
            _replace_rows(flags, file.flag, _flag_key, f"{name}: flag")
            _replace_rows(features, file.feature, _feature_key, f"{name}: feature")
            _replace_rows(keys, file.key, _config_key, f"{name}: key")
            self._stated[step] = features
            parent = self._tables[file.extends].features if file.extends in self._tables else ()
            judged = judged_features(features, {_feature_key(row): row for row in parent}, step)
            self._tables[step] = SdkTable(
                sdk=file.sdk,
                version=step,
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
        made = {name: self._read(ToolFile, f"tools/{name}", since=self._oldest) for name in names}
        for name, file in made.items():
            if file.tool != name.removesuffix(".toml"):
                raise InputError(f"tools/{name}: tool: {file.tool!r} differs from the file name")
        return tuple(made.values())

    @cached_property
    def source_file(self) -> SourceFile:
        """What the short names of sources stand for, and the releases that they speak of."""
        return read_source_file(self.data / "sources.toml")

    @cached_property
    def methods(self) -> tuple[Method, ...]:
        """AIMET's methods."""
        return self._read(MethodFile, "methods.toml").method

    def _read(self, kind: type[T], name: str, *, since: str = "") -> T:
        raw = read_toml(self.data / name, shipped=True)
        write_out(raw, self.source_file.sources)
        _fill(raw, name, since, self.source_file.extents)
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

    def _inherited(self, file: SdkFile) -> tuple[dict[Any, Flag], dict[Any, Feature], dict[Any, ConfigKey]]:
        if not file.extends:
            return {}, {}, {}
        if file.extends == BASE:
            flags: dict[Any, Flag] = {}
            for tool in self.tools:
                later = _parsed(tool.read_at) > _parsed(file.version)
                rows = tuple(_lowered(row, tool.read_at) for row in tool.flag) if later else tool.flag
                _replace_rows(flags, rows, _flag_key, f"tools/{tool.tool}.toml: flag")
            features = {_feature_key(row): row for row in self._arch_features(file.version)}
            base = self._read(FeatureFile, "features.toml", since=file.version).feature
            _replace_rows(features, base, _feature_key, "features.toml: feature")
            keys: dict[Any, ConfigKey] = {}
            _replace_rows(keys, self.keys.key, _config_key, "config_keys.toml: key")
            return flags, features, keys
        parent = self._tables[file.extends]
        flags = {_flag_key(row): row for row in parent.flags}
        self._raise_confidence(flags, file)
        features = dict(self._stated[file.extends])
        return flags, features, {_config_key(row): row for row in parent.config_keys}

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


def _fill(raw: dict[str, Any], name: str, since: str, extents: Mapping[str, Extent]) -> None:
    """What follows from the file and the sources of a row; written by hand it could contradict them."""
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
            sources = row.get("source")
            if section == "feature" and isinstance(sources, list):
                extent = extent_of(map(str, sources), extents)
                row |= {} if extent is None else {"extent": list(extent)}


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
