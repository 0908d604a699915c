"""The shapes of the Qualcomm data files, as dataclasses; it loads nothing and decides nothing.

Every file carries ``schema``; an unknown key in any of them is refused by the reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from deploykit.findings import Confidence
from deploykit.tables.capabilities import Change, ConfigKey, Feature, Flag, Status
from deploykit.tables.devices import Fact

__all__ = [
    "Arch",
    "ArchFile",
    "CompatRule",
    "CompatRuleFile",
    "FeatureFile",
    "KeyFile",
    "KeyLayout",
    "MissingEncoding",
    "MissingEncodingFile",
    "OpChange",
    "OpHistoryFile",
    "SdkFile",
    "Series",
    "ToolFile",
    "Wheel",
    "WheelFile",
    "WheelHost",
    "WheelPair",
    "WheelReads",
]


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
    change: tuple[Change, ...] = ()
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
