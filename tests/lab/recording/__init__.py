"""The replayer of recorded graphs: a second way to ask a backend the same, for whoever looks into a compiler."""
