"""Trained models of public wheels, packaged by every route and judged by the task on inputs nobody calibrated on."""
