"""Sentences about a session: its verdict, its line in a list, why nothing is faster, the gain of the whole loop."""

from advisor.experiment.control import UNCLEAR_TOGETHER
from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    counted,
    format_interval,
    format_pending,
    format_percent,
    format_rate,
    format_times,
    interval_or_words,
    plain,
)
from advisor.records import Mode, Objective, Verdict
from advisor.report import figures
from advisor.report.rows import together_of


def verdict(state: SessionState) -> str:
    """The session in one or two sentences: ``ResNet training on 1 x H200: 1.97x (1.96–1.98) with 3 settings, …``."""  # noqa: RUF002
    failed = ""
    if state.failure:
        failed = f"The session could not go on: {state.failure.message}. {state.failure.hint}".replace("..", ".")
    if state.baseline is None:
        return failed or "Nothing has been measured."
    subject, where = "The workload", f" on {figures.measured_on(state)}" if state.hardware else ""
    if state.facts:
        workload = state.facts.workload
        subject = f"{workload.model} {'training' if workload.mode is Mode.TRAIN else 'inference'}"
    sentences = [f"{subject}{where}: {_result(state)}{_details(state)}."]
    if figures.stack_is_unclear(state):
        sentences.append(f"Whether that is a gain is unclear: {_DECIDES}.")
    if missed := figures.count_untried(state) if not _has_result(state) else 0:
        sentences.append(f"{counted(missed, 'candidate')} could not be tried, with the reasons below.")
    if failed:
        return f"{failed} Until then: {' '.join(sentences)}"
    sentences += filter(None, (whole_loop(state),))
    if found := state.verification:
        sentences.append(f"The exported file is {figures.file_finding(state, found)[1]}.")
    if state.finished is None or state.finished.cancelled:
        sentences.append("The session did not run to its end: these are the measurements until then.")
    return " ".join(sentences)


def result_line(state: SessionState) -> str:
    """Return a session's result in a line, or the reason that there is none."""
    if state.failure:
        return f"failed: {plain(state.failure.message)}"
    if state.finished is None or state.finished.cancelled:
        return "interrupted" if state.finished else "not finished"
    return f"{'unclear, ' if figures.stack_is_unclear(state) else ''}{_result(state)}"


def _has_result(state: SessionState) -> bool:
    """Whether there is a combination that helps, or may help."""
    stack, helps = state.stack, figures.stack_helps(state) or figures.stack_is_unclear(state)
    return bool(stack and not stack.pending and helps)


def _result(state: SessionState) -> str:
    """The result in a line, or the reason that there is none."""
    stack, by = state.stack, state.yardstick
    if stack and stack.pending:
        return format_pending(stack)
    if stack and by and _has_result(state):
        by_time = state.goal.by_time
        effect = interval_or_words(stack.comparison) if by_time else by.effect(stack.result, stack.comparison)
        return f"{effect}{figures.other_batch(stack, state.baseline)} with {counted(len(stack.settings), 'setting')}"
    return no_result(state)[0]


def _details(state: SessionState) -> str:
    """The certainty of the result, and the figures before and after."""
    stack, together = state.stack, together_of(state)
    if stack is None or together is None or not _has_result(state):
        return ""
    told = {Objective.MEMORY: together.memory, Objective.ENERGY: together.energy}.get(state.goal.objective)
    rate = figures.tokens_per_s(state.facts, stack.samples_per_s)
    tokens = f", {format_rate(rate, 'tokens')}" if rate else ""
    return f", {figures.how_confirmed(stack, state)}: {told or f'{together.steps} a step'}{tokens}"


# --- no result ----------------------------------------------------------------------------------------------------

_DECIDES = "more budget or a machine without other programs decides"


def no_result(state: SessionState) -> tuple[str, bool]:
    """The reason that there are no settings to use, as part of a sentence; and whether it is a finding.

    A finding says something about the settings. If it is none, their effect is still undecided.
    """
    tried = figures.candidates_tried(state)
    # A candidate that changes results more than its recipe promises stays out: more budget would decide nothing.
    sound = (one for one in tried if not (one.numerics and one.numerics.worse_than_declared))
    own = [(one.candidate.name, figures.effect_of(one)) for one in sound]
    sets = [(counted(len(point.settings), "setting"), point.comparison) for point in state.combinations.values()]
    undecided = [(name, found) for name, found in (*own, *sets) if found and found.verdict is Verdict.UNCLEAR]
    if state.stack and UNCLEAR_TOGETHER in state.stack.dropped.values():  # faster combinations were not confirmed
        undecided += [(name, found) for name, found in sets if found and found.verdict is Verdict.FASTER]
    best = ""
    if undecided and state.goal.by_time:
        name, found = max(undecided, key=lambda one: one[1].speedup)
        seems = f"the most promising, {name}, reads {format_interval(found)}; " if found.speedup > 1 else ""
        best = f"{seems}{_DECIDES}"
    by, better = state.yardstick, state.goal.better()
    if helping := sum(by.helps(one.result, figures.effect_of(one)) for one in tried) if by else 0:
        together = f"nothing that was measured together {better}" if sets else "none were measured together"
        alone = f"{helping} of {counted(len(tried), 'candidate')} {state.goal.better(helping)}"
        return f"{alone}; {best or together}", not best
    if best:
        return f"it is unclear whether anything helps: {best}", False
    if sets or any(record.result.measured for record in tried):
        return f"nothing that was tried {better}", True
    missing = "nothing that was tried could be used" if tried or state.sets_tried else "no candidate was tried"
    return f"nothing could be judged: {missing}", False


def export_remark(state: SessionState) -> str:
    """The end of the sentence about exported settings: the doubts about their speed-up; empty if it is confirmed."""
    stack = state.stack
    if stack and stack.pending:
        return f": {format_pending(stack)}"
    if not figures.settings_to_export(state):
        return f", without settings: {no_result(state)[0]}"
    if stack is None or figures.settings_to_export(state) != stack.settings:
        return ""
    once = "" if stack.confirmed else f", {figures.how_confirmed(stack, state)}: {format_interval(stack.comparison)}"
    if figures.stack_is_unclear(state):
        return f"{once}, so it is unclear whether they are faster together"
    return once if figures.stack_helps(state) else f", though together they {state.goal.not_better(2)}"


# --- the whole loop of a script -----------------------------------------------------------------------------------


def whole_loop(state: SessionState) -> str:
    """The step's share of a script's loop, the other costs, and the gain of the whole loop; empty for 100 %."""
    times = state.baseline.result.whole_rounds if state.baseline else None
    if times is None or times.step_ms > figures.MOST_OF_A_ROUND * times.round_ms:
        return ""
    named = [(f"`{one.text}` (line {one.line})", one) for one in times.left_out]
    words = [(f"evaluation, {name}," if one.evaluates else name, one.share) for name, one in named]
    rest = ", ".join(f"{name} takes {format_percent(part)}" for name, part in words) or "the rest is not named"
    if (share := figures.step_share(state)) == 1.0:
        return f"The step that is measured is a whole round of your loop: {rest}."
    said = f"Your step is {format_percent(share)} of a round of your loop; {rest}."
    stack, timed = state.stack, state.verification and state.verification.whole_rounds
    if stack is None or not stack.comparison or not figures.stack_helps(state) or timed:
        return said
    whole = figures.of_the_loop(stack.comparison.speedup, share)
    return f"{said} With these settings the whole loop is about {format_times(whole)} as fast."
