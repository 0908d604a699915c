"""Rules of qnn-htp: on the prepared model, and on one route for it."""
