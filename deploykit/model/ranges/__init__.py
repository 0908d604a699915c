"""Bounds of tensors by interval arithmetic over the graph."""
