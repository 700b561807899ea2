"""Numbers: statistics, the roof, the sweep, and their text for people. Pure functions."""
