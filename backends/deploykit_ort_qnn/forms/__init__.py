"""Other forms that a release's compiler needs for some operators; each form says until which release."""

__all__ = ()
