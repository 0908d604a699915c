"""The contract of a backend: what it must have and may offer, its inputs and its results."""
