"""Lint rules about options of the request: numbers of another numbering, keys that are gone, values out of range.

Codes QNN260 to QNN269 and QNN272. An option that no table has is refused elsewhere, before any rule runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from deploykit.contract.backend import Situation
from deploykit.findings import Severity, SubjectKind
from deploykit.rules import Found
from deploykit.tables.capabilities import Status
from deploykit_qualcomm.archs import arch_number, known_archs
from deploykit_qualcomm.devices import qualcomm_devices
from deploykit_qualcomm.rules.registries import EP_LINT, QNN_LINT
from deploykit_qualcomm.rules.views import arch, option

__all__: list[str] = []

_GENERATOR = "qnn-context-binary-generator"
_RUN_TIME_KEYS = frozenset(
    {"perf_profile", "rpc_control_latency", "rpc_polling_time", "hmx_timeout_us", "adaptive_polling_time", "core_id"}
)
_ON = ("1", "true", "yes", "on")


def _number(situation: Situation, key: str) -> int | None:
    text = option(situation, key)
    return int(text) if text is not None and text.strip().isdigit() else None


def _about(key: str, message: str, **evidence: object) -> Found:
    return Found(kind=SubjectKind.CONFIG_KEY, name=key, message=message, evidence=evidence)


@QNN_LINT.rule(
    "QNN260",
    "precision-option-deprecated",
    "warning",
    what="The graph option precision.",
    why="It is deprecated since SDK 2.35; float graphs get their precision from the converter and the SoC.",
    fix="leave it out: choose the precision with --precision",
    sources=("qualcomm/aimet#4086 (deprecation notice of 2.35)",),
)
def check_precision(situation: Situation) -> Iterator[Found]:
    """From 2.35 on a warning, before that a hint."""
    if option(situation, "precision") is None:
        return
    sdk = situation.target.sdk
    late = sdk is None or sdk.parsed.release >= (2, 35)
    found = _about("precision", "the graph option precision is deprecated since 2.35")
    yield found if late else Found(kind=found.kind, name=found.name, message=found.message, severity=Severity.INFO)


@QNN_LINT.rule(
    "QNN261",
    "android-soc-id",
    "error",
    what="An Android SoC id where the soc_model is meant.",
    why="They are two numberings: SM8750 is 69 for QNN, 618 or 639 for Android. A public project shipped that mistake; "
    "the provider answers 'Invalid config values' and leaves everything to the CPU.",
    fix="leave soc_model out: it follows from --target",
    sources=("device tables (facts.android_soc_id)", "onnxruntime-qnn 2.7.0 run on Linux x86-64 (unknown soc_model)"),
)
def check_android_id(situation: Situation) -> Iterator[Found]:
    """The ids stand in the device files."""
    for key in ("soc_model", "soc_id"):
        number = _number(situation, key)
        for device in qualcomm_devices() if number is not None else ():
            fact = device.facts.get("android_soc_id")
            if fact is not None and number in (fact.value, *fact.alternatives):
                right = device.fact("soc_model")
                yield _about(key, f"{number} is the Android id of {device.name}, whose soc_model is {right}")


@QNN_LINT.rule(
    "QNN262",
    "vtcm-beyond-chip",
    "error",
    what="More VTCM than the chip has.",
    why="The compiler takes the number (even 64), and the binary fails to load: 5005, 'Request feature vtcm size'.",
    fix="leave vtcm_mb out, or give at most what the chip has",
    sources=("pytorch/executorch#9084", "docs.qualcomm.com 80-87189-2, HTP Backend Extensions"),
)
def check_vtcm(situation: Situation) -> Iterator[Found]:
    """Against the device's own size."""
    wanted, present = _number(situation, "vtcm_mb"), situation.target.device.fact("vtcm_mb")
    if wanted is not None and isinstance(present, int) and wanted > present:
        yield _about("vtcm_mb", f"{wanted} MB are asked for, {situation.target.device.name} has {present} MB")


@QNN_LINT.rule(
    "QNN263",
    "soc-id-key",
    "warning",
    what="The key soc_id.",
    why="It is the old spelling of soc_model: still read by 2.41, no longer in the schema of 2.48, and a field of its "
    "own in the Python classes of 2.49.",
    fix="use soc_model",
    sources=("qualcomm/aimet#4086", "user lab notes, QAIRT 2.48 on SM8750"),
)
def check_soc_id(situation: Situation) -> Iterator[Found]:
    """An error where the release's table says so."""
    if option(situation, "soc_id") is None:
        return
    sdk = situation.target.sdk
    status = Status.UNKNOWN if sdk is None else sdk.status("soc-id-key", tool=_GENERATOR)
    gone = status is Status.UNSUPPORTED
    version = "" if sdk is None else f" on {sdk.version}"
    yield Found(
        kind=SubjectKind.CONFIG_KEY,
        name="soc_id",
        severity=Severity.ERROR if gone else None,
        message=f"soc_id is {status}{version}; soc_model is the spelling that all releases read",
    )


@QNN_LINT.rule(
    "QNN264",
    "dlbc-weights-alone",
    "warning",
    what="dlbc_weights without dlbc.",
    why="It has a meaning only together with dlbc = 1; alone it does nothing, silently.",
    fix="set dlbc=1 as well, or leave both out",
    sources=("HTP configuration classes of the QAIRT Python package, seen in a public repository",),
)
def check_dlbc(situation: Situation) -> Iterator[Found]:
    """Both options together."""
    weights, whole = option(situation, "dlbc_weights"), option(situation, "dlbc")
    if (weights or "").lower() in _ON and (whole or "").lower() not in _ON:
        yield _about("dlbc_weights", "dlbc_weights has no effect without dlbc=1")


@QNN_LINT.rule(
    "QNN265",
    "run-time-key-at-prepare",
    "warning",
    what="A run-time key among the options that a context binary is prepared with.",
    why="The generator of 2.48 rejects such keys, that of 2.42 ignores them; they belong into the file for the run.",
    fix="give them when the graph runs; deploykit writes two configuration files",
    sources=("user lab notes, QAIRT 2.48 on SM8750", "user lab notes, QAIRT 2.42 on SM8550"),
)
def check_run_time_keys(situation: Situation) -> Iterator[Found]:
    """Keys spelled with the path of the graphs or devices that are prepared."""
    for name, _ in situation.request.options:
        if name.startswith("graphs") and name.rsplit(".", 1)[-1] in _RUN_TIME_KEYS:
            yield _about(name, f"{name} is a run-time key; at prepare time it is rejected or without effect")


@EP_LINT.rule(
    "QNN266",
    "unknown-htp-arch",
    "error",
    what="An htp_arch that does not exist.",
    why="The provider logs a warning and compiles as if nothing were set: for v68.",
    fix="leave htp_arch out: the soc_model of the target implies it",
    sources=("onnxruntime-qnn 2.7.0 run on Linux x86-64: 66, 74 and 85 are accepted and compiled like unset",),
)
def check_htp_arch(situation: Situation) -> Iterator[Found]:
    """Against the table of architectures."""
    text = option(situation, "htp_arch")
    if text is not None and f"v{text.removeprefix('v')}" not in {name for name in known_archs() if name != "v66"}:
        yield _about("htp_arch", f"htp_arch {text} does not exist; the provider would compile for v68")


@EP_LINT.rule(
    "QNN267",
    "arch-against-soc",
    "warning",
    what="An htp_arch that is not that of the target.",
    why="soc_model wins without a word: the binary is for the SoC, whatever htp_arch says.",
    fix="leave htp_arch out, or choose the target that is meant",
    sources=("onnxruntime-qnn 2.7.0 run on Linux x86-64: arch 79 with soc 30 gives v68 code, and the reverse",),
)
def check_arch_against_soc(situation: Situation) -> Iterator[Found]:
    """The option against the device's architecture."""
    text = option(situation, "htp_arch")
    wanted = None if text is None else arch_number(f"v{text.removeprefix('v')}")
    known = arch_number(arch(situation))
    if wanted is not None and known is not None and wanted != known:
        yield _about("htp_arch", f"htp_arch {wanted} is ignored: {situation.target.device.name} is v{known}")


@QNN_LINT.rule(
    "QNN268",
    "optimization-level",
    "error",
    what="An optimization level outside 1 to 3.",
    why="Other values are not defined; some tools take them and say nothing.",
    fix="use 3 for the fastest graph, 1 for the fastest preparation",
    sources=("docs.qualcomm.com 80-87189-2, HTP Backend Extensions",),
)
def check_level(situation: Situation) -> Iterator[Found]:
    """The native key and the provider's option."""
    for key in ("O", "htp_graph_finalization_optimization_mode"):
        text = option(situation, key)
        allowed = ("1", "2", "3") if key == "O" else ("0", "1", "2", "3")
        if text is not None and text not in allowed:
            yield _about(key, f"{key}={text}; {allowed[0]} to 3 are defined")


@EP_LINT.rule(
    "QNN269",
    "fp16-option-without-effect",
    "warning",
    what="enable_htp_fp16_precision=0 to keep a float model in FP32.",
    why="It changes nothing: with a soc_model that has float16 the float graph is compiled in float16, whatever the "
    "option says; the binary is the same.",
    fix="quantize what needs more range than float16 has; there is no FP32 on the HTP",
    sources=("onnxruntime-qnn 2.7.0 run on Linux x86-64: soc_model 43, same size and same SQNR with 0 and 1",),
)
def check_fp16_option(situation: Situation) -> Iterator[Found]:
    """By the option alone."""
    if option(situation, "enable_htp_fp16_precision") == "0":
        yield _about("enable_htp_fp16_precision", "0 has no effect: float graphs are compiled in float16")


@EP_LINT.rule(
    "QNN272",
    "bf16-option-on-quantized",
    "error",
    what="htp_bf16_enable=1 with a quantized model.",
    why="The provider then refuses the Q and DQ nodes at the model's inputs and outputs.",
    fix="leave the option out: a quantized model needs no bfloat16",
    sources=("onnxruntime-qnn 2.7.0 run on Linux x86-64: soc_model 88, w8a16 Q/DQ model, nodes refused",),
)
def check_bf16_option(situation: Situation) -> Iterator[Found]:
    """The option together with Q/DQ pairs or encodings."""
    is_quantized = situation.facts.is_qdq or situation.encodings is not None
    if option(situation, "htp_bf16_enable") == "1" and is_quantized:
        yield _about("htp_bf16_enable", "with bf16 the provider refuses the pairs of a quantized model")
