"""The search: one loop that measures whatever is expected to gain most for what it costs.

What is known is a value (``known.py``); ``moves.py`` says what could be measured next and what it may gain; the lab
measures, knows what everything costs, and follows the person's decisions. Retrying, resuming, following a decision and
a longer budget are this loop from another state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

from advisor.experiment.known import Evidence, Known, Move
from advisor.experiment.moves import moves


class Lab(Protocol):
    """The search's interface to the world."""

    def measure(self, move: Move, known: Known) -> Evidence:
        """Measure a move. Raises SessionCancelledError when the person ends the session meanwhile."""

    def cost_s(self, move: Move, known: Known) -> float:
        """The seconds that a move is expected to take."""

    def affords(self, move: Move, known: Known) -> bool:
        """Whether there is time for a move, and for what must come after it."""

    def tell(self, known: Known) -> Known:
        """Tell the outside what is known, and return it under the decisions that the person has taken meanwhile."""


def search(known: Known, lab: Lab, *, wanted: Callable[[Move], bool] = lambda move: True) -> Known:
    """Measure what is worth most for its cost, until nothing affordable is left; what is known then."""
    while move := best(filter(wanted, moves(known)), known, lab):
        known = lab.tell(known.after(move, lab.measure(move, known)))
    return known


def best(possible: Iterable[Move], known: Known, lab: Lab) -> Move | None:
    """The move that comes next; None when nothing affordable is left."""
    return next(iter(rank(possible, known, lab)), None)


def rank(possible: Iterable[Move], known: Known, lab: Lab) -> list[Move]:
    """The affordable moves, the largest expected gain for its cost first, a bold leap before all others."""

    def worth(move: Move) -> tuple[bool, float]:
        return move.is_bold, math.log(move.gain) / lab.cost_s(move, known)

    return sorted((move for move in possible if lab.affords(move, known)), key=worth, reverse=True)
