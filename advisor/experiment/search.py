"""The search: one loop that measures the move with the largest expected gain for its cost.

The names on this page:

- ``known`` is all that is known at one moment: the runs so far, the candidates, the best stack (the settings that work
  best together). A frozen value (``known.py``); each move turns it into the next.
- A *move* is one thing to measure next: settings, and the speed-up factor that is expected of them (``Move.gain``).
  ``moves(known)`` lists all (``moves.py``).
- The *trials* runs trials (``measuring/move_trials.py``). It knows what a move costs in seconds, whether there is
  time for it, and what the person has decided meanwhile.

Retrying, resuming, following a decision and a longer budget run this loop from another ``known``; the search over
several GPUs runs it with knowledge, moves and a trials of its own (``scaling/``). So the loop is generic: the protocols
below it say what it needs of all three.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol, Self, TypeVar

from advisor.experiment.known import Known, Move
from advisor.experiment.moves import moves


def search(known: Known, trials: Trials[Known, Move], *, wanted: Callable[[Move], bool] = lambda move: True) -> Known:
    """Search on one GPU with the moves that are wanted, and return what is known at the end."""
    return explore(known, trials, lambda state: filter(wanted, moves(state)))


def explore(known: KnownT, trials: Trials[KnownT, MoveT], moves_of: Callable[[KnownT], Iterable[MoveT]]) -> KnownT:
    """Measure the best move until none is affordable, and return what is known then."""
    while move := best(moves_of(known), known, trials):
        known = trials.publish(known.after(move, trials.measure(move, known)))
    return known


def best(possible: Iterable[MoveT], known: KnownT, trials: Trials[KnownT, MoveT]) -> MoveT | None:
    """The first of the ranked moves; None when none is affordable, which ends the search."""
    return next(iter(rank(possible, known, trials)), None)


def rank(possible: Iterable[MoveT], known: KnownT, trials: Trials[KnownT, MoveT]) -> list[MoveT]:
    """The affordable moves by expected gain (as a logarithm) per second, after those that come first."""

    def worth(move: MoveT) -> tuple[bool, float]:
        return trials.comes_first(move), math.log(move.gain) / trials.cost_s(move, known)

    return sorted((move for move in possible if trials.affords(move, known)), key=worth, reverse=True)


# --- what the loop needs -----------------------------------------------------------------------------------------


class AnyMove(Protocol):
    """A move, on one GPU or on several."""

    @property
    def gain(self) -> float:
        """The speed-up factor that is expected of it."""


class Knowledge(Protocol):
    """All that the search knows at one moment; there is one kind for one GPU and one for several."""

    def after(self, move: Any, evidence: Any, /) -> Self:
        """Return the knowledge with the evidence of a move added."""


KnownT = TypeVar("KnownT", bound=Knowledge)
MoveT = TypeVar("MoveT", bound=AnyMove)
AskedT_contra = TypeVar("AskedT_contra", bound=AnyMove, contravariant=True)


class Trials(Protocol[KnownT, AskedT_contra]):
    """The search's interface to the world."""

    def measure(self, move: AskedT_contra, known: KnownT, /) -> Any:
        """Measure a move. Raises SessionCancelledError when the person ends the session meanwhile."""

    def cost_s(self, move: AskedT_contra, known: KnownT, /) -> float:
        """The seconds that a move is expected to take."""

    def affords(self, move: AskedT_contra, known: KnownT, /) -> bool:
        """Whether there is time for a move and for confirming the stack after it."""

    def comes_first(self, move: AskedT_contra, /) -> bool:
        """Whether a move promises so much that it comes before all others."""

    def publish(self, known: KnownT, /) -> KnownT:
        """Post the events for new knowledge, and return it with the decisions that were taken meanwhile."""
