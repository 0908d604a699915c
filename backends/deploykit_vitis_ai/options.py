"""The options of this backend's own; keys of the compiler, the provider and Quark are in ``config_keys``."""

from deploykit.backend.options import OptionSpec

__all__ = ["OPTIONS"]

OPTIONS = (
    OptionSpec(name="exclude_node", kind="texts", metavar="NAME", help="Keep one node in float; repeatable."),
    OptionSpec(name="exclude_subgraph", kind="texts", metavar="A,B:C", help="Keep START…:END… in float; repeatable."),
    OptionSpec(name="exclude_nothing", kind="flag", help="Leave nothing in float that was not named."),
    OptionSpec(name="hold_out", kind="flag", help="Measure on samples the quantizer did not see, one in five."),
    OptionSpec(name="keep_float16", kind="flag", help="What is kept in float stays float16 (float16 models only)."),
    OptionSpec(name="random_data", kind="flag", help="Calibrate with random data: never for production."),
)
