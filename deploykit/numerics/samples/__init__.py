"""Calibration data of the user: read, described, and judged by the guidelines; nothing is quantized here.

Arrays are read with NumPy. Images are only looked at (header and end), never decoded: whoever needs their pixels
decodes them where a decoder is, with the recipe that lies beside them.
"""

from deploykit.numerics.samples.arrays import read_arrays
from deploykit.numerics.samples.sources import Calibration, InputSpec, input_specs, load_calibration, read_samples

__all__ = ["Calibration", "InputSpec", "input_specs", "load_calibration", "read_arrays", "read_samples"]
