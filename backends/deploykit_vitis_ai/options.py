"""This backend's own options; keys of the compiler, the provider and Quark are in ``config_keys``."""

from deploykit.backend.options import OptionSpec

__all__ = ["OPTIONS"]

OPTIONS = (
    OptionSpec("exclude_node", "texts", metavar="NAME", help="Keep one node in float; repeatable."),
    OptionSpec("exclude_subgraph", "texts", metavar="A,B:C", help="Keep START…:END… in float; repeatable."),
    OptionSpec("exclude_nothing", "flag", help="Leave nothing in float that was not named."),
    OptionSpec("hold_out", "flag", help="Measure on samples the quantizer did not see, one in five."),
    OptionSpec("keep_float16", "flag", help="What is kept in float stays float16 (float16 models only)."),
    OptionSpec("random_data", "flag", help="Calibrate with random data: never for production."),
)
