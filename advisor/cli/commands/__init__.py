"""The commands that `grammar.py` lists. Each is a function that reads its options and runs.

The function returns the exit code (None for 0) or raises AdvisorError. Its docstring is the text of the command's help.
"""
