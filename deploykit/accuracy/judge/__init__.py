"""What outputs are worth: measures per kind of output, and the judge that uses them."""
