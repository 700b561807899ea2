"""Reads Python code (places in the user's files) and writes it (settings as code)."""
