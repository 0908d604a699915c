"""A package on a real device: connections, a run, what it measures, and the record of it."""
