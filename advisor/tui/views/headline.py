"""The first lines of the overview: the result, its cost and its use; or the reason for none, and what to do.

Pure functions of the state.
"""

from textual.content import Content

from advisor.experiment.ranking import best_per_recipe
from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    counted,
    format_interval,
    format_ms,
    format_rate,
    format_seconds,
)
from advisor.records import Objective, StackRecord, Verdict
from advisor.report.conclusions import candidates_tried, count_untried, stack_helps, stack_is_unclear
from advisor.report.figures import IN_TURN, MEASURED_ONCE, how_confirmed, other_batch
from advisor.report.several_gpus import result_sentence, row_words
from advisor.report.verdict import Cause, no_result
from advisor.tui.text import DIM, memory_against, numerics_words, own_effect
from advisor.tui.views.profile_text import roof_before_and_after

_PROBLEM = "bold $warning"
# The lines of a failure's details that are shown, the last ones. A count.
_MOST_DETAILS = 6


def headline(state: SessionState, kept: int = 0) -> Content:
    """The result so far in two to four lines, or the present activity.

    ``kept`` trials are those of the session that goes on, which are shown after its baseline.
    """
    if state.failure:
        details = [Content.styled(line, DIM) for line in state.failure.details.rstrip().splitlines()[-_MOST_DETAILS:]]
        told = [Content.styled(state.failure.message, "bold $error"), Content(state.failure.hint)]
        return Content("\n").join([*told, *details])
    if state.stack and state.stack.pending:
        return _pending(state.stack, state)
    if state.stack and state.stack.comparison and state.stack.settings:
        return _of_the_stack(state.stack, state)
    return _before_the_baseline(state, kept) if state.baseline is None else _best_so_far(state)


def _two(head: str, rest: str, style: str = "bold") -> Content:
    return Content.assemble((head, style), "\n", (rest, DIM if style == "bold" else ""))


def _before_the_baseline(state: SessionState, kept: int) -> Content:
    if state.finished:
        return _two("Nothing was measured: the session ended before its baseline.", "Run it again.", _PROBLEM)
    waiting = "The model is being loaded…" if state.is_loading else "The baseline is being measured…"
    if kept:
        return _two(waiting, f"{counted(kept, 'trial')} of this session are kept; they are shown after the baseline.")
    return _two(waiting, "Trials start after the baseline.")


def _pending(stack: StackRecord, state: SessionState) -> Content:
    """The rest of a stack after a rejection: no figure until it has been measured."""
    if count := len(stack.settings):
        left = f"{counted(count, 'setting')} left in the stack, {stack.result.reason}"
        return _two(left, "How fast they are together is not known before that.")
    others = any(item.recipe not in state.rejected for item in state.recommendations)
    then = "Key 4 shows what else helps." if others else "Nothing else helps here: u takes a decision back."
    return _two(f"The stack is empty, {stack.result.reason}", then)


# --- a stack --------------------------------------------------------------------------------------------------


def _of_the_stack(stack: StackRecord, state: SessionState) -> Content:
    """The result first, then its cost, then its use."""
    turns = IN_TURN if stack.comparison and stack.comparison.is_open else "confirmed"
    sure = turns if stack.confirmed else how_confirmed(stack)
    if sure == MEASURED_ONCE:
        sure += f", not confirmed{'' if state.finished else ' yet'}"
    helps = stack_helps(state)
    first = Content.assemble((_result(stack, state), "bold $success" if helps else _PROBLEM), f", {sure}")
    if _is_speed(state) and stack.comparison and stack.comparison.verdict.is_change:
        first += Content.styled(f"  {''.join(_interval(stack).partition(' (')[1:]).strip()}", DIM)
    lines = [first, _cost(stack, state), *_roof(state), *_several_gpus(state), _how_to_use(state, helps=helps)]
    return Content("\n").join([*lines, *_more_time(state)])


def _result(stack: StackRecord, state: SessionState) -> str:
    """The result in one sentence: ``2.35x faster: 32.6 ms → 13.9 ms``."""
    comparison, by, batch = stack.comparison, state.yardstick, other_batch(stack, state.baseline)
    assert comparison is not None
    if by is None or not _is_speed(state):
        told = by.effect(stack.result, comparison) if by else format_interval(comparison)
        return f"{told[:1].upper()}{told[1:]}{batch}: {_before_and_after(stack, state)}"
    if not comparison.verdict.is_change:
        return f"{comparison.verdict.capitalize()}: {format_interval(comparison)}{batch}"
    figure = format_interval(comparison).partition(" (")[0]  # the interval stands behind the sentence
    word = "faster" if comparison.verdict is Verdict.FASTER else "the speed, slower"
    return f"{figure[:1].upper()}{figure[1:]} {word}{batch}: {_before_and_after(stack, state)}"


def _is_speed(state: SessionState) -> bool:
    """Whether speed is the goal, so that the sentence has the speed-up; of another goal it has the speed beside it."""
    return state.yardstick is not None and state.yardstick.goal.objective is Objective.THROUGHPUT


def _before_and_after(stack: StackRecord, state: SessionState) -> str:
    """Milliseconds a step, as timed beside one another; samples per second where the batch is another one."""
    baseline = state.baseline
    if baseline is None:
        return f"{format_ms(stack.step_ms)} a step"
    if stack.result.batch_size != baseline.result.batch_size:
        rate = stack.baseline_samples_per_s or baseline.samples_per_s
        return f"{rate:,.0f} → {format_rate(stack.samples_per_s)}"
    return f"{format_ms(stack.baseline_step_ms or baseline.step_ms)} → {format_ms(stack.step_ms)} a step"


def _cost(stack: StackRecord, state: SessionState) -> Content:
    count = len(stack.settings)
    speed = "" if _is_speed(state) else _interval(stack)
    parts = [
        *([Content(speed)] if speed else []),
        Content(f"{count} settings" if count > 1 else "one setting"),
        Content.assemble("memory ", memory_against(stack.result.peak_reserved_bytes, state.baseline_bytes)),
    ]
    if stack.numerics:
        style = "$error" if stack.numerics.worse_than_declared else ""
        parts.append(Content.assemble("numerics ", (numerics_words(stack.numerics), style)))
    if stack.result.warmup_s:
        parts.append(Content(f"start-up {format_seconds(stack.result.warmup_s)}"))
    return Content.styled(" · ", DIM).join(parts)


def _interval(stack: StackRecord) -> str:
    """The interval of a speed-up; empty where it is told in words."""
    told = stack.comparison is not None and not stack.comparison.is_open
    return format_interval(stack.comparison) if told else ""


def _more_time(state: SessionState) -> list[Content]:
    """A line on the use of more time, and on where the rest is explained; nothing before the end."""
    if state.finished is None:
        return []
    if missed := count_untried(state):
        return [Content(f"{counted(missed, 'candidate')} had no time: R tries them; 3 shows each trial, and why not")]
    all_tried = "All that applies was tried; 3 shows each trial, and why the rest was not"
    return [Content.styled(all_tried if candidates_tried(state) else "3 shows why", DIM)]


def _several_gpus(state: SessionState) -> list[Content]:
    """A line on the speed of several GPUs against one, once one is known or none will be."""
    record = state.scaling
    if record is None or not record.rows or not (record.best or state.finished):
        return []
    best = record.row(record.best)
    return [Content.styled(row_words(best), "bold $success") if best else Content(result_sentence(record))]


def _roof(state: SessionState) -> list[Content]:
    reached = roof_before_and_after(state)
    return [] if reached is None else [Content.assemble(("efficiency ", DIM), reached)]


def _how_to_use(state: SessionState, *, helps: bool) -> Content:
    if not helps and state.finished is None:
        return Content.styled("The search goes on. Key 3 shows each trial.", DIM)
    if not helps:
        as_good = "Your own settings are as good: the stack is kept for what you accepted."
        return Content(f"{_NEXT[Cause.UNCLEAR]} Key 5 has it as it is." if stack_is_unclear(state) else as_good)
    if state.finished is None:
        return Content.styled("The search goes on. Key 4 shows what each setting does, 5 exports what is known.", DIM)
    export, advice = ("5", "bold $accent"), ("4", "bold $accent")
    return Content.assemble(export, " exports it, ", advice, " shows what each setting does, and why")


# --- no stack -------------------------------------------------------------------------------------------------


def _best_so_far(state: SessionState) -> Content:
    over = state.finished is not None
    by = state.yardstick
    ranked = best_per_recipe(state.trials.values(), by) if by else []
    if not ranked:
        return _at_the_end(state) if over else _in_the_middle(state)
    best = ranked[0]
    opt_in = any(item.needs_consent and item.recipe == best.candidate.recipe for item in state.recommendations)
    which = "opt-in setting" if opt_in else "single setting"
    first = Content.assemble(
        own_effect(best, by), f"  the best {which}{'' if over else ' so far'}: ", (best.candidate.name, "bold")
    )
    lines = [first, *_several_gpus(state), _use_of_one(opt_in=opt_in, over=over), *_more_time(state)]
    return Content("\n").join(lines)


def _use_of_one(*, opt_in: bool, over: bool) -> Content:
    """Return the advice on a setting that helps but is in no measured stack."""
    if opt_in:
        return Content.styled("It changes results, so it is left out: key 4, then a, allows it.", "$warning")
    told = "Key 4 shows what it costs and the code." if over else "What helps is measured together afterwards."
    return Content.styled(told, DIM)


def _in_the_middle(state: SessionState) -> Content:
    if candidates_tried(state):
        return _two(f"Nothing {state.goal.better()} so far.", "Key 3 shows the trials live.")
    return _two("The first trials are running…", "Key 3 shows them live.")


# What to do where nothing could be judged; the cause is told first.
_NEXT = {
    Cause.NOT_TRIED: "Give it more time: key + adds a minute.",
    Cause.ALL_FAILED: "Key 3, then l, shows the log of a trial.",
    Cause.UNCLEAR: "End other programs and run again, or give it more time: key + adds a minute.",
}


def _at_the_end(state: SessionState) -> Content:
    """Nothing helped: whether that is a result, or nothing could be judged."""
    found, missed = no_result(state), count_untried(state)
    style = _PROBLEM if missed or found.cause in _NEXT else "bold"
    then = _NEXT.get(found.cause, "" if missed else "Your settings are good as they are.")
    then = "" if found.cause is Cause.NOT_TRIED and not missed else then
    lines = [Content.styled(found.sentence, style), *_several_gpus(state), *([Content(then)] if then else [])]
    return Content("\n").join([*lines, *_more_time(state)])
