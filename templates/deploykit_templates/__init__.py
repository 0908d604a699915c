"""Templates as data: the tree mirrors the package tree; JSON is never templated."""
