"""Rules of vitis-ai: on request, model, release, and the quantized model."""
