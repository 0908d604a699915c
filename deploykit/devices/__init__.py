"""A package on a real device: the connection to it, one run there, and what the run measured."""
