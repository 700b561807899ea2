"""Adapters for what other libraries build: one file per library, listed in ``advisor/target/adapters.py``."""
