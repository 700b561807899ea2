"""The changes between two sessions as sections: baseline, stack, verdicts, workload, options, machine, versions.

Pure functions of their states. A row says what was, what is, and how far it moved where that is more than the intervals
explain.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

from advisor.experiment.ranking import CONTROL
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.figures.formatting import (
    MISSING,
    format_bytes,
    format_change,
    format_ms,
    format_outcome,
    format_rate,
    format_seconds,
    format_within,
    interval_or_words,
)
from advisor.records import BaselineRecord, Comparison, StackRecord, TrialRecord, Verdict, text_of
from advisor.report.document import Section, Table
from advisor.report.evidence import hardware_table, workload_rows
from advisor.report.figures import effect_words, own_comparison, verdict_shown

_OPTIONS = tuple(field.name for field in fields(Request) if field.name not in ("target", "key_map", "config_path"))
_WITHIN = "within the intervals"
Change = tuple[str, str, str, str]  # what, before, after, and how far it moved


@dataclass(frozen=True, slots=True)
class Measured:
    """A session as one side of a comparison."""

    session_id: str
    request: Request
    state: SessionState


def comparison_sections(before: Measured, after: Measured) -> Iterator[Section]:
    """The changes from one session to the other, the most important first; kinds without changes are left out.

    The baseline and the stack are told even where they are the same: a person looks for them. Of different targets
    they stand side by side only: a ratio of two models' times says nothing.
    """
    one, other = before.state, after.state
    measured = (("Baseline", _baseline(one.baseline, other.baseline)), ("Stack", _stack(one.stack, other.stack)))
    used = [{key: text_of(value) for key, value in state.stack_settings.items()} for state in (one, other)]
    versions = [state.facts.versions if state.facts else {} for state in (one, other)]
    kinds = (
        *((title, _beside(changes, ratios=_same_target(before, after))) for title, changes in measured),
        ("Settings of the stack", _different(used[0], used[1], "not in the stack")),
        ("Verdicts", _verdicts(one, other)),
        ("Workload", _different(_workload(before), _workload(after))),
        ("Options", _different(_options(before.request), _options(after.request))),
        ("Machine", _different(_machine(one), _machine(other))),
        ("Versions", _different(versions[0], versions[1])),
    )
    for title, changes in kinds:
        if rows := tuple(changes):
            yield Section(title, (Table(("", before.session_id, after.session_id, ""), rows),))


def _same_target(before: Measured, after: Measured) -> bool:
    return before.request.target.command == after.request.target.command


def _beside(changes: Iterator[Change], *, ratios: bool) -> Iterator[Change]:
    yield from changes if ratios else ((*change[:3], "") for change in changes)


def summary(before: Measured, after: Measured) -> str:
    """Return the answer in one sentence: whether the workload itself, and its best settings, became faster."""
    one, other = before.state, after.state
    if one.baseline is None or other.baseline is None:
        missing = before.session_id if one.baseline is None else after.session_id
        return f"The session {missing} has no baseline, so speeds cannot be compared."
    if not _same_target(before, after):
        targets = " and ".join(side.request.target.command for side in (before, after))
        return f"Different targets, {targets}: their times are of different work, so no ratio is given."
    plain = _ratio(other.baseline.samples_per_s, one.baseline.samples_per_s)
    best = _ratio(_best(other.stack, other.baseline), _best(one.stack, one.baseline))
    noise = math.hypot(one.baseline.half_width, other.baseline.half_width)
    return f"The baseline {_moved(plain, noise)}; the best settings {_moved(best, noise)}."


def _moved(ratio: float, noise: float) -> str:
    if abs(math.log(ratio)) <= math.log1p(noise):
        return f"kept the same speed, {_WITHIN}"
    return f"became {ratio:.2f}x faster" if ratio > 1 else f"became {1 / ratio:.2f}x slower"


def _ratio(new: float, old: float) -> float:
    return new / old if new > 0 and old > 0 else 1.0


def _best(stack: StackRecord | None, baseline: BaselineRecord) -> float:
    """Samples per second of the stack; of the baseline where no stack was measured."""
    return stack.samples_per_s if stack and stack.settings and stack.samples_per_s else baseline.samples_per_s


# --- figures --------------------------------------------------------------------------------------------------


def _baseline(one: BaselineRecord | None, other: BaselineRecord | None) -> Iterator[Change]:
    if one is None or other is None:
        before, after = (f"{format_ms(side.step_ms)} a step" if side else "not measured" for side in (one, other))
        yield from _different({"Baseline": before}, {"Baseline": after})
        return
    noise = math.hypot(one.half_width, other.half_width)
    yield _figure("Step", one.step_ms, other.step_ms, format_ms, noise)
    yield _figure("Throughput", one.samples_per_s, other.samples_per_s, format_rate, noise)
    yield _memory(one.result.peak_reserved_bytes, other.result.peak_reserved_bytes)
    yield "Interval", format_within(one.half_width), format_within(other.half_width), ""


def _figure(what: str, old: float, new: float, told: Callable[[float], str], noise: float) -> Change:
    same = abs(math.log(_ratio(new, old))) <= math.log1p(noise)
    return what, told(old), told(new), _WITHIN if same else format_change(new, old)


def _memory(old: int | None, new: int | None) -> Change:
    return "Peak memory", format_bytes(old), format_bytes(new), format_change(new, old) if old and new else ""


def _stack(one: StackRecord | None, other: StackRecord | None) -> Iterator[Change]:
    before, after = (side if side and side.settings and side.comparison else None for side in (one, other))
    words = [interval_or_words(side.comparison) if side else "none" for side in (before, after)]
    if not (before and after and before.comparison and after.comparison):
        yield from _different({"Stack": words[0]}, {"Stack": words[1]})
        return
    apart = _apart(before.comparison, after.comparison)
    moved = format_change(after.comparison.speedup, before.comparison.speedup) if apart else _WITHIN
    yield "Speed-up", words[0], words[1], moved
    if before.step_ms and after.step_ms:
        widths = (side.ci_high / side.speedup - 1 for side in (before.comparison, after.comparison))
        yield _figure("Step", before.step_ms, after.step_ms, format_ms, math.hypot(*widths))
    yield _memory(before.result.peak_reserved_bytes, after.result.peak_reserved_bytes)


def _apart(one: Comparison, other: Comparison) -> bool:
    return one.ci_high < other.ci_low or other.ci_high < one.ci_low


def _verdicts(one: SessionState, other: SessionState) -> Iterator[Change]:
    """The candidates whose verdict is another one, or whose intervals lie apart; then those of one session only."""
    before, after = _tried(one), _tried(other)
    yield from (change for name in before if name in after for change in _verdict(name, before[name], after[name]))
    yield from ((name, "not tried", _effect(record), "") for name, record in after.items() if name not in before)
    yield from ((name, _effect(record), "not tried", "") for name, record in before.items() if name not in after)


def _tried(state: SessionState) -> dict[str, TrialRecord]:
    ran = (record for record in state.trials.values() if record.candidate.recipe != CONTROL)
    return {record.candidate.name: record for record in ran if record.verdict is not Verdict.SKIPPED}


def _verdict(name: str, one: TrialRecord, other: TrialRecord) -> Iterator[Change]:
    """The verdict on a candidate itself: the figure of a stack that it was measured in is not its own."""
    own, verdicts = (own_comparison(one), own_comparison(other)), (verdict_shown(one), verdict_shown(other))
    if verdicts[0] is not verdicts[1]:
        told = " → ".join(filter(None, verdicts)) if all(verdicts) else ""  # else the figures say it
        yield name, _effect(one), _effect(other), told
    elif own[0] and own[1] and _apart(own[0], own[1]):
        yield name, _effect(one), _effect(other), "intervals lie apart"


def _effect(record: TrialRecord) -> str:
    return effect_words(record, interval_or_words) if record.result.measured else format_outcome(record.result)


# --- what they were measured on -------------------------------------------------------------------------------


def _workload(side: Measured) -> dict[str, str]:
    facts = side.state.facts
    yours = {key: text_of(value) for key, value in sorted(facts.workload.current.items())} if facts else {}
    return {"Target": side.request.target.command, **dict(workload_rows(facts)), **yours}


def _options(request: Request) -> dict[str, str]:
    values = {name: getattr(request, name) for name in _OPTIONS}
    texts = {name: ", ".join(map(str, value)) if isinstance(value, tuple) else value for name, value in values.items()}
    texts["budget_s"] = format_seconds(request.budget_s)
    named = {name.removesuffix("_s").removesuffix("_bytes").replace("_", "-"): text for name, text in texts.items()}
    return {f"--{name}": MISSING if text in (None, "") else str(text) for name, text in named.items()}


def _machine(state: SessionState) -> dict[str, str]:
    hardware = state.hardware
    return {str(name): str(text) for name, text in hardware_table(hardware, None).rows} if hardware else {}


def _different(one: Mapping[str, str], other: Mapping[str, str], missing: str = MISSING) -> Iterator[Change]:
    for key in dict.fromkeys((*one, *other)):
        before, after = one.get(key, missing), other.get(key, missing)
        if before != after:
            yield key, before, after, ""
