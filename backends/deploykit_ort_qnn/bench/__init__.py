"""Small graphs run side by side on the compiler and the emulator, what they are given, and how far off they are."""

__all__: list[str] = []
