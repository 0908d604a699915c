"""Packages on disk: writing, sealing, verifying, building and reporting them."""
