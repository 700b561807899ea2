"""Two programs compared: commands in turn, builds in turn, and trainings from the same seeds."""
