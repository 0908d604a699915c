"""For third-party backends: the conformance suite and tiny models."""
