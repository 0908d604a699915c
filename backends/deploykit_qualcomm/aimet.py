"""AIMET for ONNX as a quantizer: its options, its configuration for each
chip, and its job as data (``aimet_job`` runs).
"""

from __future__ import annotations

from pathlib import Path

from deploykit.backend.options import OptionSpec
from deploykit.backend.quantizers import Quantizer, QuantizerAsked, QuantizerJob, WeightMethod
from deploykit.backend.requests import bits_of
from deploykit.backend.targets import Target
from deploykit.errors import UsageError
from deploykit.tables.capabilities import Status
from deploykit_qualcomm.devices import arch_of

__all__ = ["AIMET", "Aimet", "configuration"]

# The HTP versions that aimet-onnx 2.42 has a configuration for (htp_v66 and so on).
_CONFIGURATIONS = (66, 68, 69, 73, 75, 79, 81, 85)

_VERSIONS = ("1.0.0", "2.0.0", "0.6.1")
_CONVERTERS = ("qairt-converter", "qnn-onnx-converter")
_OPTIONS = (
    OptionSpec(
        "scheme",
        "choice",
        choices=("min_max", "tf_enhanced", "percentile"),
        default="min_max",
        help="How ranges are found; tf_enhanced picks the range with the best signal-to-noise ratio.",
    ),
    OptionSpec(
        "percentile",
        "number",
        low=50,
        high=100,
        default=99.99,
        help="Share of the values that a range keeps, with scheme=percentile.",
    ),
    OptionSpec("configuration", "text", help="AIMET's configuration. Default: that of the chip."),
    OptionSpec("fold_batchnorm", "switch", default=True, help="Fold BatchNormalization first."),
    OptionSpec("cle", "flag", help="Cross-layer equalization first."),
    OptionSpec("seq_mse", "flag", help="Weight scales by the error of each layer's output."),
    OptionSpec("candidates", "integer", low=2, default=20, help="Scales that seq_mse tries per weight."),
    OptionSpec("adaround", "flag", help="Learn for each weight whether it is rounded up or down."),
    OptionSpec("iterations", "integer", low=1, default=10000, help="Steps of adaround per layer."),
    OptionSpec("lpbq", "flag", help="4-bit weights in blocks (LPBQ); with w4a16 and w4a8."),
    OptionSpec("block_size", "integer", low=1, default=64, help="Elements of an LPBQ block."),
    OptionSpec(
        "lite_mp",
        "number",
        low=0,
        high=100,
        help="LiteMP: that many percent of the layers, the worst by QuantAnalyzer, in a wider type.",
    ),
    OptionSpec("lite_mp_to", "choice", choices=("int16", "float16"), default="int16", help="The type of lite_mp."),
    OptionSpec(
        "amp",
        "number",
        help="AMP: activations in 16 bits, the fewest with which AIMET's simulation keeps so many decibels.",
    ),
    OptionSpec("encoding_version", "choice", choices=_VERSIONS, help="Default: the one that the SDK reads."),
)

_WEIGHT_METHODS = (
    WeightMethod(name="SeqMSE", options={"seq_mse": "true"}),
    WeightMethod(name="AdaRound", options={"adaround": "true", "iterations": "2000"}),
)


class Aimet(Quantizer):
    """AIMET for ONNX. ``blocked`` are the operators whose weights the backend takes in blocks."""

    id = "aimet"
    summary = "AIMET for ONNX: simulates the HTP while it calibrates"
    toolchain = "aimet"
    whole_ranges = ("scheme", "min_max")

    def __init__(self, blocked: tuple[str, ...] = ("Conv", "Gemm", "MatMul")) -> None:
        self.blocked = blocked

    def precisions(self, target: Target) -> tuple[str, ...]:
        """The precisions that QuantSim simulates; the backend's rules say whether a chip can run one."""
        del target
        return ("w8a16", "w8a8", "w4a16", "w4a8", "w16a16")

    def options(self) -> tuple[OptionSpec, ...]:
        """The options for schemes, and for better weights."""
        return _OPTIONS

    def weight_methods(self, precision: str) -> tuple[WeightMethod, ...]:
        """The methods for better weights, in the order of AIMET's quantization workflow."""
        widths = bits_of(precision)
        return _WEIGHT_METHODS if widths is not None and widths[0] < 16 else ()

    def plan(self, asked: QuantizerAsked) -> QuantizerJob:
        """The job: the arguments of QuantSim, and the steps before and
        after. Raises UsageError for contradicting options.
        """
        widths = bits_of(asked.precision)
        assert widths is not None
        given = asked.options
        if given["lpbq"] and widths[0] != 4:
            raise UsageError(f"--option lpbq=true with {asked.precision}", why="LPBQ holds 4-bit weights", next="w4a16")
        if given["lpbq"] and not self.blocked:
            raise UsageError("lpbq for this release", why="its provider takes no weights in blocks", next="a later one")
        if given["adaround"] and given["seq_mse"]:
            raise UsageError("adaround and seq_mse at once", why="both choose the weights' integers", next="take one")
        if given["seq_mse"] and given["scheme"] != "min_max":
            raise UsageError("seq_mse without scheme=min_max", why="AIMET searches from that one only", next="min_max")
        # The arguments of the two ways to mix precisions. UsageError for both at once, or if nothing can be raised.
        lite, amp = given["lite_mp"], given["amp"]
        if lite is not None and amp is not None:
            raise UsageError("lite_mp and amp at once", why="both choose which layers are raised", next="take one")
        to_int16 = amp is not None or (lite is not None and given["lite_mp_to"] == "int16")
        if to_int16 and widths[1] > 8:
            raise UsageError(
                f"{'amp' if amp is not None else 'lite_mp'} with {asked.precision}",
                why="activations have 16 bits already",
                next="w8a8, or lite_mp_to=float16",
            )
        mixed = {
            "lite_mp": None if lite is None else {"percent": lite, "to": given["lite_mp_to"]},
            "amp": None if amp is None else {"decibels": amp},
        }
        version = given["encoding_version"] or encodings_version(asked.target, lpbq=bool(given["lpbq"]))
        return QuantizerJob(
            script=Path(__file__).with_name("aimet_job.py"),
            rewrites=("table-of-its-own",),  # AIMET refuses a weight with two kinds of readers
            settings={
                "param_type": f"int{widths[0]}",
                "activation_type": f"int{widths[1]}",
                "configuration": given["configuration"] or configuration(asked.target),
                "encoding_version": version,
                "scheme": given["scheme"],
                "percentile": given["percentile"] if given["scheme"] == "percentile" else None,
                "fold_batchnorm": given["fold_batchnorm"],
                "cle": given["cle"],
                "floats": list(asked.floats),
                "float16": "fp16" in (asked.target.device.fact("precisions") or ()),
                "seq_mse": {"num_candidates": given["candidates"]} if given["seq_mse"] else None,
                "adaround": {"num_iterations": given["iterations"]} if given["adaround"] else None,
                "lpbq": {"block_size": given["block_size"], "operators": self.blocked} if given["lpbq"] else None,
                **mixed,
            },
        )


# The quantizer of the toolchain aimet.
AIMET: Quantizer = Aimet()


def configuration(target: Target) -> str:
    """AIMET's configuration for a chip's architecture, or that for the next older architecture.

    "" for a chip whose architecture is not known, or older than all of them.
    """
    arch = arch_of(target.device)
    number = int(arch[1:]) if arch[1:].isdigit() else 0
    fitting = [known for known in _CONFIGURATIONS if known <= number]
    return f"htp_v{fitting[-1]}" if fitting else ""


def encodings_version(target: Target, *, lpbq: bool) -> str:
    """The newest encodings version that a converter of the SDK is known to read, else 1.0.0, which deploykit converts.

    With ``lpbq`` 0.6.1 is left out, as it cannot hold blocks.
    """
    sdk, arch = target.sdk, arch_of(target.device)
    for version in _VERSIONS:
        statuses = {sdk.status(f"encodings-{version}", tool=tool, arch=arch) for tool in _CONVERTERS} if sdk else set()
        if Status.SUPPORTED in statuses and not (lpbq and version == "0.6.1"):
            return version
    return _VERSIONS[0]
