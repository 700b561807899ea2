"""What a trial measures with: batches, the clock, memory, what disturbed it, the first steps."""
