"""Runs of models on the CPU: as they are, quantized as the encodings say, and in parts."""
