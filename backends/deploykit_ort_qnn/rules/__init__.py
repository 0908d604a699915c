"""Rules of ort-qnn: on the prepared model, and on what a compilation left behind."""
