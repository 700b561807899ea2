"""The code that runs trials within the budget: the baseline, the candidates, turns, checks and verification."""
