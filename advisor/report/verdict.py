"""The session in one or two sentences, in a line of a list, and why there are no faster settings."""

from dataclasses import dataclass
from enum import Enum, auto

from advisor.experiment.gains import stack_helps, whole_loop
from advisor.experiment.objective import Yardstick
from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    counted,
    format_bytes,
    format_interval,
    format_ms,
    format_pending,
    format_rate,
    interval_or_words,
    plain,
)
from advisor.records import BaselineRecord, Mode, Objective, StackRecord, Verdict
from advisor.report.conclusions import (
    candidates_tried,
    count_untried,
    settings_to_export,
    stack_is_unclear,
)
from advisor.report.figures import IN_TURN, how_confirmed, measured_on, other_batch, own_comparison, tokens_per_s


def verdict(state: SessionState) -> str:
    """The session in one or two sentences."""
    if state.failure:
        ended = f"The session could not go on: {state.failure.message}. {state.failure.hint}".replace("..", ".")
        return f"{ended} Until then: {_result_sentence(state, state.baseline)}" if state.baseline else ended
    if state.baseline is None:
        return "Nothing has been measured."
    interrupted = state.finished is None or state.finished.cancelled
    remark = " The session did not run to its end: these are the measurements until then." if interrupted else ""
    return " ".join(filter(None, (_result_sentence(state, state.baseline), whole_loop(state)))) + remark


def _result_sentence(state: SessionState, baseline: BaselineRecord) -> str:
    where = f" on {measured_on(state)}" if state.hardware else ""
    stack, by = state.stack, Yardstick(state.goal, baseline)
    if stack is not None and stack.pending:
        return _pending_sentence(state, stack, where)
    if stack is None or not (stack_helps(state) or stack_is_unclear(state)):
        return _no_stack_sentence(state, by, where)
    how = f"confirmed {IN_TURN}" if stack.confirmed else how_confirmed(stack)
    effect = f"{_effect_sentence(state, stack, by, where)}{other_batch(stack, baseline)}"
    sentence = f"{effect}, {how}: {_before_and_tuned(stack, by)}{_tokens(state, stack)}."
    return f"{sentence} Whether that is a gain is unclear: {_DECIDES}." if stack_is_unclear(state) else sentence


def _tokens(state: SessionState, stack: StackRecord) -> str:
    rate = tokens_per_s(state.facts, stack.samples_per_s)
    return f", {format_rate(rate, 'tokens')}" if rate else ""


def _pending_sentence(state: SessionState, stack: StackRecord, where: str) -> str:
    if not stack.settings:
        return f"No setting is left in the combination for {_subject(state)}{where}: {stack.result.reason}."
    return f"There is no figure for {_subject(state)}{where} with what is left: {format_pending(stack)}."


def _by_figure(stack: StackRecord, by: Yardstick) -> bool:
    """Whether the settings together are told by memory or energy, not by their speed."""
    gain = by.gain(stack.result, stack.comparison)
    return not by.goal.by_time and gain is not None and gain.is_better


def _before_and_tuned(stack: StackRecord, by: Yardstick) -> str:
    if not _by_figure(stack, by):
        before_ms = stack.baseline_step_ms or by.baseline.step_ms
        return f"{format_ms(before_ms)} a step before, {format_ms(stack.step_ms)} tuned"
    goal = by.goal
    before, tuned = (goal.words.shown(goal.words.figure(result)) for result in (by.baseline.result, stack.result))
    return f"{before}{' a sample' if goal.objective is Objective.ENERGY else ''} before, {tuned} tuned"


def _effect_sentence(state: SessionState, stack: StackRecord, by: Yardstick, where: str) -> str:
    """The effect of the settings together by the goal, as a sentence without its end."""
    count = len(stack.settings)
    if _by_figure(stack, by):
        settings = f"{count} settings together" if count != 1 else "one setting"
        sentence = f"With {settings} {_subject(state)} {by.effect(stack.result, stack.comparison)}{where}"
    else:
        settings = f"{count} settings together make" if count != 1 else "One setting makes"
        sentence = f"{settings} {_subject(state)} {format_interval(stack.comparison)} as fast{where}"
    if not by.too_large:
        return sentence
    limit, own = format_bytes(state.goal.memory_limit_bytes), format_bytes(by.baseline.result.peak_reserved_bytes)
    return f"{sentence}, within the memory limit of {limit}, which the baseline exceeds ({own})"


def _no_stack_sentence(state: SessionState, by: Yardstick, where: str) -> str:
    records, goal, found = candidates_tried(state), state.goal, no_result(state)
    count, helping = len(records), _helping(state, by)
    what = f"candidate{'s' * (count != 1)} tried for {_subject(state)}{where}"
    if not helping and found.cause is not Cause.NO_GAIN:
        result = f"{found.opening} for {_subject(state)}{where}: {found.reason}"
    elif not helping:
        result = f"The only {what} {goal.not_better()}" if count == 1 else f"None of {count} {what} {goal.better()}"
    else:
        result = f"{helping} of {count} {what} {goal.better(helping)}; {why_no_stack(state)}"
    missed = missed_words(state)
    return f"{result}. {missed}, with the reasons below." if missed else f"{result}."


def missed_words(state: SessionState) -> str:
    """The number of candidates that were not tried by themselves, in words; empty where all were."""
    missed, beside = count_untried(state), bool(candidates_tried(state))
    more, alone = "more " if beside else "", " alone" if state.sets_tried and not beside else ""
    return f"{missed} {more}could not be tried{alone}" if missed else ""


def _helping(state: SessionState, by: Yardstick) -> int:
    """The number of candidates that help themselves; nothing is known of one that was only measured with others."""
    tried = candidates_tried(state)
    return sum(by.helps(one.result, one.comparison if one.alone else one.contribution) for one in tried)


def _subject(state: SessionState) -> str:
    if state.facts is None:
        return "the workload"
    loop = "training" if state.facts.workload.mode is Mode.TRAIN else "inference"
    return f"{state.facts.workload.model} {loop}"


def result_line(state: SessionState) -> str:
    """Return a session's result in a line, or the reason for none."""
    if state.failure:
        return f"failed: {plain(state.failure.message)}"
    if state.finished is None or state.finished.cancelled:
        return "interrupted" if state.finished else "not finished"
    if state.stack and state.stack.pending:
        return format_pending(state.stack)
    if state.stack and state.stack.comparison and state.stack.settings:
        doubt = "unclear, " if stack_is_unclear(state) else ""
        effect = f"{_effect(state, state.stack)}{other_batch(state.stack, state.baseline)}"
        return f"{doubt}{effect} with {counted(len(state.stack.settings), 'setting')}"
    if state.yardstick and (helping := _helping(state, state.yardstick)):
        count = counted(len(candidates_tried(state)), "candidate")
        return f"{helping} of {count} {state.goal.better(helping)}; {why_no_stack(state)}"
    return no_result(state).reason


def _effect(state: SessionState, stack: StackRecord) -> str:
    if state.yardstick and not state.goal.by_time:
        return state.yardstick.effect(stack.result, stack.comparison)
    return interval_or_words(stack.comparison)


class Cause(Enum):
    """The kinds of reasons. Only ``NO_GAIN`` is a finding about the settings; the others leave them undecided."""

    NOT_TRIED = auto()
    ALL_FAILED = auto()
    UNCLEAR = auto()
    NO_GAIN = auto()


@dataclass(frozen=True, slots=True)
class NoResult:
    """A cause with its reason, in lower case and without an end: ``no candidate was tried``."""

    cause: Cause
    reason: str

    @property
    def opening(self) -> str:
        """The words before the reason: ``Nothing could be judged``. ``NO_GAIN`` has none: its reason is a sentence."""
        unclear = self.cause is Cause.UNCLEAR
        return "It is unclear whether anything helps" if unclear else "Nothing could be judged"

    @property
    def sentence(self) -> str:
        """The reason as a sentence, which says so where nothing could be judged."""
        if self.cause is Cause.NO_GAIN:
            return f"{self.reason[:1].upper()}{self.reason[1:]}."
        return f"{self.opening}: {self.reason}."


def no_result(state: SessionState) -> NoResult:
    """The reason no candidate is known to help, for a session in which none does."""
    tried = candidates_tried(state)
    if unclear := _unclear(state):
        return NoResult(Cause.UNCLEAR, unclear)
    if state.combinations or any(record.result.measured for record in tried):
        return NoResult(Cause.NO_GAIN, f"nothing that was tried {state.goal.better()}")
    if tried or state.sets_tried:
        return NoResult(Cause.ALL_FAILED, "nothing that was tried could be used")
    return NoResult(Cause.NOT_TRIED, "no candidate was tried")


_DECIDES = "more budget or a machine without other programs decides"


def _unclear(state: SessionState) -> str:
    """The most promising of what may be faster or not, by the intervals, in words; empty where those leave none."""
    own = [(one.candidate.name, own_comparison(one)) for one in candidates_tried(state)]
    sets = [(counted(len(point.settings), "setting"), point.comparison) for point in state.combinations.values()]
    open_ones = [(name, found) for name, found in (*own, *sets) if found and found.verdict is Verdict.UNCLEAR]
    if not open_ones or not state.goal.by_time:
        return ""
    name, found = max(open_ones, key=lambda one: one[1].speedup)
    return f"the most promising, {name}, reads {format_interval(found)}; {_DECIDES}"


def why_no_stack(state: SessionState) -> str:
    """The reason there are no settings to use together, in lower case and without an end."""
    found, together = no_result(state), bool(state.combinations)
    if state.stack is None and not together and (state.finished is None or state.finished.cancelled):
        ended = state.finished is not None
        return f"{'the session ended before any were' if ended else 'settings have not been'} measured together"
    if found.cause is not Cause.NO_GAIN:
        return found.reason
    return f"nothing that was measured together {state.goal.better()}" if together else "none were measured together"


def export_remark(state: SessionState) -> str:
    """The end of the sentence about exported settings: what they do not promise; empty where they are confirmed."""
    stack = state.stack
    if stack and stack.pending:
        return f": {format_pending(stack)}"
    if not settings_to_export(state):
        return f", without settings: {why_no_stack(state)}"
    if stack is None or settings_to_export(state) != stack.settings:
        return ""
    once = "" if stack.confirmed else f", {how_confirmed(stack)}: {format_interval(stack.comparison)}"
    if stack_is_unclear(state):
        return f"{once}, so it is unclear whether they are faster together"
    return once if stack_helps(state) else f", though together they {state.goal.not_better(2)}"
