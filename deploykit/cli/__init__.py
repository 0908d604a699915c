"""The command line: one small module per command, loaded only when the command is called."""
