"""Continues earlier sessions: checks that they measured the same, takes over their runs, and keeps hints."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from advisor.errors import UsageError
from advisor.experiment.events import Event, RunMeasured, TurnsMeasured
from advisor.experiment.known import UNCLEAR, Kind, Known
from advisor.experiment.past.journal import PastSession, fingerprint_of
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.figures.formatting import printable
from advisor.files.folders import read_record, write_record
from advisor.files.paths import exists
from advisor.judging.judge import BASELINE, Judge
from advisor.judging.runs import Turns, prior_spread
from advisor.recipe.catalog import Catalog
from advisor.recipe.settings import Settings
from advisor.records import Facts, Outcome, TargetSpec, TrialResult, Value
from advisor.source.prints import changed_sources

# The command-line options that define the workload, by the field of the target that holds each.
_OPTIONS = {"mode": "--mode", "device": "--device", "batch_size": "--batch-size", "input_shape": "--input"}
_NOT_THE_SAME = "Undo that, or leave --resume out to measure anew."


def taken_up_request(request: Request, past: PastSession, *, config_given: bool = False) -> Request:
    """The request for resuming. Its config is read again unless given. Raises UsageError if anything has changed."""
    if not config_given and past.config_fingerprint and (path := request.config_path) is not None:
        from advisor.files.config_file import read_config  # late: YAML takes long to load

        request = replace(request, target=replace(request.target, config=read_config(path)))
    state = SessionState.of(past.events)
    if state.facts is None or state.baseline is None:
        return request  # nothing was measured yet, so a change does no harm
    if changed := "; ".join(_changes(request, past, state.facts)):
        raise UsageError(f"the session {past.session_id} measured something else: {changed}.", _NOT_THE_SAME)
    return request


def check_same_machine(before: Facts, now: Facts) -> None:
    """Raise UsageError if the new baseline is not comparable with the baseline of the past session."""
    pairs = {
        "device": (before.workload.device_name, now.workload.device_name),
        "PyTorch": (before.versions.get("torch"), now.versions.get("torch")),
        "mode": (before.workload.mode.value, now.workload.mode.value),
        "batch size": (before.workload.batch_size, now.workload.batch_size),
        "number of parameters": (before.workload.parameters, now.workload.parameters),
    }
    changes = [f"the {name} is {new}, and was {old}" for name, (old, new) in pairs.items() if old != new]
    if changes:
        raise UsageError(f"the session measured something else: {'; '.join(changes)}.", _NOT_THE_SAME)


def _changes(request: Request, past: PastSession, facts: Facts) -> Iterator[str]:
    before, now = past.request.target, request.target
    for name, option in _OPTIONS.items():
        old, new = (
            "x".join(map(str, value)) if isinstance(value, tuple) else value or "not given"
            for value in (getattr(before, name), getattr(now, name))
        )
        if old != new:
            yield f"{option} is {new}, and was {old}"
    if (past.request.evaluate, past.request.eval_steps) != (request.evaluate, request.eval_steps):
        yield "--eval or --steps is another"
    if facts.sources and before.directory != now.directory:
        yield f"the folder is {now.directory}, and was {before.directory}"
    if past.config_fingerprint not in (fingerprint_of(now.config), "unknown"):  # of an older session
        yield "the config has changed"
    for path in changed_sources(facts.sources):
        shown = path.removeprefix(f"{Path(now.directory).resolve()}/")
        yield f"{shown} {'has changed' if exists(path) else 'is gone'}"


# --- measurements -------------------------------------------------------------------------------------------------


def take_over(known: Known, past: SessionState, history: Iterable[Event]) -> Known:
    """Add all runs of the past session to the knowledge. All are compared with its first baseline.

    The new run of the baseline counts as a repeat of it. The recorded stack is taken over without settings that no
    longer have consent; but not if the goal has changed, or if a decision changed the stack after its measurement. Runs
    with a recipe that no longer exists are left out.
    """
    if past.baseline is None or past.facts is None:
        return known
    facts = replace(past.facts, findings=known.plan.facts.findings, sources=known.plan.facts.sources)
    judge = replace(
        known.judge,
        baseline=replace(past.baseline.result, score=known.judge.baseline.score),
        prior=prior_spread(facts),
        crowded=facts.hardware.host.is_crowded,
    )
    judge = _with_runs(judge, history).with_run(BASELINE, known.judge.baseline)
    ran = (one for one in past.trials.values() if not one.alone and one.result.outcome is not Outcome.SKIPPED)
    catalog = judge.catalog
    tried = {one.candidate.name: Settings(one.settings) for one in ran if has_recipes(catalog, one.settings)}
    used = {
        Kind.CONTROL: any(run.measured for run in judge.controls),
        Kind.PROFILE: past.facts.profile is not None and bool(past.facts.profile.operators),
    }
    done = frozenset(kind for kind, is_done in used.items() if is_done)
    taken = replace(Known.begin(known.plan.with_facts(facts), judge), tried=tried, done=done)
    stack = past.stack if past.stack and has_recipes(catalog, past.stack.settings) else None
    if stack is not None and not stack.pending and past.goal == judge.goal:
        # The combination that the search worked on: the recorded settings and those whose gain is unclear.
        found, dropped = stack.settings, stack.dropped
        keys = found.keys() | {key for key, why in dropped.items() if why in UNCLEAR}
        whole = next((settings for settings in judge.runs if settings.keys() == keys), Settings(found))
        return taken.with_permitted(whole, dropped)
    return replace(taken, stack=taken.best_usable())


def has_recipes(catalog: Catalog, settings: Mapping[str, Value]) -> bool:
    """Whether all of these recorded settings still have recipes."""
    with suppress(UsageError):
        catalog.check(settings)
        return True
    return False


def _with_runs(judge: Judge, history: Iterable[Event]) -> Judge:
    for event in history:
        if not isinstance(event, RunMeasured | TurnsMeasured):
            continue
        of_turns = event.turns_of if isinstance(event, RunMeasured) else event.settings
        if not has_recipes(judge.catalog, {**event.settings, **(of_turns or {})}):
            continue
        if isinstance(event, RunMeasured):
            judge = judge.with_run(Settings(event.settings), event.result)
            turns = Turns((event.result,), ()) if event.settings else Turns((), (event.result,))
        else:
            turns = Turns((event.result,), (TrialResult(Outcome.MEASURED, blocks=event.old),), by_block=True)
        if of_turns is not None:
            judge = judge.with_turns(Settings(of_turns), turns)
    # A journal may have been cut short between the first turn and the second.
    return replace(judge, in_turn={one: turns for one, turns in judge.in_turn.items() if turns.new and turns.old})


# --- hints ----------------------------------------------------------------------------------------------------

HINTS_FILE = "hints.json"


@dataclass(frozen=True, slots=True)
class _Hints:
    """The file: the settings of the last confirmed stack, by workload."""

    workloads: dict[str, dict[str, Value]] = field(default_factory=dict)


def workload_name(target: TargetSpec, facts: Facts) -> str:
    """The key of a workload: the target, the model, its batch, the device and PyTorch's version."""
    workload = facts.workload
    parts = (target.directory, target.command, workload.mode, workload.model, str(workload.parameters))
    return printable(" | ".join((*parts, workload.batch_text, workload.device_name, facts.versions.get("torch", ""))))


def hints_for(name: str) -> dict[str, Value]:
    """The hints for a workload; empty if there are none."""
    return read_record(HINTS_FILE, _Hints()).workloads.get(name, {})


def save_hints(name: str, settings: Mapping[str, Value]) -> None:
    """Replace the hints for a workload with this session's."""
    workloads = read_record(HINTS_FILE, _Hints()).workloads
    write_record(HINTS_FILE, _Hints({**workloads, name: dict(settings)}))
