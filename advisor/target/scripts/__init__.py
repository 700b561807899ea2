"""Training scripts as they are: run up to their loop, watched, and made into a workload without an edit."""
