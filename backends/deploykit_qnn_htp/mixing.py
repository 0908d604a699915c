"""Which kinds of ways to mix float16 and integers QAIRT has for a target; it chooses none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploykit.backend.backend import MixedSupport
from deploykit.backend.targets import Target
from deploykit.findings import Confidence
from deploykit.tables.capabilities import Status
from deploykit_qnn_htp.lending import carried_for
from deploykit_qnn_htp.routes import Intent, RouteRow, load_routes, preference
from deploykit_qualcomm.archs import lacks
from deploykit_qualcomm.carriers import Fit

__all__ = ["mixed_support"]


def mixed_support(target: Target, options: Mapping[str, Any]) -> MixedSupport:
    """The kinds of ways for one target; the SDK mixes safely where its preferred route is more than inferred."""
    arch, sdk = str(target.device.fact("arch") or ""), target.sdk
    if sdk is None or lacks("fp16", target.device) or sdk.status("fp16", arch=arch) is Status.UNSUPPORTED:
        why = f"{target.device.name if 'fp16' in target.device.facts else arch} has no float16"
        return MixedSupport(kinds=frozenset({"integer"}), without={"fallback": why, "segments": why})
    lent, *others = (row for row in load_routes().route if row.lent)
    if options.get("route") in (lent.id, *(row.id for row in others)):
        return _one_graph(lent)
    sure = {intent: preference(intent, sdk.parsed).confidence for intent in Intent}
    missing = _why_not_direct(target)
    return MixedSupport(
        kinds=frozenset({"integer", "fallback", "segments", *(() if missing else ("direct",))}),
        safe=sure[Intent.MIXED] is not Confidence.INFERRED,
        without={"direct": missing} if missing else {},
        confidence={
            "fallback": sure[Intent.MIXED],
            "segments": max(sure[Intent.INTEGER], sure[Intent.FLOAT16], key=lambda confidence: confidence.rank),
            "direct": lent.confidence,
        },
        needs={"direct": {"route": lent.id}},
    )


def _one_graph(lent: RouteRow) -> MixedSupport:
    """The provider compiles float16 tensors among integers into one graph, so nothing has to be cut."""
    return MixedSupport(
        kinds=frozenset({"integer", "fallback"}),
        safe=True,
        without={"segments": "one graph is compiled, in which float16 tensors may stand among integers"},
        confidence={"fallback": lent.confidence},
    )


def _why_not_direct(target: Target) -> str:
    """Why no compiler in a public wheel is the right one, "" where there is one."""
    carried = carried_for(target)
    if carried is None:
        return "no public wheel carries a compiler for this device and release"
    if carried.fit is Fit.ITSELF:
        return ""
    return f"the only public compiler of QAIRT {carried.wheel.sdk} compiles for {carried.stands_on.name}"
