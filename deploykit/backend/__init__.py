"""What a backend must have, may offer, is given and returns."""
