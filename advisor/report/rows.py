"""The ranked list of a session: each setting with its figures, and the combination. Pure functions.

The app, the terminal and the reports render these records. All step times refer to one baseline. A setting of the
combination has the combination's step time; the step time without it is that time multiplied by its speed-up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from advisor.experiment.control import Decision
from advisor.experiment.ranking import CONTROL
from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    counted,
    format_bytes,
    format_change,
    format_interval,
    format_ms,
    format_outcome,
    format_pending,
)
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import (
    Candidate,
    Comparison,
    NumericsResult,
    Objective,
    Outcome,
    Recommendation,
    StackRecord,
    TrialRecord,
    Verdict,
)
from advisor.report.figures import IN_TURN, before_and_after, energy_words, settings_to_export


class Against(StrEnum):
    """The settings that a row's figures are compared with."""

    BASELINE = "against the baseline"
    REST = "compared with and without it"
    NOT_SPLIT = "the figures of all settings together, not yet compared without it"


_LONG_NAME = 24  # characters; a longer name is shown without its value, if the recipe has no other value here
SIGNS = {Against.BASELINE: "", Against.REST: "+", Against.NOT_SPLIT: "in "}  # before a speed-up


class Tick(StrEnum):
    """Whether a setting is exported, after the person's decisions; the values are the words on screen."""

    ON = "exported"
    OFF = "not exported"
    WAITING = "accepted, measured with the others next"
    REFUSED = "accepted, but not exported"


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures without and with some settings."""

    before_ms: float  # the step time without them
    effect: Comparison
    memory_bytes: tuple[int | None, int | None] = (None, None)  # without and with them; None if not measured
    energy_j: tuple[float | None, float | None] = (None, None)  # a sample; as above
    numerics: NumericsResult | None = None
    against: Against = Against.BASELINE
    others: int = 0  # the number of settings that were on in both
    samples: int | None = None  # the samples that both step times are for, if the batch sizes differ
    confirmed: bool = True  # False for a combination whose speed-up may still change

    @property
    def after_ms(self) -> float:
        """The step time with the settings: the one without them divided by the speed-up."""
        return self.before_ms / self.effect.speedup

    @property
    def words(self) -> str:
        """The speed-up with its interval: ``1.39x (1.37–1.41)``; ``+1.24x (…)`` on top of the others."""  # noqa: RUF002
        return f"{SIGNS[self.against]}{format_interval(self.effect)}"

    @property
    def speed(self) -> str:
        """The speed-up without interval: ``1.39x``; ``+1.24x`` on top of the others; ``in 1.51x`` for all together."""
        speedup = self.effect.speedup
        digits = 2 if speedup < 9.995 else 1 if speedup < 99.95 else 0
        return f"{SIGNS[self.against]}{speedup:.{digits}f}x"

    @property
    def compared(self) -> str:
        """The comparison behind the speed-up: ``compared with and without it, 2 other settings on``."""
        if self.against is Against.BASELINE:
            return IN_TURN if self.effect.paired else f"alone, {self.against.value}"
        others = f", {counted(self.others, 'other setting')} on" if self.against is Against.REST else ""
        return f"{self.against.value}{others}"

    @property
    def steps(self) -> str:
        """The step times without and with the settings: ``73.0 → 48.4 ms``."""
        return before_and_after(format_ms, self.before_ms, self.after_ms)

    @property
    def memory(self) -> str:
        """The peaks without and with the settings: ``9.10 → 5.20 GiB``; only the second if the first is not known."""
        return before_and_after(format_bytes, *self.memory_bytes)

    @property
    def memory_change(self) -> str:
        """The change of the peak: ``-43 %``; the peak with the settings if the one without them is not known."""
        before, after = self.memory_bytes
        return format_bytes(after) if before is None else format_change(after, before)

    @property
    def memory_in_full(self) -> str:
        """The peaks and their change: ``9.10 → 5.20 GiB (-43 %)``."""
        return self.memory if self.memory_bytes[0] is None else f"{self.memory} ({self.memory_change})"

    @property
    def energy(self) -> str:
        """Joules a sample without and with the settings; empty if one of them was not measured."""
        return energy_words(self.energy_j[1], self.energy_j[0]) if all(self.energy_j) else ""

    @property
    def verdict(self) -> Verdict:
        """The verdict on the settings; unclear while only the whole combination was measured."""
        return Verdict.UNCLEAR if self.against is Against.NOT_SPLIT else self.effect.verdict


@dataclass(frozen=True, slots=True)
class Row:
    """The row of one setting in the list."""

    candidate: Candidate
    name: str
    title: str
    figures: Figures | None  # None if the setting was not measured
    tick: Tick
    star: bool = False  # whether the setting is recommended
    consent: bool = False
    running: bool = False
    rejected: bool = False
    note: str = ""  # the reason that it has no figures or is not exported; else a doubt about the figures
    why: str = ""
    record: TrialRecord | None = None
    values: tuple["Row", ...] = ()  # the rows of the recipe's other values

    @property
    def key(self) -> str:
        """The candidate's name, unique among all rows."""
        return self.candidate.name


@dataclass(frozen=True, slots=True)
class Fold:
    """A line that folds settings without figures; each entry has a setting's name and the reason."""

    key: str
    title: str
    entries: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Ranking:
    """All settings with their figures so far."""

    step_ms: float | None = None  # the baseline's step time
    together: Figures | None = None  # the figures of the combination that is reported and exported
    pending: str = ""  # the reason that the combination has no figures
    rows: tuple[Row, ...] = ()
    folds: tuple[Fold, ...] = ()

    @property
    def every(self) -> list[Row]:
        """All rows; the rows of a setting's other values follow it."""
        return [each for row in self.rows for each in (row, *row.values)]

    def row(self, key: str) -> Row | None:
        """The row of a candidate, even if it is folded under another row; None if it has no row."""
        return next((row for row in self.every if row.key == key), None)


def ranking(state: SessionState, catalog: Catalog | None = None, *, working: bool = False) -> Ranking:
    """The ranked list. ``working``: something is being measured after the end of the session."""
    stack = state.stack if state.stack_settings else None
    return Ranking(
        step_ms=_reference_ms(state),
        together=together_of(state),
        pending=format_pending(stack) if stack and stack.pending else "",
        rows=tuple(_rows(state, catalog, working=working or state.finished is None)),
        folds=tuple(_folds(state)),
    )


# --- figures ------------------------------------------------------------------------------------------------------


def together_of(state: SessionState) -> Figures | None:
    """The figures of the combination; None if there is no combination or it was not measured."""
    return _against_baseline(state.stack, state) if state.stack and state.stack.settings else None


def _reference_ms(state: SessionState) -> float | None:
    """The baseline's step time to which all others refer: the one timed in turn with the combination, if any."""
    beside = state.measured_stack.baseline_step_ms if state.measured_stack else None
    return beside or (state.baseline.step_ms if state.baseline else None)


def _against_baseline(record: TrialRecord | StackRecord, state: SessionState) -> Figures | None:
    step_ms, by, comparison = _reference_ms(state), state.yardstick, record.comparison
    if step_ms is None or by is None or comparison is None or comparison.speedup <= 0:
        return None
    baseline, result = by.baseline.result, record.result
    other_batch = result.batch_size is not None and result.batch_size != baseline.batch_size
    gain = by.gain(result, comparison) if by.goal.objective is Objective.LATENCY and result.measured else None
    if gain is not None:
        comparison = Comparison(gain.ratio, gain.low, gain.high, paired=comparison.paired)
    return Figures(
        step_ms,
        comparison,
        (baseline.peak_reserved_bytes, result.peak_reserved_bytes),
        (baseline.energy_j_per_sample, result.energy_j_per_sample),
        record.numerics,
        samples=baseline.batch_size if other_batch and gain is None else None,
        confirmed=record.confirmed if isinstance(record, StackRecord) else len(record.settings) <= 1,
    )


def figures_of(record: TrialRecord, state: SessionState) -> Figures | None:
    """A candidate's own figures: compared with and without it in the combination if known, else measured alone.

    A candidate that was only measured with others has the figures of all of them. A member of the combination has the
    step time of the combination that was measured last, even if the person has since rejected a part of it.
    """
    stack, candidate, effect = state.measured_stack, record.candidate, record.contribution
    only_together = not record.alone and record.contribution is None
    member = stack is not None and stack.settings.get(candidate.key) == candidate.value
    of = stack if stack and only_together and member and stack.comparison else record
    whole = _against_baseline(of, state)
    if whole is None or not record.result.measured or (effect and effect.speedup <= 0):
        return None
    if effect is None:
        against = Against.NOT_SPLIT if only_together else Against.BASELINE
        return replace(whole, against=against, others=max(len(of.settings) - 1, int(only_together)))
    settings, peaks = Settings(record.settings), _peaks(state)
    if stack and record.alone:
        settings = Settings(stack.settings).merged(candidate.settings)
    rest, after_ms = settings.without(candidate.key), whole.after_ms
    together = _against_baseline(stack, state) if stack and stack.settings else None
    if stack and together and (member or stack.settings.items() <= rest.items()):
        after_ms = together.after_ms if member else together.after_ms / effect.speedup
    return Figures(
        after_ms * effect.speedup,
        effect,
        (peaks.get(rest), peaks.get(settings, whole.memory_bytes[1])),
        (None, whole.energy_j[1]),
        record.numerics,
        Against.REST,
        max(1, len(rest)),
        whole.samples,
    )


def _peaks(state: SessionState) -> dict[Settings, int]:
    """The peak memory of all settings that were measured, in bytes."""
    results = {Settings(record.settings): record.result for record in state.trials.values()}
    if state.baseline:
        results[Settings()] = state.baseline.result
    if state.measured_stack:
        results[Settings(state.measured_stack.settings)] = state.measured_stack.result
    peaks = {settings: point.peak_reserved_bytes for settings, point in state.combinations.items()}
    return peaks | {settings: peak for settings, result in results.items() if (peak := result.peak_reserved_bytes)}


# --- rows ---------------------------------------------------------------------------------------------------------


def _rows(state: SessionState, catalog: Catalog | None, *, working: bool) -> list[Row]:
    """The rows: recommended settings first, then the others by their effect, then failed ones, then the running one.

    A recipe has one row, with the value that is exported or recommended, else with its best value.
    """
    recommended = {item.record.candidate.name: item for item in state.recommendations}
    ranks = {item.recipe: item.rank for item in state.recommendations}
    by_recipe: dict[str, list[Row]] = {}
    for name, candidate in state.candidates.items():
        record, running = state.trials.get(name), state.running == name
        was_tried = record is not None and record.result.outcome is not Outcome.SKIPPED
        if candidate.recipe != CONTROL and (running or was_tried):
            row = _row(candidate, recommended.get(name), state, catalog, working=working)
            by_recipe.setdefault(candidate.recipe, []).append(row)

    def merit(row: Row) -> tuple[bool, bool, float]:
        return row.tick is Tick.ON, row.key in recommended, row.figures.effect.speedup if row.figures else 0.0

    def place(row: Row) -> tuple[int, float]:
        if row.candidate.recipe in ranks:
            return 0, ranks[row.candidate.recipe]
        return (1, -row.figures.effect.speedup) if row.figures else (3 if row.running else 2, 0.0)

    ordered = (sorted(rows, key=merit, reverse=True) for rows in by_recipe.values())
    return sorted((replace(best, values=tuple(others)) for best, *others in ordered), key=place)


def _row(
    candidate: Candidate, item: Recommendation | None, state: SessionState, catalog: Catalog | None, *, working: bool
) -> Row:
    recipe, record = candidate.recipe, state.trials.get(candidate.name)
    decision = state.decisions.get(recipe)
    in_stack = state.stack_settings.get(candidate.key) == candidate.value or bool(item and item.in_stack)
    tick = _tick_of(candidate, record, state, working=working)
    only_value = sum(other.recipe == recipe for other in state.candidates.values()) == 1
    switch = candidate.value is True or (only_value and len(candidate.name) > _LONG_NAME)
    return Row(
        candidate,
        recipe if switch else candidate.name,
        item.title if item else title_of(recipe, catalog),
        figures_of(record, state) if record else None,
        tick,
        star=in_stack and (decision is not Decision.ACCEPTED or bool(record and record.verdict is Verdict.FASTER)),
        consent=bool(item and item.needs_consent),
        running=state.running == candidate.name,
        rejected=decision is Decision.REJECTED,
        note=_note(candidate, record, state, tick),
        why=item.why if item else "",
        record=record,
    )


def _tick_of(candidate: Candidate, record: TrialRecord | None, state: SessionState, *, working: bool) -> Tick:
    """Whether a setting is exported. An accepted setting that is not exported waits or is refused."""
    if settings_to_export(state).get(candidate.key) == candidate.value:
        return Tick.ON
    value = state.accepted_values.get(candidate.recipe, candidate.value)
    if state.decisions.get(candidate.recipe) is not Decision.ACCEPTED or value != candidate.value:
        return Tick.OFF
    failed = record is not None and record.verdict is Verdict.FAILED
    dropped = state.stack is not None and candidate.key in state.stack.dropped
    return Tick.REFUSED if not working and (failed or dropped) else Tick.WAITING


def _note(candidate: Candidate, record: TrialRecord | None, state: SessionState, tick: Tick) -> str:
    """The reason a setting has no figures or is not exported; else a doubt about its figures."""
    if record is not None and not record.result.measured:
        reason = format_outcome(record.result)
        return f"{reason.rstrip('.')}. {record.result.hint}" if record.result.hint else reason
    if tick is not Tick.ON and state.stack and (why := state.stack.dropped.get(candidate.key)):
        return why
    always = state.baseline is not None and state.baseline.result.disturbed  # the session says it once
    return f"unreliable: {record.result.disturbed}" if record and record.result.disturbed and not always else ""


def title_of(recipe: str, catalog: Catalog | None) -> str:
    """A recipe's title; its id if the catalogue does not have the recipe."""
    known = catalog.recipes.get(recipe) if catalog else None
    return known.title if known else recipe


def _folds(state: SessionState) -> Iterator[Fold]:
    """The folded settings without figures: one line for those not tried (yet), one for those that do not apply."""
    over = state.finished is not None or state.failure is not None
    untried, waits = dict[str, str](), "not tried" if over else "waiting"
    for name, candidate in state.candidates.items():
        record = state.trials.get(name)
        if name == state.running or candidate.recipe == CONTROL:
            continue
        if record is None:
            untried[name] = "changes results: tried last" if name in state.consent else waits
        elif record.result.outcome is Outcome.SKIPPED:
            untried[name] = record.result.reason
    if untried:
        yield Fold("untried", f"{len(untried)} {'not tried' if over else 'to try'}", tuple(untried.items()))
    if state.skipped:
        yield Fold("skipped", f"{len(state.skipped)} not applicable", tuple(state.skipped.items()))
