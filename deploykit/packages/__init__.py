"""What is on disk: written, sealed, verified, built, reported."""
