"""Graph rewrites, one per file: a matcher that says why it does not apply, the rewrite, new encodings, a proof."""
