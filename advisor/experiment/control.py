"""What a user interface may ask of a session."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from advisor.experiment.verification import Exported
    from advisor.records import StackRecord

# Why a candidate is not tried, or a setting is not in the stack.
REJECTED = "you rejected it"


class Decision(StrEnum):
    """What the person said of a recommendation."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"


class SessionControl(Protocol):
    """A session as a user interface sees it. ``run``, ``rework``, ``retry`` and ``verify`` block: call them in threads.

    ``cancel``, ``stop`` and ``decide`` may be called from any thread at any time.
    """

    def run(self) -> None:
        """Run the whole session, posting events; returns when it is over or cancelled. Never raises."""

    def cancel(self) -> None:
        """End the running trial at once and the session with it; what was measured is kept."""

    def stop(self) -> None:
        """End a running ``rework``, ``retry`` or ``verify`` at once; the session and what was measured stay."""

    def decide(self, recipe_id: str, decision: Decision | None) -> None:
        """Record what the person said (None takes it back). A running session follows it at its next step.

        It ends a running ``rework``, which is out of date by it: call that again.
        """

    def rework(self) -> None:
        """Find the stack again under the present decisions, posting events. Nothing when they are followed already."""

    def retry(self, name: str) -> None:
        """Run the trial of a candidate again, posting events."""

    def verify(self, exported: Exported, stack: StackRecord) -> None:
        """Time the target's loop with an exported file and without it, posting what came of it."""
