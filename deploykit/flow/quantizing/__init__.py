"""A float model and calibration data become encodings: a quantizer runs in a child process and is judged here.

Which quantizers there are is asked of the backend; what one does is in its own script. Nothing here packages anything.
"""
