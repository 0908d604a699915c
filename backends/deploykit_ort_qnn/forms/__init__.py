"""What a release's compiler needs written in another way; each form says until which release."""

__all__: list[str] = []
