"""The vendor's compiler and emulator: the processes that run them, their inputs and their results."""

__all__ = ()
