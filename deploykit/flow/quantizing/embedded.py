"""The quantizer that is always there: ONNX Runtime's static quantization, which deploykit needs anyway.

It plans only; ``ort_static`` is what runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.backend.options import OptionSpec
from deploykit.backend.quantizers import Quantizer, QuantizerAsked, QuantizerJob, bits_of

if TYPE_CHECKING:
    from deploykit.backend.targets import Target

__all__ = ["EMBEDDED"]

_TYPES = {8: "QUInt8", 16: "QUInt16"}
_WEIGHTS = {8: "QInt8", 16: "QInt16"}
_METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}


class _OrtStatic(Quantizer):
    id = "ort"
    summary = "ONNX Runtime's static quantization: needs no installation, knows no device"
    toolchain = ""

    def precisions(self, target: Target) -> tuple[str, ...]:
        """Integers of 8 and 16 bits, whatever the target."""
        del target
        return ("w8a16", "w8a8", "w16a16")

    def options(self) -> tuple[OptionSpec, ...]:
        """How ranges are found."""
        return (
            OptionSpec(
                name="method",
                kind="choice",
                choices=tuple(_METHODS),
                default="minmax",
                help="How the range of an activation is found.",
            ),
            OptionSpec(name="per_channel", kind="switch", default=True, help="One weight scale per output channel."),
        )

    def plan(self, asked: QuantizerAsked) -> QuantizerJob:
        """The arguments of ``quantize_static``; weights are symmetric, biases int32."""
        widths = bits_of(asked.precision)
        assert widths is not None
        weight, activation = widths
        wide = max(widths) > 8
        return QuantizerJob(
            script=Path(__file__).with_name("ort_static.py"),
            settings={
                "activation": _TYPES[activation],
                "weight": _WEIGHTS[weight],
                "per_channel": asked.options["per_channel"],
                "method": _METHODS[str(asked.options["method"])],
                # 16-bit Q/DQ in the default domain needs opset 21; the runtime's own domain has them for every model.
                "extra_options": {"WeightSymmetric": True, "UseQDQContribOps": wide},
            },
            rewrites=("raise-opset", "fold-batchnorm"),
        )


EMBEDDED: Quantizer = _OrtStatic()
"""The embedded default."""
