"""Control of Python's garbage collector in a loop of steps."""

import gc

# Calls before what lives then is frozen. Steps; by then compilation and the capture of a CUDA graph are over.
STEPS_BEFORE_FREEZING = 10
# Calls from one scheduled collection to the next. Steps; nanochat and torchtitan collect as often.
STEPS_BETWEEN_COLLECTIONS = 50


class Collector:
    """A function that a loop calls after each step. ``how`` is ``freeze`` or ``scheduled``.

    After ten steps all objects that live then are taken out of later collections, once. ``scheduled`` also switches
    the automatic collections off and collects young objects at every fiftieth step.
    """

    def __init__(self, how: str) -> None:
        self.how = how
        self.steps = 0

    def __call__(self) -> None:
        """Count a step, and collect when its turn has come."""
        self.steps += 1
        if self.steps == STEPS_BEFORE_FREEZING:
            gc.collect()
            gc.freeze()
            if self.how == "scheduled":
                gc.disable()
        elif self.how == "scheduled" and self.steps % STEPS_BETWEEN_COLLECTIONS == 0:
            gc.collect(1)
