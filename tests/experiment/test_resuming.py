"""A session takes over the events of an interrupted one, and hints of the last one of the workload."""

from dataclasses import replace

import pytest
from facts import gpu_facts, profile_facts
from made_up import BF16, FUSED, decided, known_of, reporter_to, result_at

from advisor.experiment import events
from advisor.experiment.consent import Consent
from advisor.experiment.control import Decision
from advisor.experiment.known import Evidence, Kind, Move
from advisor.experiment.measuring.move_trials import runs_of
from advisor.experiment.moves import moves
from advisor.experiment.past.resuming import HINTS_FILE, hints_for, save_hints, take_over, workload_name
from advisor.experiment.plan import Plan
from advisor.experiment.ranking import CONTROL as CONTROL_RECIPE
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.judging.judge import BASELINE, CONTROL_SETTINGS
from advisor.judging.objective import Goal
from advisor.judging.runs import Turns
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Bottleneck, Candidate, Numerics, OperatorRow, Outcome, Score, TargetSpec, TrialResult

PROFILED = gpu_facts(
    profile=profile_facts(
        operators=(OperatorRow("aten::addmm", 6.0, 1.0, 2.0),), bottleneck=Bottleneck.LAUNCH, device_busy_share=0.4
    )
)
GRADS = Candidate("zero_grad", "step.zero_grad", "manual")
ALONE = Settings(BF16.settings)
STACK = ALONE.merged(FUSED.settings)


def result(step_ms):
    return result_at(10.0 / step_ms)


def beginning(step_ms=10.0, **decisions):
    """What a session knows once its own baseline has been measured."""
    return decided(known_of(baseline=result(step_ms)), **decisions)


def told_by(*steps):
    """The events and the knowledge of a session that was interrupted after these moves."""
    told = []
    reporter, known = reporter_to(told.append), beginning()
    told.append(events.FactsFound(known.plan.facts))
    reporter.report(known)
    for move, evidence in steps:
        told += runs_of(move, evidence)
        known = known.after(move, evidence)
        if evidence.facts is not None:
            told.append(events.FactsFound(evidence.facts))
        reporter.report(known)
    return told, known


def measured(kind, settings, step_ms, *, candidate=None):
    """A move, and the one run that came of it."""
    settings = Settings(settings)
    return Move(kind, settings, 1.1, str(settings), candidate), Evidence(runs=((settings, result(step_ms)),))


def test_runs_with_a_recipe_that_is_gone_are_left_out():
    told, _ = told_by(ALONE_RUN, WHOLE_STACK)
    gone = ALONE.merged({"compile.optimizer": True})
    told += [events.RunMeasured(dict(gone), result(4.0)), events.RunMeasured({"compile.optimizer": True}, result(9.0))]
    told += [events.RunMeasured({}, result(10.0), dict(gone))]
    taken = take_over(beginning(10.3), SessionState.of(told), told)
    assert taken.stack == STACK
    assert gone not in taken.judge.runs
    assert not taken.judge.in_turn
    assert moves(taken)


ALONE_RUN = measured(Kind.ALONE, ALONE, 6.0, candidate=BF16)
WHOLE_STACK = measured(Kind.STACK, STACK, 5.0)
CONTROL = Move(Kind.CONTROL, BASELINE, 1.0, "control=true"), Evidence(runs=((CONTROL_SETTINGS, result(10.01)),))
PROFILE = (
    Move(Kind.PROFILE, BASELINE, 1.0, "baseline, instrumented"),
    Evidence(runs=((BASELINE, result(10.02)),), facts=PROFILED),
)
NEW, OLD = result(5.02), result(10.03)
IN_TURN = (
    Move(Kind.TURNS, STACK, 1.0, "combination, in turns"),
    Evidence(runs=((STACK, NEW), (BASELINE, OLD)), turns=Turns((NEW,), (OLD,))),
)
SIDE_BY_SIDE = (
    Move(Kind.TURNS, STACK, 1.0, "combination, in turns"),
    Evidence(turns=Turns((result(5.0),), (TrialResult(Outcome.MEASURED, blocks=result(10.0).blocks),), by_block=True)),
)


def resumed(told, **decisions):
    return take_over(beginning(10.3, **decisions), SessionState.of(told), told)


def apart_from_the_baseline(judge):
    return {settings: runs for settings, runs in judge.runs.items() if settings}


def test_every_run_is_taken_over_and_the_present_baseline_is_one_more():
    scored = ALONE_RUN[0], Evidence(runs=((ALONE, replace(result(6.0), score=Score(0.5))),))
    told, before = told_by(scored, WHOLE_STACK, CONTROL, PROFILE, IN_TURN)
    after = resumed(told).judge
    assert after.result(ALONE).score == Score(0.5)
    assert apart_from_the_baseline(after) == apart_from_the_baseline(before.judge)
    assert after.runs[BASELINE] == (*before.judge.runs[BASELINE], beginning(10.3).judge.baseline)
    assert after.baseline.blocks == before.judge.baseline.blocks
    assert after.controls == before.judge.controls


def test_runs_that_failed_are_not_tried_again():
    failed = TrialResult(Outcome.OUT_OF_MEMORY, "it needs more than there is")
    told, _ = told_by((WHOLE_STACK[0], Evidence(runs=((STACK, failed),))))
    after = resumed(told)
    assert after.judge.has_tried(STACK)
    assert after.judge.result(STACK) == failed
    assert after.stack == BASELINE
    assert all(move.settings != STACK for move in moves(after))


CRASHED = TrialResult(Outcome.CRASHED, "the trial process was ended by SIGKILL")
CRASHED_CONTROL = CONTROL[0], Evidence(runs=((CONTROL_SETTINGS, CRASHED),))


def test_a_good_control_is_not_replaced_by_a_repeat_that_crashed():
    told, _ = told_by(CONTROL, CRASHED_CONTROL)
    (kept,) = [one for one in SessionState.of(told).trials.values() if one.candidate.recipe == CONTROL_RECIPE]
    assert kept.result.measured
    after = resumed(told)
    assert [run.measured for run in after.judge.controls] == [True, False]
    assert Kind.CONTROL in after.done


def test_a_simpler_combination_that_does_nearly_as_well_is_what_is_recorded_and_taken_up():
    nearly = measured(Kind.ALONE, ALONE, 5.05, candidate=BF16)
    whole = STACK.merged(GRADS.settings)
    without = measured(Kind.DROP, STACK, 5.0)
    told, before = told_by(measured(Kind.STACK, whole, 6.0), without, nearly, SIDE_BY_SIDE)
    after = resumed(told)
    assert before.stack == after.stack == STACK
    assert before.found == after.found == SessionState.of(told).stack.settings == ALONE
    assert after.left_out == before.left_out == SessionState.of(told).stack.dropped != {}
    assert resumed(told, autocast=Decision.REJECTED).stack == Settings(FUSED.settings)
    other_goal = beginning()
    other_goal = replace(other_goal, judge=replace(other_goal.judge, goal=Goal(memory_limit_bytes=2**40)))
    assert take_over(other_goal, SessionState.of(told), told).stack == ALONE


def test_a_stack_that_was_given_up_is_not_taken_up_again():
    even = Evidence(turns=Turns((result(10.0),), (result(10.0),), by_block=True))
    told, before = told_by(WHOLE_STACK, (SIDE_BY_SIDE[0], even))
    after = resumed(told)
    assert before.stack == after.stack == BASELINE
    assert after.dropped.keys() == before.dropped.keys() == STACK.keys()


@pytest.mark.parametrize("turns", [IN_TURN, SIDE_BY_SIDE], ids=["whole runs", "side by side"])
def test_what_was_confirmed_stays_confirmed(turns):
    told, before = told_by(WHOLE_STACK, turns)
    after = resumed(told)
    assert before.judge.took_turns(STACK)
    assert after.judge.took_turns(STACK)
    assert after.judge.in_turn == before.judge.in_turn
    assert Kind.TURNS not in {move.kind for move in moves(after)}
    assert Kind.TURNS in {move.kind for move in moves(resumed(told_by(WHOLE_STACK)[0]))}


@pytest.mark.parametrize(
    ("steps", "done"),
    [
        ((), set()),
        ((CONTROL,), {Kind.CONTROL}),
        ((PROFILE,), {Kind.PROFILE}),
        ((CONTROL, PROFILE), {Kind.CONTROL, Kind.PROFILE}),
    ],
)
def test_instruments_that_were_used_need_not_be_used_again(steps, done):
    told, before = told_by(*steps)
    after = resumed(told)
    assert after.done == before.done == done
    assert done.isdisjoint(move.kind for move in moves(after))


def test_a_second_resumption_knows_all():
    told, _ = told_by(ALONE_RUN, WHOLE_STACK, CONTROL, SIDE_BY_SIDE)
    known, more = resumed(told), []
    reporter_to(more.append).report(known)
    more.append(events.RunMeasured({}, beginning(10.3).judge.baseline))
    twice = take_over(beginning(10.4), SessionState.of([*told, *more]), [*told, *more])
    assert twice.judge.runs[BASELINE] == (beginning(10.3).judge.baseline, beginning(10.4).judge.baseline)
    assert apart_from_the_baseline(twice.judge) == apart_from_the_baseline(known.judge)
    assert twice.judge.in_turn == known.judge.in_turn
    assert twice.stack == known.stack


CATALOG = load_catalog()
TARGET = TargetSpec("mymodel:build", "/somewhere")


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path))
    return tmp_path


def test_hints_are_of_one_workload(state):
    save_hints("mine", {"precision.autocast": "bfloat16", "step.cuda_graph": True})
    assert hints_for("mine") == {"precision.autocast": "bfloat16", "step.cuda_graph": True}
    assert hints_for("another") == {}


@pytest.mark.parametrize("text", ["", "{", '{"schema": 99, "workloads": {"mine": {"settings": {}}}}', "[1]"])
def test_a_file_that_cannot_be_read_gives_no_hints(state, text):
    (state / HINTS_FILE).write_text(text)
    assert hints_for("mine") == {}
    save_hints("mine", {"step.cuda_graph": True})
    assert hints_for("mine") == {"step.cuda_graph": True}


def test_another_batch_device_or_version_is_another_workload():
    facts = gpu_facts()
    name = workload_name(TARGET, facts)
    others = [
        workload_name(replace(TARGET, target="mymodel:other"), facts),
        workload_name(TARGET, gpu_facts(batch_text="float32[64, 3, 96, 96]")),
        workload_name(TARGET, gpu_facts(device_name="Another")),
        workload_name(TARGET, gpu_facts(versions={"torch": "2.12.0"})),
    ]
    assert len({name, *others}) == 5
    assert workload_name(TARGET, gpu_facts()) == name


def test_what_was_found_before_is_part_of_the_first_stack():
    facts, found = gpu_facts(), {"precision.autocast": "float16", "compile.mode": "max-autotune-no-cudagraphs"}
    planned = Plan(CATALOG, Request(TARGET), facts, Consent(CATALOG, facts.workload.mode, Numerics.CLOSE))
    plans = [replace(planned, hints=hints).with_facts(facts) for hints in ({}, found)]
    plain, hinted = (plan.usual_stack() for plan in plans)
    assert plain["precision.autocast"] == "bfloat16"
    assert hinted["precision.autocast"] == "float16"
    assert [plan.compiled(BASELINE).get("compile.mode") for plan in plans] == [None, "max-autotune-no-cudagraphs"]
    assert plans[0].candidates == plans[1].candidates
