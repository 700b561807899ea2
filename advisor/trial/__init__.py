"""Runs inside a trial process: loading, timing, memory, phases, profile, numerics."""
