"""Every input that any judgement uses: calibration data of the user, read and described, or made by stated rules.

Arrays are read with NumPy. Images are only looked at (header and end), never decoded: whoever needs their pixels
decodes them where a decoder is, with the recipe that lies beside them.
"""

from deploykit.numerics.samples.arrays import read_arrays
from deploykit.numerics.samples.inputs import InputSpec, input_specs
from deploykit.numerics.samples.sources import Calibration, load_calibration
from deploykit.numerics.samples.stored import read_samples

__all__ = ["Calibration", "InputSpec", "input_specs", "load_calibration", "read_arrays", "read_samples"]
