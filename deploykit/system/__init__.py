"""Access to the system: opening and copying files safely, running programs, isolated environments.

Every module is imported by its own name, so that reading a file does not load the code that installs toolchains.
"""

__all__ = ()
