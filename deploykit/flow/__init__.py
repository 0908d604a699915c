"""One request becomes one decision: read, prepare, choose, plan."""
