"""Compare two programs: two commands in turn, and two trainings from the same seeds."""
