"""Rules that find trouble on the HTP before compilation: about model, encodings, options, target."""
