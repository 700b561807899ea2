"""The commands, a file each with its options and its action. `grammar.py` lists them."""
