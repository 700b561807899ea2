"""Pieces of text that several views draw: bars, verdict marks, colours. Pure functions.

User text enters through ``Content(...)`` or rich's ``Text(...)``, both of which take it literally.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from textual.content import Content

from advisor.experiment.control import Decision
from advisor.experiment.events import Said
from advisor.experiment.objective import Yardstick
from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    format_bytes,
    format_bytes_change,
    format_change,
    format_gain,
    format_numerics,
    format_ratio,
)
from advisor.records import (
    Comparison,
    Numerics,
    NumericsResult,
    Objective,
    StackRecord,
    TrialRecord,
    TrialResult,
    Verdict,
)
from advisor.report.charts import Tone
from advisor.report.figures import IN_TURN, effect_words, own_figures, verdict_shown

DIM = "$foreground 60%"
LABEL = "$secondary"
MARKS = {
    Verdict.FASTER: ("▲", "success"),
    Verdict.SLOWER: ("▼", "error"),
    Verdict.SAME: ("=", "secondary"),
    Verdict.UNCLEAR: ("≈", "secondary"),
    Verdict.FAILED: ("✗", "warning"),
    Verdict.SKIPPED: ("○", "secondary"),
}
TONES: Mapping[Tone, str] = {
    Tone.BASELINE: "$secondary",
    Tone.STACK: "$accent",
    Tone.FRONT: "$primary",
    Tone.CHOSEN: "$warning",
    Tone.FASTER: "$success",
    Tone.SLOWER: "$error",
    Tone.OTHER: "$secondary",
    Tone.LIMIT: "$warning",
}
# Speed-up for which a bar is as wide as can be, unless there is a larger one: small effects look small. A ratio.
SMALL_EFFECT = 1.25
# Words of the session that stand behind the name of a trial; and the cells for that name.
MEASURED_AGAIN, _WIDEST_SAID = " is measured again: ", 40
# What stands before the effect of a rejected setting.
REJECTED_FIRST = f"{Decision.REJECTED}, "
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"

# Distinct on dark and on light grounds; a phase keeps its colour in every session.
PHASE_COLOURS = {
    "data wait": "#e5a13a",
    "host-to-device": "#c678dd",
    "forward": "#4c9bf5",
    "loss": "#45c4c0",
    "backward": "#3fb37f",
    "optimizer": "#e0637c",
    "zero_grad": "#9aa4b8",
}
_SPARE_COLOURS = ("#8f7cf0", "#d98c5f", "#7fb83d", "#c7698f")


def phase_colour(name: str, position: int) -> str:
    """The colour of a phase; phases without one of their own take the spare ones in turn."""
    known = PHASE_COLOURS.get(name) or PHASE_COLOURS.get(name.replace("_", " "))
    return known or _SPARE_COLOURS[position % len(_SPARE_COLOURS)]


def bar(share: float, width: int) -> str:
    """A left-aligned bar of eighth blocks, ``width`` cells for a share of 1; padded with spaces."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[rest] if rest else "")
    return drawn.ljust(width)


def meter(share: float | None, width: int, style: str) -> Content:
    """A bar on a visible track."""
    drawn = round(max(0.0, min(1.0, share or 0.0)) * width)
    return Content.assemble(("━" * drawn, style), ("━" * (width - drawn), "$foreground 15%"))


_MEANING = {
    Numerics.EXACT: "the same results",
    Numerics.CLOSE: "only rounding differs",
    Numerics.CHANGED: "other results",
}


def numerics_words(numerics: NumericsResult) -> str:
    """The class with its figure and its meaning: ``close (3.1e-03), only rounding differs``."""
    told = format_numerics(numerics)
    return f"{told}, {_MEANING[numerics.measured]}" if numerics.compared and not numerics.worse_than_declared else told


def waiting_text(state: SessionState, waiting: str) -> str:
    """The placeholder for an unknown figure: ``waiting``, or that it will not come any more."""
    if state.failure:
        return "Not known: the session failed before this."
    return "Not known: the session ended before this." if state.finished else waiting


def said_text(said: Said) -> str:
    """Words of the session, with the key for more time, and a stack's short name: its own lists all settings."""
    told = said.text.replace("raise --budget", "key + gives more time")
    name, again, reason = told.partition(MEASURED_AGAIN)
    return f"{trial_name(name, _WIDEST_SAID)}{again}{reason}" if again else told


def unmeasured_words(name: str, state: SessionState, waiting: str) -> str:
    """The words for a trial without a result: ``waiting``, or that there will be none, since nothing is measured."""
    if state.finished is None or state.running:
        return waiting
    return "stopped before it was measured" if name in state.logs else "not tried"


def shortened(text: str, width: int) -> str:
    """A text cut to a number of cells in its middle, since names often differ at their ends only."""
    if len(text) <= width or width < 1:
        return text[: max(0, width)]
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


# The beginning of the name of a trial that repeats others' settings.
_AGAIN = "again: "
# Another name for this trial: whether the stack is confirmed is known once it has ended, if at all.
_SHOWN_AS = {"stack, confirmed": f"stack, {IN_TURN}"}


def trial_parts(name: str) -> tuple[str, str]:
    """The subject of a trial and the details in its name: ``("stack of 2", "compile.mode: default, step.…")``."""
    name = _SHOWN_AS.get(name, name)
    of, colon, rest = name.partition(": ")
    if colon and of in ("stack", "again"):
        count = rest.count(": ")
        if of == "stack":
            return (f"stack of {count}" if count else of), rest
        return (f"stack of {count}, again", rest) if count > 1 else (f"{_one_setting(rest)}, again", "")
    if of.endswith(" GPUs"):
        return of, rest
    subject = next((word for word in ("stack", "baseline", "one GPU") if name.startswith(word)), name)
    return subject, name.removeprefix(subject).lstrip(", ")


def trial_name(name: str, width: int) -> str:
    """A trial's name in so many cells. A stack that is too long is told by the number of its settings.

    One with details is cut at its end: ``stack with… compiled`` is the opposite of ``stack without x, not compiled``.
    """
    name = _SHOWN_AS.get(name, name)
    subject, part = trial_parts(name)
    listed = name.startswith(_AGAIN) or (len(name) > width and ": " in name)
    told = subject if listed else name
    return f"{told[: width - 1]}…" if part and len(told) > width > 1 else shortened(told, width)


def trial_label(name: str, state: SessionState, width: int, *, most: int = 0) -> str:
    """A trial's name for ``width`` cells; a name that is too long becomes the recipe's, if that has one candidate only.

    A name that is still too long may take up to ``most`` cells, and is cut in its middle to fit them.
    """
    candidate = state.candidate(name)
    if candidate is None:
        return trial_name(name, max(width, most))
    alone = sum(other.recipe == candidate.recipe for other in state.candidates.values()) == 1
    return shortened(candidate.recipe if alone and len(name) > width else name, max(width, most))


def _one_setting(name: str) -> str:
    """The name of one setting as candidates have it: ``num_workers=1`` for ``data.num_workers: 1``."""
    key, colon, value = name.partition(": ")
    return f"{key.rpartition('.')[2]}={value}" if colon else name


def interval_bar(comparison: Comparison | None, widest: float, width: int) -> str:
    """An interval on a line with 1x in its middle: ``   │ ─●─``, slower to the left, by the logarithm."""
    if comparison is None or widest <= 0:
        return ""
    half = width // 2

    def place(ratio: float) -> int:
        return half + round(max(-1.0, min(1.0, math.log(max(ratio, 1e-6)) / widest)) * half)

    low, middle, high = (place(ratio) for ratio in (comparison.ci_low, comparison.speedup, comparison.ci_high))
    cells = [" "] * (2 * half + 1)
    cells[half] = "│"
    cells[low : high + 1] = "─" * (high + 1 - low)
    cells[middle] = "●"
    return "".join(cells)


def sparkline(values: Sequence[float], width: int, top: float = 100.0) -> str:
    """The last ``width`` values as a line of blocks."""
    shown = list(values)[-width:]
    levels = (min(len(_LEVELS) - 1, int(value / top * len(_LEVELS))) for value in shown)
    return "".join(_LEVELS[level] for level in levels).rjust(width)


def widest_effect(records: Iterable[TrialRecord], stack: StackRecord | None = None) -> float:
    """The largest effect on show, as the logarithm of its speed-up; at least that of ``SMALL_EFFECT``."""
    effects = [own_figures(record).comparison for record in records]
    effects += [stack.comparison] if stack else []
    sizes = [abs(math.log(max(effect.speedup, 1e-6))) for effect in effects if effect]
    return max([math.log(SMALL_EFFECT), *sizes])


def own_mark(record: TrialRecord) -> tuple[str, str]:
    """The sign and the colour of a candidate's own effect; a neutral one where it ran with others only."""
    shown = record.contribution.verdict if record.contribution else verdict_shown(record)
    return MARKS[shown] if shown else ("★", "secondary")


def mark(record: TrialRecord) -> Content:
    """The sign of a verdict in its colour."""
    symbol, colour = own_mark(record)
    return Content.styled(symbol, f"${colour}")


def own_effect(record: TrialRecord, by: Yardstick | None = None, *, short: bool = False) -> Content:
    """A candidate's own effect by the objective; of one that was measured with others, its effect on their speed.

    Where both are known, what it adds to the stack comes first, with what it does alone behind it unless ``short``.
    """
    if record.alone and record.contribution is not None:
        added = on_the_stack(record.contribution)
        alone = by_objective(record.result, record.comparison, by, short=True)
        return added if short else Content.assemble(added, ("  alone ", DIM), alone)
    if record.alone:
        return by_objective(record.result, record.comparison, by, short=short)
    if record.contribution is not None:
        return on_the_stack(record.contribution)
    known = verdict_shown(record) not in (None, Verdict.SAME, Verdict.UNCLEAR)
    return Content.styled(effect_words(record), f"bold ${own_mark(record)[1]}" if known else DIM)


def on_the_stack(contribution: Comparison, *, short: bool = False) -> Content:
    """The effect of a setting on the others of the stack: ``+1.20x (1.15–1.25) on the stack``.

    With ``short``, where something beside it says what it is about, the figure only.
    """  # noqa: RUF002 - the en dash stands between the ends of an interval
    where = "" if short else " on the stack"
    style = DIM if not contribution.verdict.is_change else f"bold ${MARKS[contribution.verdict][1]}"
    return Content.styled(f"{format_gain(contribution)}{where}", style)


def behind_rejected(effect: Content, room: int | None) -> Content:
    """An effect behind the word that the setting was rejected.

    Where that leaves too little ``room``, it comes without its interval, or the row's sign says it alone.
    """
    told = effect.plain
    if room is not None and len(told) > room:
        short = told.partition(" (")[0]
        told = short if len(short) <= room else ""
    return Content.styled(REJECTED_FIRST if told else str(Decision.REJECTED), "dim") + effect[: len(told)]


def ratio(comparison: Comparison | None) -> Content:
    """A speed-up with its interval, coloured by its verdict."""
    if comparison is None:
        return Content("–")  # noqa: RUF001 - the sign for a missing number
    _, colour = MARKS[comparison.verdict]
    weight = DIM if not comparison.verdict.is_change else f"bold ${colour}"
    return Content.styled(format_ratio(comparison), weight)


def by_objective(
    result: TrialResult, comparison: Comparison | None, by: Yardstick | None, *, short: bool = False
) -> Content:
    """The effect of settings by the objective: ``-31 % memory 0.97x (0.95–0.99)``; for a speed, the speed-up.

    With ``short`` memory and energy come without the speed-up behind them.
    """  # noqa: RUF002 - the en dash stands between the ends of an interval
    if by is None or by.goal.by_time or comparison is None:
        return ratio(comparison)
    own = by.baseline.result
    if by.goal.objective is Objective.MEMORY:
        change = f"{format_bytes_change(result.peak_reserved_bytes, own.peak_reserved_bytes)} memory"
    else:
        change = f"{format_change(result.energy_j_per_sample, own.energy_j_per_sample)} energy"
    gain = by.gain(result, comparison)
    style = "bold $success" if gain and gain.is_better else "bold $error" if gain and gain.is_worse else DIM
    return Content.styled(change, style) if short else Content.assemble((change, style), " ", ratio(comparison))


def memory_against(new_bytes: int | None, old_bytes: int | None) -> Content:
    """A size with its change against the baseline: less is green, more is amber."""
    return Content.assemble(format_bytes(new_bytes), " ", bracketed(format_bytes_change(new_bytes, old_bytes)))


def bracketed(change: str) -> Content:
    """A relative change in brackets: less is green, more is amber."""
    more = change.startswith("+") or change.endswith("as much")
    return Content.styled(f"({change})", "$success" if change.startswith("-") else "$warning" if more else DIM)
