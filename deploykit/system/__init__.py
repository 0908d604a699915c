"""Isolated Python environments for the vendors' tools: installed in resumable stages, listed, checked and removed.

What goes into an environment is data that the backends hand over; nothing here knows a vendor, and nothing here runs a
tool other than pip and the small programs a stage names.
"""

from deploykit.system.environments import Environment, ToolchainState, environment_of, toolchains_root
from deploykit.system.installing import find_cxx, find_python, install, remove
from deploykit.system.specs import Need, Stage, ToolchainSpec, select

__all__ = [
    "Environment",
    "Need",
    "Stage",
    "ToolchainSpec",
    "ToolchainState",
    "environment_of",
    "find_cxx",
    "find_python",
    "install",
    "remove",
    "select",
    "toolchains_root",
]
