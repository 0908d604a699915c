"""deploykit: packages ONNX models for NPUs, right for one device and one exact SDK version, or a precise no."""
