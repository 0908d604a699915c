"""Answers to questions that need no model: compat, rules, binaries, this machine, logs of failed tools."""
