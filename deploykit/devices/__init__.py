"""Runs a package on a real device: connections, the run, the measurements and their record."""
