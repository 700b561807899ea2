"""The commands, listed in `grammar.py`: a function reads the options and does it.

It returns the exit code, None for 0, or raises AdvisorError. Its docstring is the text of the command's help.
"""
