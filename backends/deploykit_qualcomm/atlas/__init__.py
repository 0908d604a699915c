"""The measurements of the HTP's kernels: the rows, the lookup of a node, and the limits of a wrong kernel."""

__all__ = ()
