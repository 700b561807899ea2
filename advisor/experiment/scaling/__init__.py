"""Several GPUs: the knowledge about runs over ranks, the moves, and their trials."""
