"""The search: one loop that measures the move with the largest expected gain for its cost.

The names on this page:

- ``known`` is all that is known at one moment: the runs so far, the candidates, the best stack (the settings that work
  best together). A frozen value (``known.py``); each move turns it into the next.
- A *move* is one thing to measure next: settings, and the speed-up factor that is expected of them (``Move.gain``).
  ``moves(known)`` lists all (``moves.py``).
- The *trials* runs trials (``measuring/move_trials.py``). It knows what a move costs in seconds, whether there is
  time for it, and what the person has decided meanwhile.

Retrying, resuming, following a decision and a longer budget run this loop from another ``known``. The search over
several GPUs (``scaling/``) has a loop of the same form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from advisor.experiment.known import Evidence, Known, Move
from advisor.experiment.moves import moves


def search(known: Known, trials: Trials) -> Known:
    """Measure the best move until none is affordable, and return what is known then."""
    while move := next(iter(rank(moves(known), known, trials)), None):
        known = trials.publish(known.after(move, trials.measure(move, known)))
    return known


def rank(possible: Iterable[Move], known: Known, trials: Trials) -> list[Move]:
    """The affordable moves by expected gain (as a logarithm) per second, after those that come first."""

    def worth(move: Move) -> tuple[bool, float]:
        return trials.comes_first(move), math.log(move.gain) / trials.cost_s(move, known)

    return sorted((move for move in possible if trials.affords(move, known)), key=worth, reverse=True)


class Trials(Protocol):
    """The search's interface to the world."""

    def measure(self, move: Move, known: Known, /) -> Evidence | None:
        """Measure a move. Raises SessionCancelledError if the person ends the session during it."""

    def cost_s(self, move: Move, known: Known, /) -> float:
        """The seconds that a move is expected to take."""

    def affords(self, move: Move, known: Known, /) -> bool:
        """Whether a move is wanted, and there is time for it and for confirming the stack after it."""

    def comes_first(self, move: Move, /) -> bool:
        """Whether a move promises so much that it comes before all others."""

    def publish(self, known: Known, /) -> Known:
        """Post the events for new knowledge. Return it with the person's decisions since the last call."""
