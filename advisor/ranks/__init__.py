"""Trials over several ranks: launched by torchrun, led by rank 0."""
