"""This backend's own options; configuration keys for ``--option`` are in the SDK tables."""

from deploykit.backend.options import MAX_SEGMENTS, OptionSpec
from deploykit_qualcomm.backend import EMIT

__all__ = ["OPTIONS"]

OPTIONS = (
    OptionSpec("route", "text", metavar="ID", help="Insist on one route."),
    OptionSpec(
        "input_list",
        "switch",
        help="Insist on calibration inside the converter, or on none. Default: what the encodings need.",
    ),
    MAX_SEGMENTS,
    EMIT,
    OptionSpec(
        "also",
        "path",
        metavar="MODEL",
        help="A second graph over the same weights (decode beside prefill), for the same context.",
    ),
    OptionSpec(
        "parts",
        "integer",
        low=1,
        metavar="N",
        help="Cut the model into so many parts, a context binary each. Default: as the chip's limit per graph asks.",
    ),
)
