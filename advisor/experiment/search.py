"""The search: one loop that measures the move with the largest expected gain for its cost.

The names on this page:

- ``known`` is all that is known at one moment: the runs so far, the candidates, the best stack (the settings that work
  best together). It is a frozen value (``known.py``); each move replaces it by a new one.
- A *move* is one thing to measure next: settings and their expected speed-up factor (``Move.gain``).
  ``moves(known)`` lists all moves (``moves.py``).
- The *trials* object runs trials (``measuring/move_trials.py``). It knows what a move costs in seconds, whether there
  is time for it, and what the person has decided meanwhile.

Retrying, resuming, following a decision and using a longer budget run this loop from another ``known``. The search over
several GPUs (``scaling/``) runs it with its own knowledge, moves and trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol, Self, TypeVar

from advisor.experiment.known import Evidence, Move


class Knowledge(Protocol):
    """The knowledge at one moment of a search."""

    def after(self, move: Move, evidence: Evidence | None, /) -> Self:
        """The knowledge after a move."""


KnownT = TypeVar("KnownT", bound=Knowledge)


def search(known: KnownT, trials: Trials[KnownT], moves: Callable[[KnownT], Iterable[Move]]) -> KnownT:
    """Measure the best move until none is affordable, and return the knowledge at that point."""
    while move := next(iter(rank(moves(known), known, trials)), None):
        known = trials.publish(known.after(move, trials.measure(move, known)))
    return known


def rank(possible: Iterable[Move], known: KnownT, trials: Trials[KnownT]) -> list[Move]:
    """The affordable moves: those with priority first, then by the logarithm of the expected gain per second."""

    def worth(move: Move) -> tuple[bool, float]:
        return trials.comes_first(move), math.log(move.gain) / trials.cost_s(move, known)

    return sorted((move for move in possible if trials.affords(move, known)), key=worth, reverse=True)


class Trials(Protocol[KnownT]):
    """The search's interface to the world."""

    def measure(self, move: Move, known: KnownT, /) -> Evidence | None:
        """Measure a move. Raises SessionCancelledError if the person ends the session during it."""

    def cost_s(self, move: Move, known: KnownT, /) -> float:
        """The seconds that a move is expected to take."""

    def affords(self, move: Move, known: KnownT, /) -> bool:
        """Whether a move is wanted and there is time for it and for confirming the stack afterwards."""

    def comes_first(self, move: Move, /) -> bool:
        """Whether a move promises so much that it comes before all others."""
        return False

    def publish(self, known: KnownT, /) -> KnownT:
        """Post the events for new knowledge. Return it with the person's decisions since the last call."""
