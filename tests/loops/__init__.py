"""Training and inference loops in the styles that people use, each run as written and with settings applied.

A loop is written once, as a function of a ``Run``: the few calls that a tuned loop changes. ``python -m tests.loops``
prints what came of every loop under every setting; ``test_loops.py`` runs the quick part.
"""
