"""What results mean: how much better one is than another, and whether it computes the same."""
