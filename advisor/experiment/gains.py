"""The gain of a session's combination: whether there is one, and how much faster the whole loop gets."""

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_percent, format_times
from advisor.records import LeftOut

# A step that takes a larger share of a round than this counts as the whole round. Unitless.
_MOST_OF_A_ROUND = 0.95


def stack_helps(state: SessionState) -> bool:
    """Whether there is a stack that was measured to be better than the baseline by the session's goal."""
    stack, by = state.stack, state.yardstick
    return bool(stack and stack.settings and by and by.may_recommend(stack.result, stack.comparison))


def whole_loop(state: SessionState) -> str:
    """The step's share of a script's loop, what takes the rest, and the gain of the whole loop; empty for 100 %."""
    times = state.baseline.result.whole_rounds if state.baseline else None
    if times is None or times.step_ms > _MOST_OF_A_ROUND * times.round_ms:
        return ""
    share = times.step_ms / times.round_ms
    rest = (f"{_named(one)} takes {format_percent(one.share)}" for one in times.left_out)
    said = (
        f"Your step is {format_percent(share)} of a round of your loop; {', '.join(rest) or 'the rest is not named'}."
    )
    stack = state.stack
    if stack is None or not stack.comparison or not stack_helps(state):
        return said
    whole = 1 / (1 - share * (1 - 1 / stack.comparison.speedup))
    return f"{said} So the whole loop gets about {format_times(whole)} as fast."


def _named(one: LeftOut) -> str:
    statement = f"`{one.text}` (line {one.line})"
    return f"evaluation, {statement}," if one.evaluates else statement
