"""Lint rules about options of the request: numbers of another numbering, keys that are gone, values out of range.

Codes QNN260 to QNN265 and QNN268; rules about the provider's options are in other modules. An unknown option is refused
elsewhere, before any rule runs.
"""

from __future__ import annotations

from deploykit.backend.backend import Situation
from deploykit.findings import Severity
from deploykit.findings.rules import Finds, Found, Registry
from deploykit.tables.capabilities import Status
from deploykit_qualcomm.devices import qualcomm_devices
from deploykit_qualcomm.rules.views import option, sdk_of

__all__ = ["RULES", "about_option"]

_GENERATOR = "qnn-context-binary-generator"
_RUN_TIME_KEYS = frozenset(
    {"perf_profile", "rpc_control_latency", "rpc_polling_time", "hmx_timeout_us", "adaptive_polling_time", "core_id"}
)
_ON = ("1", "true", "yes", "on")

RULES = Registry[Situation]("situation")


def _number(situation: Situation, key: str) -> int | None:
    text = option(situation, key)
    return int(text) if text is not None and text.strip().isdigit() else None


def about_option(key: str, message: str, **evidence: object) -> Found:
    """A finding about one option."""
    return Found("config-key", key, message, evidence=evidence)


@RULES.rule("QNN260", "precision-option-deprecated", "warning", "qualcomm/aimet#4086 (deprecation notice of 2.35)")
def check_precision(situation: Situation) -> Finds:
    """The graph option 'precision' is given; it is deprecated.

    It is deprecated since SDK 2.35; float graphs get their precision from the converter and the SoC.

    Fix: leave it out: choose the precision with --precision
    """
    # A warning from 2.35 on, before that a hint.
    if option(situation, "precision") is None:
        return
    late = sdk_of(situation).parsed.release >= (2, 35)
    found = about_option("precision", "the graph option precision is deprecated since 2.35")
    yield found if late else Found(found.kind, found.name, found.message, severity=Severity.INFO)


@RULES.rule(
    "QNN261",
    "android-soc-id",
    "error",
    ("device tables (facts.android_soc_id)", "onnxruntime-qnn 2.7.0 run on Linux x86-64 (unknown soc_model)"),
)
def check_android_id(situation: Situation) -> Finds:
    """An Android SoC id where the soc_model is meant.

    They are two numberings: SM8750 is 69 for QNN, 618 or 639 for Android. A public project shipped that mistake; the
    provider answers 'Invalid config values' and leaves everything to the CPU.

    Fix: leave soc_model out: it follows from --target
    """
    # The device files list the ids.
    for key in ("soc_model", "soc_id"):
        number = _number(situation, key)
        for device in qualcomm_devices() if number is not None else ():
            fact = device.facts.get("android_soc_id")
            if fact is not None and number in (fact.value, *fact.alternatives):
                right = device.fact("soc_model")
                yield about_option(key, f"{number} is the Android id of {device.name}, whose soc_model is {right}")


@RULES.rule(
    "QNN262",
    "vtcm-beyond-chip",
    "error",
    ("pytorch/executorch#9084", "docs.qualcomm.com 80-87189-2, HTP Backend Extensions"),
)
def check_vtcm(situation: Situation) -> Finds:
    """More VTCM than the chip has.

    The compiler takes the number (even 64), and the binary fails to load: 5005, 'Request feature vtcm size'.

    Fix: leave vtcm_mb out, or give at most what the chip has
    """
    wanted, present = _number(situation, "vtcm_mb"), situation.target.device.fact("vtcm_mb")
    if wanted is not None and isinstance(present, int) and wanted > present:
        yield about_option("vtcm_mb", f"{wanted} MB are asked for, {situation.target.device.name} has {present} MB")


@RULES.rule("QNN263", "soc-id-key", "warning", ("qualcomm/aimet#4086", "user lab notes, QAIRT 2.48 on SM8750"))
def check_soc_id(situation: Situation) -> Finds:
    """The key soc_id.

    It is the old spelling of soc_model: still read by 2.41, no longer in the schema of 2.48, and a field of its own in
    the Python classes of 2.49.

    Fix: use soc_model
    """
    # An error if the release's table says so.
    if option(situation, "soc_id") is None:
        return
    sdk = sdk_of(situation)
    status = sdk.status("soc-id-key", tool=_GENERATOR)
    yield Found(
        "config-key",
        "soc_id",
        f"soc_id is {status} on {sdk.version}; soc_model is the spelling that all releases read",
        severity=Severity.ERROR if status is Status.UNSUPPORTED else None,
    )


@RULES.rule(
    "QNN264",
    "dlbc-weights-alone",
    "warning",
    "HTP configuration classes of the QAIRT Python package, seen in a public repository",
)
def check_dlbc(situation: Situation) -> Finds:
    """dlbc_weights without dlbc.

    It has a meaning only together with dlbc = 1; alone it does nothing, silently.

    Fix: set dlbc=1 as well, or leave both out
    """
    weights, whole = option(situation, "dlbc_weights"), option(situation, "dlbc")
    if (weights or "").lower() in _ON and (whole or "").lower() not in _ON:
        yield about_option("dlbc_weights", "dlbc_weights has no effect without dlbc=1")


@RULES.rule(
    "QNN265",
    "run-time-key-at-prepare",
    "warning",
    ("user lab notes, QAIRT 2.48 on SM8750", "user lab notes, QAIRT 2.42 on SM8550"),
)
def check_run_time_keys(situation: Situation) -> Finds:
    """A run-time key among the options that a context binary is prepared with.

    The generator of 2.48 rejects such keys, that of 2.42 ignores them; they belong into the file for the run.

    Fix: give them when the graph runs; deploykit writes two configuration files
    """
    # Keys spelled with the path of prepared graphs or devices.
    for name, _ in situation.request.options:
        if name.startswith("graphs") and name.rsplit(".", 1)[-1] in _RUN_TIME_KEYS:
            yield about_option(name, f"{name} is a run-time key; at prepare time it is rejected or without effect")


@RULES.rule("QNN268", "optimization-level", "error", "docs.qualcomm.com 80-87189-2, HTP Backend Extensions")
def check_level(situation: Situation) -> Finds:
    """An optimization level outside 1 to 3.

    Other values are not defined; some tools take them and say nothing.

    Fix: use 3 for the fastest graph, 1 for the fastest preparation
    """
    # The native key and the provider's option.
    for key in ("O", "htp_graph_finalization_optimization_mode"):
        text = option(situation, key)
        allowed = ("1", "2", "3") if key == "O" else ("0", "1", "2", "3")
        if text is not None and text not in allowed:
            yield about_option(key, f"{key}={text}; {allowed[0]} to 3 are defined")
