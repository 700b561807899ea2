"""Two sessions side by side as sections, and a sentence that says whether their speeds differ measurably."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.figures.formatting import MISSING
from advisor.records import text_of
from advisor.report.document import Inline, Section, Table, section, shown
from advisor.report.evidence import hardware_table, measured_rows, workload_rows
from advisor.report.figures import how_confirmed
from advisor.report.rows import ranking
from advisor.report.settings import figure_pairs

_ALWAYS = ("Baseline", "Combination")  # the sections that are shown even if nothing differs


@dataclass(frozen=True, slots=True)
class Measured:
    """A session as one side of a comparison."""

    session_id: str
    request: Request
    state: SessionState


def comparison_sections(before: Measured, after: Measured) -> tuple[Section, ...]:
    """The differences between two sessions, the most important first. A section without differences is left out."""
    one, other = _known(before), _known(after)
    headings, found = ("", before.session_id, after.session_id), list[Section]()
    for title in one:
        names = dict.fromkeys((*one[title], *other[title]))
        rows = [(name, one[title].get(name, MISSING), other[title].get(name, MISSING)) for name in names]
        differing = tuple(row for row in rows if title in _ALWAYS or row[1] != row[2])
        found.append(section(title, Table(headings, differing)))
    return shown(found)


def summary(before: Measured, after: Measured) -> str:
    """Return one sentence that says whether the baseline and the best settings became faster."""
    one, other = before.state.baseline, after.state.baseline
    if one is None or other is None:
        missing = before.session_id if one is None else after.session_id
        return f"The session {missing} has no baseline, so speeds cannot be compared."
    targets = [side.request.target.command for side in (before, after)]
    if targets[0] != targets[1]:
        return f"Different targets, {' and '.join(targets)}: their times are of different work, so no ratio is given."
    noise = math.hypot(one.half_width, other.half_width)
    stacks = [side.state.stack if side.state.stack_settings else None for side in (before, after)]
    first, then = (
        (stack and stack.samples_per_s) or base.samples_per_s for stack, base in zip(stacks, (one, other), strict=True)
    )
    plain = _moved(other.samples_per_s / one.samples_per_s, noise)
    return f"The baseline {plain}; the best settings {_moved(then / first, noise)}."


def _moved(ratio: float, noise: float) -> str:
    """The change of a speed in words. ``noise`` is the half width of both intervals together."""
    if abs(math.log(ratio)) <= math.log1p(noise):
        return "kept the same speed, within the intervals"
    return f"became {ratio:.2f}x faster" if ratio > 1 else f"became {1 / ratio:.2f}x slower"


# --- one session --------------------------------------------------------------------------------------------------


def _known(side: Measured) -> dict[str, Mapping[str, Inline]]:
    """Everything about a session that is compared, by section and by name."""
    state, facts, found = side.state, side.state.facts, ranking(side.state)
    stack = figure_pairs(found.together, how_confirmed(state.stack, state)) if found.together and state.stack else ()
    machine = hardware_table(state.hardware, None).rows if state.hardware else ()
    settings = (facts.workload.current if facts else {}), state.stack_settings
    present, together = ({key: text_of(value) for key, value in sorted(each.items())} for each in settings)
    return {
        "Baseline": dict(measured_rows(state)) or {"Step": "not measured"},
        "Combination": dict(stack) or {"Speed-up": "none"},
        "Settings of the combination": together,
        "Settings": {row.key: row.figures.words if row.figures else row.note for row in found.every},
        "Workload": {"Target": side.request.target.command, **dict(workload_rows(facts)), **present},
        "Options": side.request.options,
        "Machine": {str(name): text for name, text in machine},
        "Versions": facts.versions if facts else {},
    }
