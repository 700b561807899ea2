"""The code that runs inside a trial process: loading, timing, memory, phases, profile, numerics."""
