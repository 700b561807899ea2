"""The search: one loop that measures the move with the largest expected gain for its cost.

What is known is a value (``known.py``); ``moves.py`` says what could be measured next and what it may gain; the lab
measures, knows what everything costs, and follows the person's decisions. Retrying, resuming, following a decision and
a longer budget are this loop from another state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol, Self, TypeVar

from advisor.experiment.known import Known, Move
from advisor.experiment.moves import moves


class Step(Protocol):
    """A possible next measurement: its expected gain, and whether it comes before all others."""

    @property
    def gain(self) -> float:
        """A speed-up factor."""

    @property
    def is_bold(self) -> bool:
        """Whether it comes before all others."""


class State(Protocol):
    """The knowledge of a search, on one GPU (``known.py``) or on several (``scaling/known.py``)."""

    def after(self, move: Any, evidence: Any, /) -> Self:
        """Return the knowledge after a move."""


KnownT = TypeVar("KnownT", bound=State)
MoveT = TypeVar("MoveT", bound=Step)
AskedT_contra = TypeVar("AskedT_contra", bound=Step, contravariant=True)


class Lab(Protocol[KnownT, AskedT_contra]):
    """The search's interface to the world."""

    def measure(self, move: AskedT_contra, known: KnownT, /) -> Any:
        """Measure a move. Raises SessionCancelledError when the person ends the session meanwhile."""

    def cost_s(self, move: AskedT_contra, known: KnownT, /) -> float:
        """The seconds that a move is expected to take."""

    def affords(self, move: AskedT_contra, known: KnownT, /) -> bool:
        """Whether there is time for a move and for the turns after it."""

    def tell(self, known: KnownT, /) -> KnownT:
        """Post the events for new knowledge, and return it with the decisions that were taken meanwhile."""


def search(known: Known, lab: Lab[Known, Move], *, wanted: Callable[[Move], bool] = lambda move: True) -> Known:
    """Search on one GPU, and return the knowledge at the end."""
    return explore(known, lab, lambda state: filter(wanted, moves(state)))


def explore(known: KnownT, lab: Lab[KnownT, MoveT], moves_of: Callable[[KnownT], Iterable[MoveT]]) -> KnownT:
    """Measure the best move for its cost until none is affordable, and return the knowledge at the end."""
    while move := best(moves_of(known), known, lab):
        known = lab.tell(known.after(move, lab.measure(move, known)))
    return known


def best(possible: Iterable[MoveT], known: KnownT, lab: Lab[KnownT, MoveT]) -> MoveT | None:
    """The move that comes next; None when nothing affordable is left."""
    return next(iter(rank(possible, known, lab)), None)


def rank(possible: Iterable[MoveT], known: KnownT, lab: Lab[KnownT, MoveT]) -> list[MoveT]:
    """The affordable moves, the largest expected gain for its cost first, a bold leap before all others."""

    def worth(move: MoveT) -> tuple[bool, float]:
        return move.is_bold, math.log(move.gain) / lab.cost_s(move, known)

    return sorted((move for move in possible if lab.affords(move, known)), key=worth, reverse=True)
