"""Questions that need no model: compat, targets, rules, doctor."""
