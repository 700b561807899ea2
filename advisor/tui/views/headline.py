"""Pure functions that make the headline of view 1, and the warning under it, from the ranked settings."""

from dataclasses import dataclass
from statistics import median

from textual.content import Content

from advisor.experiment.state import SessionState
from advisor.figures.formatting import format_change, format_ms, format_numerics
from advisor.records import Objective, Verdict
from advisor.report import figures
from advisor.report.rows import Figures, Ranking, Tick
from advisor.report.several_gpus import result_sentence
from advisor.report.verdict import no_result
from advisor.tui.context import Context, is_about_others
from advisor.tui.text import DIM

_SEPARATOR = Content.styled(" · ", DIM)
_WORDS = {Verdict.FASTER: "faster", Verdict.SLOWER: "the speed", Verdict.SAME: "the same speed"}


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure to draw in large digits, its colour, and the lines beside it."""

    figure: str
    style: str
    lines: tuple[Content, ...]


def headline(state: SessionState, ranking: Ranking, tries: str = "R") -> Headline:
    """The result so far: the speed-up and both step times; without a combination, the baseline's step.

    ``tries`` is the key or the command that tries the settings left out for lack of time.
    """
    if state.failure:
        return Headline("", "", (Content.styled(state.failure.message, "bold $error"), Content(state.failure.hint)))
    if state.baseline is None or ranking.step_ms is None:
        return _before_the_baseline(state)
    if ranking.together:
        return _of_the_combination(state, ranking.together, tries)
    interval, found = figures.interval_words(state.baseline), _best_so_far(state, ranking)
    if ranking.pending:
        interval, found = "", Content.styled(f"The combination is not measured yet: {ranking.pending}.", "$warning")
    return _own_step(ranking.step_ms, interval, found, _next(state, tries))


def _own_step(step_ms: float, interval: str, *lines: Content) -> Headline:
    """The step time with the person's own settings in large digits; beside it the unit and the finding."""
    figure, unit = format_ms(step_ms).split(" ")
    first = Content.assemble(f"{unit} a step with your settings", (f"  {interval}" if interval else "", DIM))
    return Headline(figure, "$primary", (first, *lines))


def _before_the_baseline(state: SessionState) -> Headline:
    if state.finished:
        told = Content.styled("Nothing was measured: the session ended before its baseline.", "bold $warning")
        return Headline("", "", (told, Content("Run it again.")))
    then = "Then the usual combination is tried, and improved one change at a time."
    if state.live_ms:
        return _own_step(median(state.live_ms), "so far", Content.styled(then, DIM))
    doing = "Loading your model in a separate process" if state.is_loading else "Timing your own step first"
    about = "Your files are not changed." if state.is_loading else then
    return Headline("", "", (Content.styled(f"{doing}…", "bold"), Content.styled(about, DIM)))


def _of_the_combination(state: SessionState, together: Figures, tries: str) -> Headline:
    stack = state.stack
    assert stack is not None
    unconfirmed = ", not confirmed yet" if not stack.confirmed and state.finished is None else ""
    agrees, does = figures.file_finding(state, state.verification) if state.verification else (True, "")
    style = "$success" if figures.stack_helps(state) and agrees else "$warning"
    figure, word = together.speed, _WORDS.get(together.effect.verdict, "unclear (noise)")
    if state.goal.objective in (Objective.MEMORY, Objective.ENERGY):
        pair = together.memory_bytes if state.goal.objective is Objective.MEMORY else together.energy_j
        figure, word = format_change(pair[1], pair[0]), f"{state.goal.objective.value} at {figure} the speed"
    interval = together.words.partition("(")[2].rstrip(")")
    first = Content.assemble(
        (word, f"bold {style}"),
        f": {together.steps} a step{figures.other_batch(stack, state.baseline)}",
        (f"  {interval}, {figures.how_confirmed(stack, state)}{unconfirmed}", DIM),
    )
    costs = map(Content, (f"memory {together.memory_in_full}", f"numerics {format_numerics(together.numerics)}"))
    several = []
    if (record := state.scaling) and record.rows and (record.best or state.finished):
        several = [Content.styled(result_sentence(record), "bold $success" if record.best else "")]
    several += [Content.styled(f"The exported file is {does}.", "" if agrees else style)] if does else []
    return Headline(figure, style, (first, _SEPARATOR.join(costs), *several, _next(state, tries)))


def _best_so_far(state: SessionState, ranking: Ranking) -> Content:
    reason, is_finding = no_result(state)
    best = next((row for row in ranking.rows if row.figures and row.figures.verdict is Verdict.FASTER), None)
    if best and best.figures:
        opt_in = " It changes results: press a to use it." if best.consent and best.tick is Tick.OFF else ""
        told = f"{best.figures.effect.speedup:.2f}x faster with {best.name}"
        return Content.assemble((told, "bold $success"), f": {best.figures.steps} a step.", (opt_in, "$warning"))
    if state.finished:
        return Content.styled(figures.as_sentence(reason), "bold" if is_finding else "bold $warning")
    return Content.styled("Nothing faster yet." if ranking.rows else "The usual combination is tried first.", DIM)


def _next(state: SessionState, tries: str) -> Content:
    """The line that says what to do next."""
    untried = figures.count_untried(state)
    if state.finished is None:
        return Content.styled("The search goes on. 4 exports what is known so far.", DIM)
    parts = [Content.assemble(("4", "bold $accent"), " exports it")] if state.stack_settings else []
    if untried:
        parts.append(Content.assemble(f"{untried} not tried (out of time). ", (tries, "bold $accent"), " tries them"))
    elif not state.stack_settings:
        parts.append(Content.styled("3 shows everything that ran.", DIM))
    return _SEPARATOR.join(parts)


def alert_text(context: Context) -> Content:
    """The most important warning: other programs on this machine, with the key that waits; else the latest warning."""
    warnings = [said for said in context.state.messages if said.severity != "information"]
    if not warnings:
        return Content("")
    busy = [said for said in warnings if is_about_others(said)]
    said = busy[-1] if busy else warnings[-1]
    waits = " w waits until it is quiet." if busy and context.can_wait else ""
    more = f"  (+{len(warnings) - 1}: see your settings)" if len(warnings) > 1 else ""
    return Content.styled(f"! {figures.as_sentence(said.text)}{waits}{more}", "$warning")
