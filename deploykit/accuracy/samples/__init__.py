"""Every input that any judgement uses: calibration data of the user, read and described, or made by stated rules.

Arrays are read with NumPy. The header and end of an image are checked before anything decodes it: here Pillow, where it
is installed, else the decoder of the tool that needs pixels. Both follow the recipe that lies beside the images.
"""
