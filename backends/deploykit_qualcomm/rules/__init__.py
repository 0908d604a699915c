"""What can be seen of trouble on the HTP before anything is compiled: rules about model, encodings, options, target."""
