"""The JSON files of a package: provider options and session entries, for compiling and for the device. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deploykit_ort_qnn.prepare import Draft

__all__ = ["COMPILE", "RUN", "TYPES", "build_configs"]

COMPILE, RUN = "config/compile_options.json", "config/run_options.json"
TYPES = "config/intended_types.json"


def build_configs(draft: Draft) -> dict[str, Any]:
    """Path to JSON value. ``soc_model`` is always there when compiling; on the device the binary has its own."""
    mode = draft.options.get("finalization_mode")
    extra = {} if mode is None else {"htp_graph_finalization_optimization_mode": str(mode)}
    compile_options = {**draft.chosen.compile, **extra, "soc_model": str(draft.soc_model)}
    fallback = draft.chosen.allows_cpu
    return {
        COMPILE: {
            "provider_options": dict(sorted(compile_options.items())),
            "session_entries": {
                "ep.context_embed_mode": draft.chosen.entries.get("ep.context_embed_mode", "0"),
                "ep.context_enable": "1",
                **({} if fallback else {"session.disable_cpu_ep_fallback": "1"}),
                **_others(draft.chosen.entries),
            },
        },
        RUN: {
            "provider_options": dict(sorted({"htp_performance_mode": "burst", **draft.chosen.run}.items())),
            "session_entries": {} if fallback else {"session.disable_cpu_ep_fallback": "1"},
        },
    }


def _others(entries: Mapping[str, str]) -> dict[str, str]:
    ours = ("ep.context_embed_mode", "session.disable_cpu_ep_fallback")
    return {name: value for name, value in sorted(entries.items()) if name not in ours}
