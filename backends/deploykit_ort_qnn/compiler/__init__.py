"""The vendor's compiler and emulator: workers, hosts, what they read and leave behind."""

__all__: list[str] = []
