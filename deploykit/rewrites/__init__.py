"""Graph rewrites by theme, and the orders in which they are applied; whether one is applied is decided elsewhere."""

__all__ = ["CURES", "SAFE_REWRITES", "STRUCTURAL"]

STRUCTURAL = (
    *("raise-opset", "batch-of-one", "resolve-sequences", "both-branches", "simplify"),
    *("index-from-front", "integer-remainder", "merge-axes"),
)
"""Rewrites that keep every value, in the order in which they are applied."""

CURES = (
    # First, since shapes behind operators that onnx does not know are found only once these are gone.
    *("integers-to-pairs", "dequantize-layers"),
    *STRUCTURAL,  # what these settle, the others need not handle
    # Another form of one operator or block, each for what some compiler lacks or computes wrongly.
    *("fuse-gelu", "fuse-hardswish", "expand-before-norm", "divide-by-root", "norm-statistics", "norm-rows"),
    *("pool-by-taps", "cumulate-forward", "product-by-halves", "rank-four", "longer-axes", "reshape-behind"),
    *("pad-by-borders", "equal-of-bools", "float-exponent", "one-hot-of-floats", "cast-by-int32", "zeros-in-kernel"),
    *("write-out-functions", "einsum-to-matmul", "global-pool", "sums-to-matmul", "gathernd-to-gather", "flat-index"),
    *("mask-constant", "clip-to-extremes", "cast-labels", "conv-by-shifts", "transposed-to-conv", "usual-activations"),
    "reverse-by-index",
    # Values that float16 does not hold, in a form in which it does.
    *("double-to-float", "half-to-float", "log-of-scaled", "sum-to-mean"),
    "loops-on-host",  # last: what is settled by another form needs no host
)
"""The rewrites that rules name as cures, in the order in which they are applied."""

SAFE_REWRITES = ("saturating-constant", "mask-constant", "logit-of-sigmoid", "log-of-ratio")
"""Rewrites for precision that keep the inputs and outputs as they are, in the order in which they are tried."""
