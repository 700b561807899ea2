"""Applying settings and running a step: the one implementation behind the trials and ``advisor.load()``."""
