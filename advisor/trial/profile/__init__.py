"""The instrumented pass: the parts of a step's time, and the machine's peak rates."""
