"""The commands, listed in `grammar.py`: a function reads the options, does it, and returns the exit code.

It may raise AdvisorError. Its docstring is the text of the command's help.
"""
