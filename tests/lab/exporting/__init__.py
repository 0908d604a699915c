"""Exports the zoo's models: real classes with random weights, quantized by AIMET; needs torch, which no test does."""
