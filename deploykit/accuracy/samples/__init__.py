"""Every input that any judgement uses: calibration data of the user, read and described, or made by stated rules.

Arrays are read with NumPy. Images are looked at (header and end) before anything decodes them: here Pillow, where it is
installed, else the decoder of whoever needs their pixels; with the recipe that lies beside them in either case.
"""

from deploykit.accuracy.samples.arrays import read_arrays
from deploykit.accuracy.samples.calibration import Calibration, load_calibration, read_samples
from deploykit.accuracy.samples.inputs import InputSpec, input_specs

__all__ = ["Calibration", "InputSpec", "input_specs", "load_calibration", "read_arrays", "read_samples"]
