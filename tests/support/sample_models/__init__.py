"""Small models that tests build: one property each, fixed random weights, nothing run."""
