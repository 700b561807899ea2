"""What a session keeps back of its budget while it measures, so that the stack and its confirmation still fit."""

from __future__ import annotations

from advisor.experiment.bench import Bench

# What a session keeps back for the stack and its confirmation while solo trials run.
_STACK_TRIALS_RESERVED = 2
_LARGEST_RESERVE = 0.35
# A compilation for which no more than this share of the budget has to be kept is waited for.
_LARGEST_COMPILE = 0.5


class Reserves:
    """Says what still fits into the budget, in wall seconds, by what has to come after it.

    ``compile_cost`` is the cost of the compilation that is still to come, ``stack_cost`` that of what the stack
    compiles; both are relative to the usual compilation, and 0 when nothing is compiled.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.compile_cost = 0.0
        self.stack_cost = 0.0

    def affordable(self, *, cost: float = 0.0, fresh: bool = False, reserve_s: float | None = None) -> bool:
        """Whether a trial fits. ``cost``: that of its compilation; ``reserve_s``: as :meth:`solo_s` by default.

        ``fresh``: it gets an interpreter of its own.
        """
        reserve = self.solo_s() if reserve_s is None else reserve_s
        return self._bench.budget.allows(self._expected_s(cost, fresh), reserve_s=reserve)

    def too_late(self, *, cost: float = 0.0, fresh: bool = False) -> str:
        """Why a trial that does not fit is skipped."""
        needed = self._expected_s(cost, fresh)
        fits = self._bench.budget.allows(needed)
        left = "and what the budget has left is kept for what comes after it"
        return (
            f"it needs about {needed:.0f} s, {left if fits else 'more than the budget has left'}; "
            "raise --budget to try it"
        )

    def _expected_s(self, cost: float, fresh: bool) -> float:
        budget = self._bench.budget
        return max(budget.expected_s(cost=cost), budget.expected_s()) + (budget.interpreter_s if fresh else 0.0)

    def solo_s(self) -> float:
        """What solo trials leave: a few trials of the stack, a compilation while one is to come, and the proof."""
        budget = self._bench.budget
        wanted_s = _STACK_TRIALS_RESERVED * budget.expected_s() + self.compile_s() + self.confirmation_s()
        return min(wanted_s, _LARGEST_RESERVE * budget.total_s)

    def stack_s(self) -> float:
        """What growing the stack leaves for what comes after it: a compilation, while one is to come, and the proof."""
        return self.compile_s() + self.confirmation_s()

    def compile_s(self) -> float:
        """One compilation, while one is still to come and the budget is of a size that can pay it."""
        budget = self._bench.budget
        expected_s = budget.expected_s(cost=self.compile_cost) if self.compile_cost else 0.0
        return expected_s if expected_s < _LARGEST_COMPILE * budget.total_s else 0.0

    def confirmation_s(self) -> float:
        """Two processes that start and warm up, and the alternate blocks."""
        budget = self._bench.budget
        # The compiler's cache on disk is warm by then.
        warm_compile_s = 0.5 * budget.expected_s(cost=self.stack_cost) if self.stack_cost else 0.0
        return 2 * budget.expected_s() + 3 * budget.measure_s + warm_compile_s
