"""The meaning of results: ratios between runs with intervals, and whether two runs compute the same."""
