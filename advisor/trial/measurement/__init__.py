"""The instruments of a trial: batches, the clock, memory, what disturbed it, the first steps."""
