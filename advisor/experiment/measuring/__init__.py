"""Everything that runs trials: the baseline, the candidates, turns, checks and verification, within the budget."""
