"""Rules of vitis-ai: on target, request, model, release, the quantized model, its run and its compilation."""
