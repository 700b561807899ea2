"""The JSON report, ``schema: 2``: all measurements of a session, in builtin types (seconds, milliseconds, bytes)."""

import json
from typing import Any

import msgspec

from advisor import records
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.figures.sweep import knee_of
from advisor.judging.objective import Yardstick
from advisor.records.secrets import arguments_without_secrets
from advisor.report.evidence import habit_rows
from advisor.report.figures import file_finding, roof_shares, settings_to_export, sweep_of, tokens_per_s
from advisor.report.verdict import verdict
from advisor.version import __version__

SCHEMA = 2
# The fields of records, by their dotted paths. A field's name is the last part of its path, or the text before ``=``.
_COMPARISON = "speedup ci_low ci_high"
_RESULT = """batch_size disturbed energy_j_per_sample gpu event_step_ms latency peak_allocated_bytes peak_reserved_bytes
    device_used_bytes startup_s build_s prepare_s warmup_s warmup_steps skipped_steps wall_s notes"""
_BASELINE = "step_ms samples_per_s half_width apart"
_EFFECT = """step_ms samples_per_s comparison.speedup comparison.ci_low comparison.ci_high comparison.paired
    break_even_steps"""
_TRIAL = """candidate.recipe candidate=candidate.settings settings result.outcome result.reason result.hint
    candidate.already_on confirmed verdict"""
_STACK = """settings result.outcome result.reason confirmed verdict dropped baseline_step_ms baseline_samples_per_s"""
_RECOMMENDATION = """rank recipe record.settings record.comparison.speedup record.comparison.ci_low
    record.comparison.ci_high record.comparison.paired record.verdict record.confirmed title why needs_consent
    in_stack"""
_NUMERICS = """class=measured declared worse_than_declared difference from_reference baseline_from_reference text"""

Json = dict[str, Any]


def json_text(state: SessionState, request: Request) -> str:
    """The report as the text of a JSON file."""
    return strict_json(report(state, request), indent=2) + "\n"


def strict_json(value: Any, indent: int | None = None) -> str:
    """The value as strict JSON in ASCII. All texts survive, and escape sequences do not reach a terminal."""
    return json.dumps(_finite(value), indent=indent)


def report(state: SessionState, request: Request, version: str = __version__) -> Json:
    """The report of a session. While the session runs, unknown fields are null or empty.

    ``speedup`` is always the ratio of samples per second to the baseline's. ``gain`` is the gain in the session's
    objective. ``contribution`` is the gain of one candidate over the other settings with which it was measured.
    ``trials`` are the candidates with the control, then the recipes without candidates. ``efficiency`` is the speed-up
    of several GPUs over one, divided by their number. Every value can be written as strict JSON.
    """
    facts, finished, failure, found = state.facts, state.finished, state.failure, state.verification
    profile, points, scaling = state.profile, sweep_of(state), state.scaling
    rows = [_whole(row, "efficiency exposed_share") for row in scaling.rows] if scaling else []
    full: Json = {
        "schema": SCHEMA,
        "version": version,
        "session": state.session_id or None,
        "target": request.target.target,
        "arguments": arguments_without_secrets(request.target.arguments)[0],
        **_fields(request, "objective memory_limit_bytes latency_limit_ms evaluate min_score max_drop budget_s seed"),
        "result": verdict(state),
        "hardware": facts.hardware if facts else state.hardware,  # facts also have the load by other programs
        "versions": facts.versions if facts else {},
        "workload": facts.workload if facts else None,
        "baseline": _with_tokens(_baseline(state.baseline, profile), facts),
        "bottleneck": profile.bottleneck if profile else None,
        "bottleneck_evidence": profile.evidence if profile else "",
        "profile": profile,
        "habits": habit_rows(state),
        **_fields(state, "findings decisions"),
        **_fields(profile, "ceilings"),
        "roof": dict(zip(("baseline", "stack"), roof_shares(state), strict=True)),
        "sweep": [{**msgspec.to_builtins(point), "knee": point.size == knee_of(points)} for point in points],
        "trials": [_trial(record) for record in state.trials.values()] + _skipped(state),
        "recommendations": [_recommendation(item, state.yardstick) for item in state.recommendations],
        "stack": _with_tokens(_stack(state), facts),
        "parallel": scaling and {**msgspec.to_builtins(scaling), "rows": rows},
        "verification": found and {**msgspec.to_builtins(found), "confirmed": file_finding(state, found)[0]},
        "messages": [_fields(said, "severity text") for said in state.messages],
        "session_s": finished.session_s if finished else None,
        "time": _whole(finished.spent if finished else None, "outside_s outside_share"),
        "cancelled": finished.cancelled if finished else False,
        "error": failure and _fields(failure, "message hint"),
    }
    return dict(_finite(full))


def _finite(value: Any) -> Any:
    """Records as JSON's types, with None for infinite numbers and NaN."""
    return json.loads(json.dumps(msgspec.to_builtins(value, str_keys=True)), parse_constant=lambda _: None)


# --- parts, of records and built-in values ----------------------------------------------------------------------


def _fields(record: Any, paths: str) -> Json:
    """The values at these paths of a record; None if a record on a path is missing."""
    found: Json = {}
    for text in paths.split():
        name, _, path = text.rpartition("=")
        value = record
        for part in path.split("."):
            value = None if value is None else getattr(value, part)
        found[name or path.rpartition(".")[2]] = value
    return found


def _whole(record: Any, more: str) -> Json | None:
    """All fields of a record, and its properties ``more``; None without a record."""
    return {**msgspec.to_builtins(record), **_fields(record, more)} if record else None


def _baseline(baseline: records.BaselineRecord | None, profile: records.Profile | None) -> Json | None:
    if baseline is None:
        return None
    phases = profile.phases if profile else {}
    result = _fields(baseline.result, f"{_RESULT} whole_rounds score=score.value")
    return {**_fields(baseline, _BASELINE), "phases": phases, **result}


def _with_tokens(record: Json | None, facts: records.Facts | None) -> Json | None:
    return record and {**record, "tokens_per_s": tokens_per_s(facts, record["samples_per_s"])}


def _trial(record: records.TrialRecord) -> Json:
    contribution = record.contribution and _fields(record.contribution, _COMPARISON)
    return {**_fields(record, _TRIAL), "contribution": contribution, **_effect(record)}


def _skipped(state: SessionState) -> list[Json]:
    nothing = records.TrialRecord(records.Candidate("", "", False), {}, records.TrialResult(records.Outcome.SKIPPED))
    skipped: Json = {**dict.fromkeys(_trial(nothing)), "candidate": {}, "settings": {}}
    skipped |= {"outcome": records.Outcome.SKIPPED, "verdict": records.Verdict.SKIPPED}
    return [{**skipped, "recipe": recipe, "reason": reason} for recipe, reason in state.skipped.items()]


def _stack(state: SessionState) -> Json | None:
    stack, by = state.stack, state.yardstick
    if stack is None:
        return None
    gain = _gain(by, stack.result, stack.comparison)
    return {**_fields(stack, _STACK), "exported": bool(settings_to_export(state)), "gain": gain, **_effect(stack)}


def _gain(by: Yardstick | None, result: records.TrialResult, comparison: records.Comparison | None) -> Json | None:
    gain = by and by.gain(result, comparison)
    return {**gain._asdict(), "floor": by.floor} if by and gain else None


def _recommendation(item: records.Recommendation, by: Yardstick | None) -> Json:
    record = item.record
    gain = _gain(by, record.result, record.comparison)
    contribution = record.contribution and _fields(record.contribution, _COMPARISON)
    return {**_fields(item, _RECOMMENDATION), "gain": gain, "contribution": contribution}


def _effect(record: records.TrialRecord | records.StackRecord) -> Json:
    numerics = record.numerics and _fields(record.numerics, _NUMERICS)
    score = record.numerics and record.numerics.score and _fields(record.numerics.score, "value baseline steps problem")
    return {**_fields(record, _EFFECT), "numerics": numerics, "score": score, **_fields(record.result, _RESULT)}
