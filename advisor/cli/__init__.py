"""The command line: its grammar, its commands, and where errors become two lines and an exit code."""
