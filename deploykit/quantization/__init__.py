"""Encodings on a graph: placing, completing, moving, cutting, QDQ in and out."""
