"""What accepting and rejecting mean to the views that offer it. Pure functions of the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from advisor.experiment.control import Decision
from advisor.experiment.state import SessionState

# What each action of the registry decides; None takes a decision back.
DECISIONS: Mapping[str, Decision | None] = {
    "accept": Decision.ACCEPTED,
    "reject": Decision.REJECTED,
    "undo": None,
}


def handlers_of(decide: Callable[[Decision | None], None]) -> dict[str, Callable[[], None]]:
    """The handlers of a view whose chosen recipe ``decide`` decides about."""
    return {name: partial(decide, decision) for name, decision in DECISIONS.items()}


def can_decide(state: SessionState, recipe: str, name: str) -> bool:
    """Whether an action changes what is decided of a recipe, and that changes anything in the session."""
    changes = state.decisions.get(recipe) is not DECISIONS[name]
    return changes and (name == "undo" or state.can_decide(recipe))


def can_measure_stack(state: SessionState) -> bool:
    """Whether measuring the stack again was left undone: stopped, or cut short by the budget."""
    stack = state.stack
    return state.finished is not None and stack is not None and (stack.pending or not stack.confirmed)
