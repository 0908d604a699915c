"""Every input that any judgement uses: calibration data of the user, read and described, or made by stated rules.

Arrays are read with NumPy. Images are looked at (header and end) before anything decodes them: here Pillow, where it is
installed, else the decoder of whoever needs their pixels; with the recipe that lies beside them in either case.
"""
