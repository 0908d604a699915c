"""Quantization encodings: values, AIMET 0.6.1 / 1.0.0 / 2.0.0 files, ONNX QDQ, and what a conversion loses."""
