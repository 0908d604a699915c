"""Runs small graphs side by side on the compiler and the emulator, and measures how far off their outputs are."""

__all__ = ()
