"""Speed against memory: the points of a session, and which of them are worth a choice."""

from dataclasses import replace

import pytest
from sample_session import GIB, cancelled_history, cpu_history, sample_history

from advisor.experiment import events
from advisor.experiment.control import Decision
from advisor.experiment.objective import Goal
from advisor.experiment.state import SessionState
from advisor.records import Comparison, Numerics, NumericsResult, ParetoPoint
from advisor.report.pareto import BASELINE, STACK, front_of, measured_points


def names(found):
    return [found_point.name for found_point in found]


def state_of(*, goal=None, history=None):
    told = history or sample_history()
    return SessionState.of([events.GoalSet(goal), *told[1:]] if goal else told)


def test_the_points_are_the_baseline_what_is_allowed_and_every_combination():
    state = state_of()
    found = names(measured_points(state))
    assert found[0] == BASELINE
    assert {"channels_last=channels_last", "autocast=bfloat16", STACK} <= set(found)
    assert len([name for name in found if "," in name]) == 3  # two settings together
    assert "control=true" not in found
    assert not any(name.startswith(("compile", "step_graph")) for name in found)  # they failed


def test_what_needs_consent_is_no_point_until_it_is_allowed():
    changed = NumericsResult(Numerics.CHANGED, Numerics.CHANGED, 0.2, "")
    told = [
        events.TrialMeasured(replace(event.record, numerics=changed))
        if isinstance(event, events.TrialMeasured) and event.record.candidate.recipe == "autocast"
        else event
        for event in sample_history()
    ]
    assert "autocast=bfloat16" not in names(measured_points(state_of(history=told)))
    allowed = state_of(history=told, goal=Goal(allow=Numerics.CHANGED))
    assert "autocast=bfloat16" in names(measured_points(allowed))


def test_the_front_of_a_session_goes_from_the_smallest_to_the_fastest():
    front = front_of(state_of())
    assert [dict(kept.settings).get("memory.activation_checkpointing") for kept in front] == ["blocks", None]
    assert front[-1].name == STACK
    assert front[0].peak_reserved_bytes < front[1].peak_reserved_bytes


@pytest.mark.parametrize("gib", [5.0, 5.47, 6.0])
@pytest.mark.parametrize(("low", "fastest"), [(1.8, STACK), (2.1, "lucky")])
def test_the_fastest_of_a_session_is_its_confirmed_stack(gib, low, fastest):
    state = state_of()
    comparison = Comparison(2.3, low, 2.6)
    settings = {"precision.autocast": "bfloat16", "a.b": 1}
    state.apply(events.CombinationMeasured(ParetoPoint("lucky", settings, comparison, round(gib * GIB))))
    assert front_of(state)[-1].name == fastest


@pytest.mark.parametrize(("low", "chosen"), [(0.99, BASELINE), (1.05, "faster")])
def test_what_is_measurably_no_better_than_the_baseline_is_no_choice(low, chosen):
    state = state_of(history=cancelled_history())
    own_bytes = state.baseline.result.peak_reserved_bytes
    comparison = Comparison(1.08, low, 1.2)
    state.apply(events.CombinationMeasured(ParetoPoint("faster", {"a.b": 1, "c.d": 1}, comparison, own_bytes)))
    assert names(front_of(state)) == [chosen]


@pytest.mark.parametrize("gib", [6, 4])
def test_nothing_above_the_memory_limit_is_a_point_but_the_baseline(gib):
    state = state_of(goal=Goal(memory_limit_bytes=gib * GIB))
    others = measured_points(state)[1:]
    assert all(found.peak_reserved_bytes <= gib * GIB for found in others)
    assert (STACK in names(others)) is (gib == 6)


def test_decisions_take_points_out_and_let_them_in():
    state = state_of()
    state.apply(events.Decided("autocast", Decision.REJECTED))
    found = measured_points(state)
    assert not any("precision.autocast" in other.settings for other in found)
    assert "channels_last=channels_last" in names(found)
    state.apply(events.Decided("autocast", None))
    assert len(measured_points(state)) == len(measured_points(state_of()))
    assert "batch_size=128" not in names(measured_points(state))
    state.apply(events.Decided("batch_size", Decision.ACCEPTED))
    assert "batch_size=128" in names(measured_points(state))


def test_a_session_that_measured_little():
    assert measured_points(SessionState()) == front_of(SessionState()) == ()
    assert names(front_of(SessionState.of(cancelled_history()))) == [BASELINE]
    assert names(front_of(SessionState.of(cpu_history()))) == [STACK]
