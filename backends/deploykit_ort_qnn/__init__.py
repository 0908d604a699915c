"""The ort-qnn backend: ONNX Runtime's QNN provider."""
