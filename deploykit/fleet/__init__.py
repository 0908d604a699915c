"""Packages many models for many targets: the file that names them, the runs, the pages, and files for other engines."""

__all__ = ()
