"""The command line: its grammar, its commands, and the handling of errors (two lines and an exit code)."""
