"""Files of encodings: AIMET 0.6.1, 1.0.0, 2.0.0, read, written, compared and converted."""
