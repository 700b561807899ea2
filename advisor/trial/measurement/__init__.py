"""The instruments of a trial: batches, the clock, memory, disturbances, the first steps."""
