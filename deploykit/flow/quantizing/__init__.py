"""A float model and calibration data become encodings: a quantizer runs in a child process and is judged here.

The backend says which quantizers there are; each has its own script. Nothing here packages anything.
"""
