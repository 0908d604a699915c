"""The qnn-htp backend: Qualcomm HTP through QAIRT."""
