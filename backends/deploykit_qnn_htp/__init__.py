"""The qnn-htp backend: Qualcomm HTP through QAIRT."""

from deploykit_qnn_htp.backend import QnnHtp

__all__ = ["backend"]

# The object that the entry point deploykit.backends names.
backend = QnnHtp()
