"""Other ways to compute what a kernel computes wrongly, each tried on the emulator and kept only where it is right.

A way knows one idea and no measurement; ``driver`` tries them all, whatever the operator.
"""
