"""The option that asks for a workflow of a CI service, in which a package is compiled; it writes none."""

from deploykit.backend.options import OptionSpec

__all__ = ["EMIT", "WORKFLOW"]

EMIT = OptionSpec(
    name="emit",
    kind="choice",
    choices=("github-actions",),
    help="Add a workflow to the package that compiles it on a machine that can.",
)

# Where the workflow lies in the package.
WORKFLOW = "scripts/github-actions/compile.yml"
