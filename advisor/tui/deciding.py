"""Consequences of accepting and rejecting, for the views that offer it. Pure functions of the state."""

from __future__ import annotations

from advisor.experiment.control import Decision
from advisor.experiment.state import SessionState
from advisor.records import Candidate, Value, text_of


def can_decide(state: SessionState, candidate: Candidate, decision: Decision) -> bool:
    """Whether a decision is another than the present one on a candidate, and changes anything in the session."""
    return decision_on(state, candidate) is not decision and state.can_decide(candidate.recipe)


def decision_on(state: SessionState, candidate: Candidate) -> Decision | None:
    """The decision on a candidate; None where another value of its recipe is the accepted one."""
    decision = state.decisions.get(candidate.recipe)
    others = state.accepted_values.get(candidate.recipe, candidate.value) != candidate.value
    return None if decision is Decision.ACCEPTED and others else decision


def values_of(state: SessionState, recipe: str) -> list[Candidate]:
    """The candidates of a recipe, in the order of the plan."""
    return [candidate for candidate in state.candidates.values() if candidate.recipe == recipe]


def value_to_accept(state: SessionState, candidate: Candidate) -> Value | None:
    """The candidate's value where its recipe has several, of which only this one is accepted; else None."""
    return candidate.value if len(values_of(state, candidate.recipe)) > 1 else None


def consequence(
    state: SessionState, recipe: str, decision: Decision | None, value: Value | None = None, *, measures: bool = True
) -> str:
    """The consequence of a decision, told before it is taken. A recorded session ``measures`` nothing by itself."""
    name = recipe if value is None else f"{recipe}={text_of(value)}"
    candidates = values_of(state, recipe)
    stacked = any(state.stack_settings.get(c.key) == c.value for c in candidates)
    over = state.finished is not None
    if decision is None:
        return f"The decision on {recipe} is taken back."
    if decision is Decision.REJECTED:
        if stacked:
            then = "the stack is measured again without it" if measures else "key c measures the stack without it"
            return f"{recipe} is left out; {then}."
        tried = all(c.name in state.trials for c in candidates)
        return f"{recipe} stays out of the stack." if over or tried else f"{recipe} is not tried any more."
    if any(value in (None, c.value) and state.stack_settings.get(c.key) == c.value for c in candidates):
        return f"{name} stays in the stack."
    if not measures:
        return f"{name} is accepted; key c measures it in the stack."
    return f"{name} is accepted; it is measured in the stack {'now' if over else 'next'}."


def can_measure_stack(state: SessionState) -> bool:
    """Whether measuring the stack again was left undone: stopped, or cut short by the budget."""
    stack = state.stack
    return state.finished is not None and stack is not None and (stack.pending or not stack.confirmed)
