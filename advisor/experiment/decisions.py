"""The person's decisions on recipes, as a running session sees them: read and changed from any thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from advisor.experiment.control import Decision
from advisor.records import Value


class Decisions:
    """The decisions so far. ``version`` grows with each change, also when one is taken back."""

    def __init__(self, known: Mapping[str, Decision] | None = None, values: Mapping[str, Value] | None = None) -> None:
        self._of = dict(known or {})
        self._values = dict(values or {})
        self._lock = threading.Lock()
        self.version = 0

    def take(self, recipe: str, decision: Decision | None, value: Value | None = None) -> bool:
        """Take a decision on a recipe or one of its values, or take it back (None). Return whether anything changed."""
        with self._lock:
            if (self._of.get(recipe), self._values.get(recipe)) == (decision, value):
                return False
            self._of.pop(recipe, None)  # the latest stands last
            self._values.pop(recipe, None)
            if decision is not None:
                self._of[recipe] = decision
            if value is not None:
                self._values[recipe] = value
            self.version += 1
            return True

    def of(self, recipe: str) -> Decision | None:
        """The decision on a recipe."""
        with self._lock:
            return self._of.get(recipe)

    def rejects(self, recipe: str) -> bool:
        """Whether a recipe is rejected."""
        return self.of(recipe) is Decision.REJECTED

    def all(self) -> dict[str, Decision]:
        """Every decision that stands, the latest last."""
        with self._lock:
            return dict(self._of)

    def values(self) -> dict[str, Value]:
        """The one value that was accepted, of each recipe where it was one."""
        with self._lock:
            return dict(self._values)
