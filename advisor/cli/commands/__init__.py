"""The commands, a file each: its options and what it does. `grammar.py` lists them."""
