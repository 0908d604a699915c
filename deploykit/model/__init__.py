"""Reads ONNX models: the graph at once, weights on demand, and nothing outside the model's own folder.

Importing it is cheap: onnx and numpy are imported on use. It judges files, never what a device makes of them.
"""
