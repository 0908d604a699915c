"""The world: opening and copying files safely, starting and ending programs, isolated environments.

Every module is imported by its own name, so that reading a file does not load what installs a toolchain.
"""

__all__: list[str] = []
