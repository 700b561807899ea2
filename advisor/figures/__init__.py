"""Numbers: statistics, the roof, the sweep, and how a person reads them. Pure functions."""
