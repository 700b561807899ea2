"""Several GPUs: what is known of runs over ranks, the moves, and their trials."""
