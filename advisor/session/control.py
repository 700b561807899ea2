"""What a user interface may ask of a session."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Decision(StrEnum):
    """What the person said of a recommendation."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"


class SessionControl(Protocol):
    """A session as a user interface sees it. ``run``, ``rework`` and ``retry`` block: call them in a thread.

    ``cancel``, ``decide`` and ``decisions`` may be called from any thread at any time.
    """

    def run(self) -> None:
        """Run the whole session, posting events; returns when it is over or cancelled. Never raises."""

    def cancel(self) -> None:
        """End the running trial at once and the session with it; what was measured is kept."""

    def decide(self, recipe_id: str, decision: Decision | None) -> None:
        """Record what the person said (None takes it back). Steers the stack; see ``rework``."""

    def decisions(self) -> dict[str, Decision]:
        """What the person said so far, by recipe id."""

    def rework(self) -> None:
        """Measure the stack again under the present decisions, posting events. Nothing when it is already measured."""

    def retry(self, name: str) -> None:
        """Run the trial of a candidate again, posting events."""
