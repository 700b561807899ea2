"""Adapters for models of other libraries: one file per library, found by ``advisor/workloads/adapters.py``."""
