"""Numbers: quantized simulation, quality metrics, comparison of outputs."""
