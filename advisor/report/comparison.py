"""The changes between two sessions: versions, machine, workload, baseline, stack, verdicts.

Pure functions of their states. A change says what was, what is, and what follows where that is not plain.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

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
from advisor.records import BaselineRecord, Comparison, Hardware, StackRecord, TrialRecord, Value, Verdict, text_of
from advisor.report.document import Section, Table
from advisor.report.evidence import hardware_table, workload_rows
from advisor.report.figures import effect_words, own_comparison, verdict_shown

_OPTIONS = tuple(field.name for field in fields(Request) if field.name not in ("target", "key_map", "config_path"))


@dataclass(frozen=True, slots=True)
class Change:
    """One thing in both sessions. ``told`` says how far it moved; ``matters``: by more than the intervals explain."""

    what: str
    before: str
    after: str
    told: str = ""
    matters: bool = True


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one kind, under their title."""

    title: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """A session as one side of a comparison."""

    session_id: str
    request: Request
    state: SessionState


def compare(before: Measured, after: Measured) -> list[Changes]:
    """Return the changes from one session to the other, the most important first; kinds without changes are left out.

    The baseline and the stack are told even where they are the same: a person looks for them. Of different targets
    they stand side by side only: a ratio of two models' times says nothing.
    """
    one, other = before.state, after.state
    alike = _same_target(before, after)
    kinds = (
        ("Baseline", _side_by_side(_baseline(one.baseline, other.baseline), ratios=alike)),
        ("Stack", _side_by_side(_stack(one.stack, other.stack), ratios=alike)),
        ("Settings of the stack", _settings(one.stack_settings, other.stack_settings)),
        ("Verdicts", _verdicts(one, other)),
        ("Workload", _different(_workload(before), _workload(after))),
        ("Options", _different(_options(before.request), _options(after.request))),
        ("Machine", _different(_machine(one.hardware), _machine(other.hardware))),
        ("Versions", _different(_versions(one), _versions(other))),
    )
    found = (Changes(title, tuple(changes)) for title, changes in kinds)
    return [kind for kind in found if kind.changes]


def comparison_sections(before: Measured, after: Measured) -> Iterator[Section]:
    """The changes as tables."""
    for kind in compare(before, after):
        rows = tuple((change.what, change.before, change.after, change.told) for change in kind.changes)
        yield Section(kind.title, (Table(("", before.session_id, after.session_id, ""), rows),))


def _same_target(before: Measured, after: Measured) -> bool:
    return before.request.target.command == after.request.target.command


def _side_by_side(changes: Iterator[Change], *, ratios: bool) -> Iterator[Change]:
    yield from changes if ratios else (replace(change, told="", matters=True) for change in changes)


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
    best = _ratio(_best(other), _best(one))
    noise = math.hypot(one.baseline.half_width, other.baseline.half_width)
    return f"The baseline {_moved(plain, noise)}; the best settings {_moved(best, noise)}."


def _moved(ratio: float, noise: float) -> str:
    if abs(math.log(ratio)) <= math.log1p(noise):
        return "kept the same speed, within the intervals"
    return f"became {ratio:.2f}x faster" if ratio > 1 else f"became {1 / ratio:.2f}x slower"


def _ratio(new: float, old: float) -> float:
    return new / old if new > 0 and old > 0 else 1.0


def _best(state: SessionState) -> float:
    """Samples per second of the stack; of the baseline where no stack was measured."""
    assert state.baseline is not None
    stack = state.stack
    return stack.samples_per_s if stack and stack.settings and stack.samples_per_s else state.baseline.samples_per_s


# --- figures --------------------------------------------------------------------------------------------------


def _baseline(one: BaselineRecord | None, other: BaselineRecord | None) -> Iterator[Change]:
    if one is None or other is None:
        yield from _different({"Baseline": _has(one)}, {"Baseline": _has(other)})
        return
    noise = math.hypot(one.half_width, other.half_width)
    yield _figure("Step", (one.step_ms, other.step_ms), format_ms, noise)
    yield _figure("Throughput", (one.samples_per_s, other.samples_per_s), format_rate, noise)
    yield _memory(one.result.peak_reserved_bytes, other.result.peak_reserved_bytes)
    yield Change("Interval", format_within(one.half_width), format_within(other.half_width), matters=False)


def _has(baseline: BaselineRecord | None) -> str:
    return "not measured" if baseline is None else f"{format_ms(baseline.step_ms)} a step"


def _figure(what: str, figures: tuple[float, float], told: Callable[[float], str], noise: float) -> Change:
    old, new = figures
    same = abs(math.log(_ratio(new, old))) <= math.log1p(noise)
    return Change(what, told(old), told(new), "within the intervals" if same else format_change(new, old), not same)


def _memory(old: int | None, new: int | None) -> Change:
    matters = bool(old and new and abs(new / old - 1) > 0.01)
    told = format_change(new, old) if old and new else ""
    return Change("Peak memory", format_bytes(old), format_bytes(new), told, matters)


def _stack(one: StackRecord | None, other: StackRecord | None) -> Iterator[Change]:
    before, after = _measured(one), _measured(other)
    if before is None or after is None:
        yield from _different({"Stack": _speed(before)}, {"Stack": _speed(after)})
        return
    assert before.comparison is not None
    assert after.comparison is not None
    apart = _apart(before.comparison, after.comparison)
    told = format_change(after.comparison.speedup, before.comparison.speedup) if apart else "within the intervals"
    yield Change("Speed-up", _speed(before), _speed(after), told, apart)
    if before.step_ms and after.step_ms:
        noise = math.hypot(_half_width(before.comparison), _half_width(after.comparison))
        yield _figure("Step", (before.step_ms, after.step_ms), format_ms, noise)
    yield _memory(before.result.peak_reserved_bytes, after.result.peak_reserved_bytes)


def _measured(stack: StackRecord | None) -> StackRecord | None:
    return stack if stack and stack.settings and stack.comparison else None


def _speed(stack: StackRecord | None) -> str:
    return interval_or_words(stack.comparison) if stack else "none"


def _half_width(comparison: Comparison) -> float:
    return comparison.ci_high / comparison.speedup - 1


def _apart(one: Comparison, other: Comparison) -> bool:
    return one.ci_high < other.ci_low or other.ci_high < one.ci_low


def _settings(one: Mapping[str, Value], other: Mapping[str, Value]) -> Iterator[Change]:
    before, after = ({key: text_of(value) for key, value in side.items()} for side in (one, other))
    return _different(before, after, "not in the stack")


def _verdicts(one: SessionState, other: SessionState) -> Iterator[Change]:
    """The candidates whose verdict is another one, or whose intervals lie apart; then those of one session only."""
    before, after = _tried(one), _tried(other)
    for name in [name for name in before if name in after]:
        if change := _verdict(name, before[name], after[name]):
            yield change
    yield from (Change(name, "not tried", _effect(record)) for name, record in after.items() if name not in before)
    yield from (Change(name, _effect(record), "not tried") for name, record in before.items() if name not in after)


def _tried(state: SessionState) -> dict[str, TrialRecord]:
    ran = (record for record in state.trials.values() if record.candidate.recipe != CONTROL)
    return {record.candidate.name: record for record in ran if record.verdict is not Verdict.SKIPPED}


def _verdict(name: str, one: TrialRecord, other: TrialRecord) -> Change | None:
    """The verdict on a candidate itself: the figure of a stack that it was measured in is not its own."""
    before, after = own_comparison(one), own_comparison(other)
    apart = bool(before and after and _apart(before, after))
    verdicts = verdict_shown(one), verdict_shown(other)
    if verdicts[0] is verdicts[1] and not apart:
        return None
    if None in verdicts:  # the figures say it
        told = ""
    else:
        told = " → ".join(filter(None, verdicts)) if verdicts[0] is not verdicts[1] else "intervals lie apart"
    return Change(name, _effect(one), _effect(other), told)


def _effect(record: TrialRecord) -> str:
    return effect_words(record, interval_or_words) if record.result.measured else format_outcome(record.result)


# --- what they were measured on -------------------------------------------------------------------------------


def _workload(side: Measured) -> dict[str, str]:
    facts = side.state.facts
    rows = dict(workload_rows(facts))
    yours = {key: text_of(value) for key, value in sorted(facts.workload.current.items())} if facts else {}
    return {"Target": side.request.target.command, **rows, **yours}


def _options(request: Request) -> dict[str, str]:
    values = {name: getattr(request, name) for name in _OPTIONS}
    texts = {name: ", ".join(map(str, value)) if isinstance(value, tuple) else value for name, value in values.items()}
    texts["budget_s"] = format_seconds(request.budget_s)
    named = {name.removesuffix("_s").removesuffix("_bytes").replace("_", "-"): text for name, text in texts.items()}
    return {f"--{name}": MISSING if text in (None, "") else str(text) for name, text in named.items()}


def _machine(hardware: Hardware | None) -> dict[str, str]:
    return {str(name): str(text) for name, text in hardware_table(hardware, None).rows} if hardware else {}


def _versions(state: SessionState) -> dict[str, str]:
    return dict(state.facts.versions) if state.facts else {}


def _different(one: Mapping[str, str], other: Mapping[str, str], missing: str = MISSING) -> Iterator[Change]:
    for key in dict.fromkeys((*one, *other)):
        before, after = one.get(key, missing), other.get(key, missing)
        if before != after:
            yield Change(key, before, after)
