"""How far a session is: the stage it is in, and the share of its time that has passed."""

from __future__ import annotations

from collections.abc import Callable

from advisor.experiment.bench import Bench
from advisor.experiment.events import Event, ProgressMade, StageStarted
from advisor.experiment.reserves import Reserves


class Progress:
    """Tells the outside how far the session is.

    ``trials_left`` counts the candidates that are still to be tried in this part of the session; it says something once
    ``has_plan``.
    """

    def __init__(self, bench: Bench, reserves: Reserves, emit: Callable[[Event], None]) -> None:
        self._bench = bench
        self._reserves = reserves
        self._emit = emit
        self._share = 0.0
        self.stage = ""
        self.trials_left = 0
        self.has_plan = False

    def enter(self, stage: str) -> None:
        """Begin a stage."""
        self.stage = stage
        self._emit(StageStarted(stage))
        self.tell()

    def tell(self) -> None:
        """Post the share of the time that has passed, and what is left of it."""
        budget = self._bench.budget
        expected_s = self.trials_left * budget.expected_s() + self._reserves.solo_s()
        left_s = min(budget.left_s, expected_s) if self.has_plan else budget.left_s
        spent_s = budget.spent_s
        share = spent_s / (spent_s + left_s) if left_s else 1.0
        # What is left is an estimate that grows when trials turn out slow; a bar that runs backwards helps nobody.
        self._share = max(self._share, share)
        self._emit(ProgressMade(self._share, left_s))

    def begin_anew(self) -> None:
        """Start from nothing: what comes is measured after the session, with time of its own."""
        self._share, self.trials_left = 0.0, 0
