"""The requests that a user interface may make of a session."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from advisor.records import StackRecord, Value

if TYPE_CHECKING:
    from advisor.experiment.verification import Exported

# Why a candidate is not tried, or a setting is not in the stack.
REJECTED = "you rejected it"


class Decision(StrEnum):
    """The person's answer to a recommendation."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"


class SessionControl(Protocol):
    """A session as a user interface sees it. ``run``, ``rework``, ``retry``, ``try_more`` and ``verify`` block.

    Call these in a thread. Everything else may be called from any thread at any time.
    """

    def run(self) -> None:
        """Run the whole session, posting events; returns when it is over or cancelled. Never raises."""

    def cancel(self) -> None:
        """End the running trial at once and the session with it; what was measured is kept."""

    def stop(self) -> None:
        """End a running ``rework``, ``retry`` or ``verify`` at once; the session and what was measured stay."""

    def skip(self) -> None:
        """End the running trial; the session goes on without it. Nothing before the baseline is measured."""

    def pause(self) -> None:
        """Start no further trial until ``go_on``; the one that runs goes on to its end. The budget waits too."""

    def go_on(self) -> None:
        """Go on after ``pause``."""

    def extend(self, seconds: float) -> None:
        """Give a running session this much more time."""

    def finish(self) -> None:
        """End the running trial and the search; the session closes with what it has, as when its time is over."""

    def decide(self, recipe_id: str, decision: Decision | None, value: Value | None = None) -> None:
        """Record what the person said (None takes it back). A running session follows it at its next step.

        With a ``value`` only that one of the recipe's values is accepted. A decision ends a running ``rework``, which
        is out of date by it: call that again.
        """

    def rework(self) -> None:
        """Find the stack again under the present decisions, posting events. Nothing when they are followed already."""

    def retry(self, name: str) -> None:
        """Run the trial of a candidate again, posting events."""

    def try_more(self, seconds: float | None = None) -> None:
        """After the session: search on for this long, or for as long as the session had, posting events."""

    def verify(self, exported: Exported, stack: StackRecord) -> None:
        """Time the target's loop with an exported file and without it, posting what came of it."""
