"""When a step is captured in a graph: after some eager steps that were alike, later where that was not worth it."""

import warnings

# Libraries allocate their workspaces and compilers compile in the first steps; a capture must not see that.
EAGER_STEPS_BEFORE_CAPTURE = 3
# DistributedDataParallel times its first ten steps, for which the host waits, and orders its buckets in the second.
STEPS_THAT_DDP_TIMES = 11
# Replays after which a capture was worth its time. A graph that lives shorter doubles the eager steps before the next.
REPLAYS_WORTH_A_CAPTURE = 100
# Eager steps, without a replay between them, before the user is told why.
EAGER_STEPS_BEFORE_WARNING = 50
MOST_EAGER_STEPS = 3_000  # between two captures


class Patience:
    """The rule for capturing an eager step: once nothing has changed for some steps.

    These are more after each graph that lived for a few steps only. ``reason`` says what was in the way last.
    """

    def __init__(self, first: int = EAGER_STEPS_BEFORE_CAPTURE) -> None:
        self.needed = first  # steps before the next capture
        self.steady = -1  # eager steps since something changed
        self.replays = 0  # of the present graph
        self.eager = 0  # steps since the last replay
        self.reason = ""
        self.warned = False

    def look(self, reason: str) -> None:
        """Before an eager step: ``reason`` says what changed since the last one; empty when nothing did."""
        self.steady = 0 if reason else self.steady + 1
        self.reason = reason or self.reason

    @property
    def is_over(self) -> bool:
        """Whether it is time to capture."""
        return self.steady >= self.needed

    @property
    def is_almost_over(self) -> bool:
        """Whether the next eager step would be captured in its place."""
        return self.steady >= self.needed - 1

    def put_off(self, reason: str) -> None:
        """A capture would be wrong: ask again later, and later each time."""
        self.reason = reason
        self.steady = 0
        self.needed = min(2 * self.needed, MOST_EAGER_STEPS)

    def ended(self, reason: str) -> None:
        """The present graph does not fit any more."""
        self.reason = reason
        self.steady = -1
        short = self.replays < REPLAYS_WORTH_A_CAPTURE
        self.needed = min(2 * self.needed, MOST_EAGER_STEPS) if short else EAGER_STEPS_BEFORE_CAPTURE
        self.replays = 0

    def ran_eagerly(self) -> None:
        """Count an eager step; warn, once, of many without a replay."""
        self.eager += 1
        if self.eager == EAGER_STEPS_BEFORE_WARNING and not self.warned:
            self.warned = True
            warnings.warn(
                f"step.cuda_graph: {self.eager} steps in a row ran without a CUDA graph. Last reason: {self.reason}.",
                stacklevel=6,
            )

    def replayed(self) -> None:
        """Count a replay."""
        self.replays += 1
        self.eager = 0
        self.steady = -1
