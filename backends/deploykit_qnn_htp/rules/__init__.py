"""Rules of qnn-htp: on the prepared model, and on each route for it."""
