"""Recorded landscapes: what combinations of settings took, as data, and a runner that answers from it."""
