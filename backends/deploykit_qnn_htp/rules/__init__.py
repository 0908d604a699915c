"""Rules of qnn-htp: on the prepared model, on one route for it, on what another compiler said of it."""
