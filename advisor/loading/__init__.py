"""Data loaders made anew, and what reads their batches."""
