"""What was measured of the HTP's kernels: the rows, how a node is looked up in them, and what counts as wrong."""

__all__: list[str] = []
