"""The session in one or two sentences, in a line of a list, and why there are no faster settings."""

from dataclasses import dataclass
from enum import Enum, auto

from advisor.experiment.gains import stack_helps, whole_loop
from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    counted,
    format_bytes,
    format_energy,
    format_interval,
    format_pending,
    format_rate,
    interval_or_words,
    plain,
)
from advisor.records import Mode, Objective, Verdict
from advisor.report.conclusions import (
    candidates_tried,
    count_untried,
    settings_to_export,
    stack_is_unclear,
)
from advisor.report.figures import IN_TURN, how_confirmed, measured_on, other_batch, tokens_per_s
from advisor.report.rows import ranking


def verdict(state: SessionState) -> str:
    """The session in one or two sentences: ``ResNet training on 1 x H200: 1.97x (1.96–1.98) with 3 settings, …``."""  # noqa: RUF002
    if state.baseline is None:
        return _failed(state) if state.failure else "Nothing has been measured."
    where = f" on {measured_on(state)}" if state.hardware else ""
    sentences = [f"{_subject(state)}{where}: {_result(state)}{_details(state)}."]
    if stack_is_unclear(state):
        sentences.append(f"Whether that is a gain is unclear: {_DECIDES}.")
    if missed := count_untried(state) if not _has_result(state) else 0:
        sentences.append(f"{counted(missed, 'candidate')} could not be tried, with the reasons below.")
    if state.failure:
        return f"{_failed(state)} Until then: {' '.join(sentences)}"
    if loop := whole_loop(state):
        sentences.append(loop)
    if state.finished is None or state.finished.cancelled:
        sentences.append("The session did not run to its end: these are the measurements until then.")
    return " ".join(sentences)


def _failed(state: SessionState) -> str:
    assert state.failure
    return f"The session could not go on: {state.failure.message}. {state.failure.hint}".replace("..", ".")


def _subject(state: SessionState) -> str:
    if state.facts is None:
        return "The workload"
    loop = "training" if state.facts.workload.mode is Mode.TRAIN else "inference"
    return f"{state.facts.workload.model} {loop}"


def _has_result(state: SessionState) -> bool:
    """Whether there is a combination that helps, or of which that is unclear."""
    return bool(state.stack and not state.stack.pending and (stack_helps(state) or stack_is_unclear(state)))


def _result(state: SessionState) -> str:
    """The result in a line, or the reason for none."""
    stack = state.stack
    if stack and stack.pending:
        return format_pending(stack)
    if stack and _has_result(state):
        by = state.yardstick if not state.goal.by_time else None
        effect = by.effect(stack.result, stack.comparison) if by else interval_or_words(stack.comparison)
        return f"{effect}{other_batch(stack, state.baseline)} with {counted(len(stack.settings), 'setting')}"
    if helping := _helping(state):
        count = counted(len(candidates_tried(state)), "candidate")
        return f"{helping} of {count} {state.goal.better(helping)}; {why_no_stack(state)}"
    sentence = no_result(state).sentence
    return f"{sentence[:1].lower()}{sentence[1:-1]}"


def _details(state: SessionState) -> str:
    """The certainty of the result, and the figures before and after."""
    stack, together = state.stack, ranking(state).together
    if stack is None or together is None or not _has_result(state):
        return ""
    told = f"{together.steps} a step"
    if state.goal.objective is Objective.MEMORY:
        told = together.memory
    elif state.goal.objective is Objective.ENERGY and all(together.energy_j):
        told = f"{' → '.join(map(format_energy, together.energy_j))} a sample"
    sure = f"confirmed {IN_TURN}" if stack.confirmed else how_confirmed(stack)
    rate = tokens_per_s(state.facts, stack.samples_per_s)
    limit = ""
    if state.yardstick and state.yardstick.too_large:
        most, own = format_bytes(state.goal.memory_limit_bytes), format_bytes(state.baseline_bytes)
        limit = f", within the memory limit of {most}, which the baseline exceeds ({own})"
    tokens = f", {format_rate(rate, 'tokens')}" if rate else ""
    return f", {sure}: {told}{tokens}{limit}"


def _helping(state: SessionState) -> int:
    """The number of candidates that help themselves; nothing is known of one that was only measured with others."""
    tried, by = candidates_tried(state), state.yardstick
    return sum(by.helps(one.result, one.comparison if one.alone else one.contribution) for one in tried) if by else 0


def result_line(state: SessionState) -> str:
    """Return a session's result in a line, or the reason for none."""
    if state.failure:
        return f"failed: {plain(state.failure.message)}"
    if state.finished is None or state.finished.cancelled:
        return "interrupted" if state.finished else "not finished"
    return f"{'unclear, ' if stack_is_unclear(state) else ''}{_result(state)}"


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
    own = [(one.candidate.name, one.comparison if one.alone else one.contribution) for one in candidates_tried(state)]
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
