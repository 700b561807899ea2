"""The order of the rows of the trials table, and which of them are shown. Pure functions.

The baseline and the stack stay on top, whatever the order: everything is compared with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from advisor.experiment.ranking import CONTROL
from advisor.experiment.state import SessionState
from advisor.records import TrialRecord, Verdict
from advisor.report.figures import own_figures, verdict_shown
from advisor.tui.views.readings import start_up_s
from advisor.tui.views.trial_rows import BASELINE, EFFECT, NAME, SKIPPED_PREFIX, STACK, Column, Row

_PINNED = (BASELINE, STACK)
_VERDICTS = (Verdict.FASTER, Verdict.NO_DIFFERENCE, Verdict.SLOWER, Verdict.FAILED, Verdict.SKIPPED)
# Columns whose largest figure comes first; of all others the smallest does.
_LARGEST_FIRST = (EFFECT, "bar")


@dataclass(frozen=True, slots=True)
class Order:
    """The order of the rows: by a ``column`` (empty: as planned), with a ``query`` in them, skipped ones or not."""

    column: str = ""
    backwards: bool = False
    query: str = ""
    show_skipped: bool = False

    def by(self, column: str) -> Order:
        """Sorted by a column; the other way round when it is that one already; a third time as planned."""
        if self.column != column:
            return replace(self, column=column, backwards=False)
        return replace(self, column="" if self.backwards else column, backwards=not self.backwards)

    def by_next(self, columns: Sequence[Column]) -> Order:
        """Sorted by the column behind the present one; behind the last one as planned."""
        keys = ["", *(column.key for column in columns if column.label)]
        place = keys.index(self.column) if self.column in keys else 0
        return replace(self, column=keys[(place + 1) % len(keys)], backwards=False)

    @property
    def largest_first(self) -> bool:
        """Whether the rows begin with the largest figure."""
        return (self.column in _LARGEST_FIRST) is not self.backwards

    def label(self, column: Column) -> str:
        """A heading, marked where the rows are sorted by it: ``▼`` where the figures fall from row to row."""
        return f"{column.label}{'▼' if self.largest_first else '▲'}" if column.key == self.column else column.label


def rows_to_show(rows: Sequence[Row], order: Order, state: SessionState) -> list[Row]:
    """The rows to show, in their order."""
    shown = [row for row in rows if order.show_skipped or order.query or not row.key.startswith(SKIPPED_PREFIX)]
    words = order.query.lower().split()
    shown = [row for row in shown if not words or all(word in _told_by(row, state) for word in words)]
    if not order.column:
        return shown
    pinned = [row for row in shown if row.key in _PINNED]
    others = [row for row in shown if row.key not in _PINNED]
    figures = {row.key: _figure(row.key, order.column, state) for row in others}
    known = [(figure, row) for row in others if (figure := figures[row.key]) is not None]
    known.sort(key=lambda pair: pair[0], reverse=order.largest_first)
    return [*pinned, *(row for _, row in known), *(row for row in others if figures[row.key] is None)]


def _told_by(row: Row, state: SessionState) -> str:
    """A row's name, verdict and reason, to look for words in."""
    record = state.trials.get(row.key)
    verdict = (record.contribution.verdict if record.contribution else verdict_shown(record)) if record else None
    return " ".join([row.key, row.cells[EFFECT].plain, verdict or ""]).lower()


def _figure(key: str, column: str, state: SessionState) -> tuple[float, str] | None:
    """The sort key of a row in a column; None where it has nothing there."""
    if column == NAME:
        return (0.0, key.removeprefix(SKIPPED_PREFIX).lower())
    record = state.trials.get(key)
    if record is None or record.candidate.recipe == CONTROL:
        ended = state.ended.get(key)
        figure = {"step": ended.step_ms, "memory": ended.peak_reserved_bytes}.get(column) if ended else None
    else:
        figure = _figure_of(own_figures(record), column)
    return None if figure is None else (float(figure), key)


def _figure_of(record: TrialRecord, column: str) -> float | None:
    effect = record.contribution or record.comparison
    if column in (EFFECT, "bar"):
        return effect.speedup if effect else None
    if column == "state":
        return _VERDICTS.index(record.verdict)
    if column == "numerics":
        return record.numerics.measured.severity if record.numerics else None
    figures = {"step": record.step_ms, "memory": record.result.peak_reserved_bytes, "start": start_up_s(record.result)}
    return figures[column]
