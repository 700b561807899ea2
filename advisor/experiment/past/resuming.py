"""Takes over from earlier sessions: the measurements of an interrupted one, and hints of the last one on a workload."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from advisor.experiment.events import Event, RunMeasured, TurnsMeasured
from advisor.experiment.known import UNCLEAR, Kind, Known
from advisor.experiment.state import SessionState
from advisor.figures.formatting import printable
from advisor.files.folders import read_record, write_record
from advisor.judging.judge import BASELINE, Judge
from advisor.judging.runs import Turns, prior_spread
from advisor.recipe.settings import Settings
from advisor.records import Facts, Outcome, TargetSpec, TrialResult, Value


def take_over(known: Known, past: SessionState, history: Iterable[Event]) -> Known:
    """Add all runs of the past session to the knowledge. All are compared with its first baseline.

    The present run of the baseline is one of its repeats. The stack is the recorded one, less what has no consent any
    more, unless the goal is another now or a decision has changed it since it was measured.
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
    ran = (record for record in past.trials.values() if record.result.outcome is not Outcome.SKIPPED)
    tried = {record.candidate.name: Settings(record.settings) for record in ran if not record.alone}
    used = {
        Kind.CONTROL: any(run.measured for run in judge.controls),
        Kind.PROFILE: past.facts.profile is not None and bool(past.facts.profile.operators),
    }
    done = frozenset(kind for kind, is_done in used.items() if is_done)
    taken = replace(Known.begin(known.plan.with_facts(facts), judge), tried=tried, done=done)
    if past.stack is not None and not past.stack.pending and past.goal == judge.goal:
        # The combination that the search worked on: the recorded settings, with those whose part is unclear.
        found, dropped = past.stack.settings, past.stack.dropped
        keys = found.keys() | {key for key, why in dropped.items() if why in UNCLEAR}
        stack = next((settings for settings in judge.runs if settings.keys() == keys), Settings(found))
        return taken.with_permitted(stack, dropped)
    return replace(taken, stack=taken.best_usable())


def _with_runs(judge: Judge, history: Iterable[Event]) -> Judge:
    in_turn: dict[Settings, Turns] = {}
    for event in history:
        if isinstance(event, RunMeasured):
            judge = judge.with_run(event.settings, event.result)
            if event.turns_of is not None:
                new, old = ((event.result,), ()) if event.settings else ((), (event.result,))
                before = in_turn.get(Settings(event.turns_of), Turns())
                in_turn[Settings(event.turns_of)] = before.with_more(Turns(new, old))
        elif isinstance(event, TurnsMeasured):
            baseline = TrialResult(Outcome.MEASURED, blocks=event.old)
            judge = judge.with_turns(event.settings, Turns((event.result,), (baseline,), by_block=True))
    for settings, turns in in_turn.items():
        if turns.new and turns.old:  # unless the journal was cut short between them
            judge = judge.with_turns(settings, turns)
    return judge


# --- hints ----------------------------------------------------------------------------------------------------

HINTS_FILE = "hints.json"


@dataclass(frozen=True, slots=True)
class Hints:
    """``settings`` of the last confirmed stack, and the wall seconds of a trial that compiled; None when none did."""

    settings: dict[str, Value] = field(default_factory=dict)
    compile_s: float | None = None


@dataclass(frozen=True, slots=True)
class _HintsFile:
    """The file: hints by workload."""

    workloads: dict[str, Hints] = field(default_factory=dict)


def workload_name(target: TargetSpec, facts: Facts) -> str:
    """The key of a workload: the target, the model, its batch, the device and PyTorch's version."""
    workload = facts.workload
    parts = (target.directory, target.command, workload.mode, workload.model, str(workload.parameters))
    return printable(" | ".join((*parts, workload.batch_text, workload.device_name, facts.versions.get("torch", ""))))


def hints_for(name: str) -> Hints:
    """The hints for a workload; empty when there are none."""
    return read_record(HINTS_FILE, _HintsFile()).workloads.get(name, Hints())


def save_hints(name: str, settings: Mapping[str, Value], compile_s: float | None) -> None:
    """Replace the hints with this session's. The compile time stays until another is measured."""
    workloads = read_record(HINTS_FILE, _HintsFile()).workloads
    compile_s = compile_s if compile_s is not None else hints_for(name).compile_s
    write_record(HINTS_FILE, _HintsFile({**workloads, name: Hints(dict(settings), compile_s)}))
