"""The changes between two sessions as sections: baseline, stack, settings, workload, options, machine, versions.

Pure functions of their states. A row has both figures, and the change where it is more than their intervals explain.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.figures.formatting import MISSING, format_bytes, format_change, format_ms, format_rate, format_within
from advisor.records import Value, text_of
from advisor.report.document import Section, Table
from advisor.report.evidence import hardware_table, workload_rows
from advisor.report.rows import Figures, ranking

_WITHIN = "within the intervals"


@dataclass(frozen=True, slots=True)
class Measured:
    """A session as one side of a comparison."""

    session_id: str
    request: Request
    state: SessionState


@dataclass(frozen=True, slots=True)
class _Figure:
    """A figure in words; its value and half of its interval as a share, where it can be compared."""

    text: str
    value: float | None = None
    half_width: float = 0.0

    def change_to(self, other: "_Figure") -> str:
        """The relative change, where it is more than the intervals explain; empty where one is not known."""
        if not self.value or not other.value:
            return ""
        noise = math.hypot(self.half_width, other.half_width)
        within = noise and _is_within(other.value / self.value, noise)
        return _WITHIN if within else format_change(other.value, self.value)


# The kinds that are shown even without a change; and by kind, the word for what one session does not have.
_ALWAYS = ("Baseline", "Stack")
_LACKING = {"Settings of the stack": "not in the stack", "Settings": "not tried"}


def comparison_sections(before: Measured, after: Measured) -> Iterator[Section]:
    """The changes from one session to the other, the most important first; kinds without changes are left out.

    Figures of different targets have no ratio.
    """
    ratios, one, other = _same_target(before, after), _known(before), _known(after)
    for title in one:
        rows = []
        for name in dict.fromkeys((*one[title], *other[title])):
            found = (side[title].get(name, _LACKING.get(title, MISSING)) for side in (one, other))
            first, then = (each if isinstance(each, _Figure) else _Figure(each) for each in found)
            change = first.change_to(then)
            if title in _ALWAYS or (first.text != then.text and change != _WITHIN):
                rows.append((name, first.text, then.text, change if ratios else ""))
        if rows:
            yield Section(title, (Table(("", before.session_id, after.session_id, ""), tuple(rows)),))


def summary(before: Measured, after: Measured) -> str:
    """Return the answer in one sentence: whether the workload itself, and its best settings, became faster."""
    one, other = before.state.baseline, after.state.baseline
    if one is None or other is None:
        missing = before.session_id if one is None else after.session_id
        return f"The session {missing} has no baseline, so speeds cannot be compared."
    if not _same_target(before, after):
        targets = " and ".join(side.request.target.command for side in (before, after))
        return f"Different targets, {targets}: their times are of different work, so no ratio is given."
    noise = math.hypot(one.half_width, other.half_width)
    stacks = [side.state.stack if side.state.stack_settings else None for side in (before, after)]
    first, then = (
        (stack and stack.samples_per_s) or base.samples_per_s for stack, base in zip(stacks, (one, other), strict=True)
    )
    plain = _moved(other.samples_per_s / one.samples_per_s, noise)
    return f"The baseline {plain}; the best settings {_moved(then / first, noise)}."


def _same_target(before: Measured, after: Measured) -> bool:
    return before.request.target.command == after.request.target.command


def _is_within(ratio: float, noise: float) -> bool:
    return abs(math.log(ratio)) <= math.log1p(noise)


def _moved(ratio: float, noise: float) -> str:
    if _is_within(ratio, noise):
        return f"kept the same speed, {_WITHIN}"
    return f"became {ratio:.2f}x faster" if ratio > 1 else f"became {1 / ratio:.2f}x slower"


# --- one session --------------------------------------------------------------------------------------------------


def _known(side: Measured) -> dict[str, Mapping[str, _Figure | str]]:
    """All that is compared of a session, by its kind and its name."""
    state, facts, baseline = side.state, side.state.facts, side.state.baseline
    found = ranking(state)
    own, stack = dict[str, _Figure | str]({"Step": "not measured"}), dict[str, _Figure | str]({"Speed-up": "none"})
    if baseline is not None:
        half = baseline.half_width
        own = {
            "Step": _Figure(format_ms(baseline.step_ms), baseline.step_ms, half),
            "Throughput": _Figure(format_rate(baseline.samples_per_s), baseline.samples_per_s, half),
            "Peak memory": _Figure(format_bytes(state.baseline_bytes), state.baseline_bytes),
            "Interval": format_within(half),
        }
    if together := found.together:
        effect, peak = _effect(together), together.memory_bytes[1]
        stack = {
            "Speed-up": effect,
            "Step": _Figure(format_ms(together.after_ms), together.after_ms, effect.half_width),
            "Peak memory": _Figure(format_bytes(peak), peak),
        }
    machine = hardware_table(state.hardware, None).rows if state.hardware else ()
    present = _texts(facts.workload.current if facts else {})
    return {
        "Baseline": own,
        "Stack": stack,
        "Settings of the stack": _texts(state.stack_settings),
        "Settings": {row.key: _effect(row.figures) if row.figures else row.note for row in found.every},
        "Workload": {"Target": side.request.target.command, **dict(workload_rows(facts)), **present},
        "Options": side.request.options,
        "Machine": {str(name): str(text) for name, text in machine},
        "Versions": facts.versions if facts else {},
    }


def _texts(settings: Mapping[str, Value]) -> dict[str, str]:
    return {key: text_of(value) for key, value in sorted(settings.items())}


def _effect(figures: Figures) -> _Figure:
    effect = figures.effect
    return _Figure(figures.words, effect.speedup, effect.ci_high / effect.speedup - 1)
