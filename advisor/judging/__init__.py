"""What results mean: ratios between runs with their intervals, and whether two runs compute the same."""
