"""This backend's own options; provider options and session entries for ``--option`` are in ``provider_keys``."""

from deploykit.backend.options import ESTIMATE, KERNELS, MAX_TIME, OptionSpec
from deploykit_qualcomm.backend import EMIT

__all__ = ["OPTIONS"]

OPTIONS = (
    OptionSpec("finalization_mode", "integer", low=0, high=3, metavar="N", help="The compiler's optimization effort."),
    OptionSpec(
        "dlc",
        "flag",
        since="2.37.1",
        help="Write a DLC too, without a converter, and compare its types with what is meant.",
    ),
    EMIT,
    KERNELS,
    ESTIMATE,
    MAX_TIME,
    OptionSpec(
        "repair",
        "texts",
        metavar="NODE=WAY",
        help="Do a node of the compiled model in another way; found by trial where the audit finds it wrong.",
    ),
    OptionSpec("lpbq", "flag", help="Turn block quantization into LPBQ (lossy)."),
    OptionSpec("strict_precision", "flag", help="Any change of precision is an error."),
    OptionSpec(
        "time_limit",
        "number",
        low=1,
        default=1800.0,
        metavar="SECONDS",
        help="For each compilation, emulation and search for a fault on this machine.",
    ),
)
