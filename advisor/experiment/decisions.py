"""What the person decided of recipes, as a running session sees it: read and changed from any thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from advisor.experiment.control import Decision


class Decisions:
    """The decisions so far. ``version`` grows with each change, also when one is taken back."""

    def __init__(self, known: Mapping[str, Decision] | None = None) -> None:
        self._of = dict(known or {})
        self._lock = threading.Lock()
        self.version = 0

    def take(self, recipe: str, decision: Decision | None) -> bool:
        """Take a decision, or take it back (None). Whether that changed anything."""
        with self._lock:
            if self._of.get(recipe) is decision:
                return False
            self._of.pop(recipe, None)  # the latest stands last
            if decision is not None:
                self._of[recipe] = decision
            self.version += 1
            return True

    def of(self, recipe: str) -> Decision | None:
        """What was said of a recipe."""
        with self._lock:
            return self._of.get(recipe)

    def rejects(self, recipe: str) -> bool:
        """Whether a recipe is rejected."""
        return self.of(recipe) is Decision.REJECTED

    def all(self) -> dict[str, Decision]:
        """Every decision that stands, the latest last."""
        with self._lock:
            return dict(self._of)
