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
# Steps that changed something before steps are run without a look at what they change (a rest): where a model replaces
# what it holds in each step, as Mask R-CNN does, looking takes as long as the step. A count.
CHANGES_BEFORE_A_REST = 8
CHANGES_BETWEEN_RESTS = 3  # such steps between two rests
LONGEST_REST = 256  # steps; the first rest has CHANGES_BEFORE_A_REST, and each next one twice as many


class Patience:
    """The rule for capturing an eager step: once nothing has changed for some steps.

    These are more after each graph that lived for a few steps only. ``reason`` says what was in the way last. Where
    steps change something again and again, most are run without a look: while it ``rests``.
    """

    def __init__(self, first: int = EAGER_STEPS_BEFORE_CAPTURE) -> None:
        self.needed = first  # steps before the next capture
        self.steady = -1  # eager steps since something changed
        self.replays = 0  # of the present graph
        self.eager = 0  # steps since the last replay
        self.reason = ""
        self.warned = False
        self.changed = False  # whether the present step changed something
        self.changes = 0  # such steps since the last replay
        self.rest = CHANGES_BEFORE_A_REST  # steps of the next rest
        self.rests_until = 0  # the number of eager steps at which the present rest ends

    def look(self, reason: str) -> None:
        """Before an eager step: ``reason`` says what changed since the last one; empty when nothing did."""
        self.steady = 0 if reason else self.steady + 1
        self.reason = reason or self.reason
        self.changed = self.changed or bool(reason)

    @property
    def rests(self) -> bool:
        """Whether the next eager step runs without a look at what it changes."""
        return self.eager < self.rests_until

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
        """Count an eager step; warn once when many have run without a replay."""
        self.eager += 1
        self.changes += self.changed
        self.changed = False
        if self.changes >= CHANGES_BEFORE_A_REST:
            self.changes -= CHANGES_BETWEEN_RESTS
            self.rests_until = self.eager + self.rest
            self.rest = min(2 * self.rest, LONGEST_REST)
        if self.eager == EAGER_STEPS_BEFORE_WARNING and not self.warned:
            self.warned = True
            warnings.warn(
                f"step.cuda_graph: {self.eager} steps in a row ran without a CUDA graph. Last reason: {self.reason}.",
                stacklevel=6,
            )

    def replayed(self) -> None:
        """Count a replay."""
        self.replays += 1
        self.eager = self.changes = self.rests_until = 0
        self.rest = CHANGES_BEFORE_A_REST
        self.steady = -1
