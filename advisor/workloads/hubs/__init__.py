"""Adapters for models of other libraries: one file per library, found by ``contract.py``."""
