"""The commands: a file has the options of each, and what it does. `grammar.py` lists them."""
