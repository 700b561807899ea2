"""A session's result is one value: its stack, its exported settings, its report and its headline agree."""

import itertools
import json
from dataclasses import replace

import pytest
from facts import cpu_facts, gpu_facts, loader_facts
from fake_trials import FakeRun, FakeTrials
from made_up import (
    BF16,
    CUDNN,
    EVERYTHING_HELPS,
    FUSED,
    GRAPH,
    LAST,
    PLAIN,
    WHOLE,
    WITH_LOSS,
    MadeUpTrials,
    decided,
    found_by,
    known_with,
    product,
    reporter_to,
    result_at,
    together,
)
from sample_session import sample_request

from advisor.experiment import events
from advisor.experiment.control import OTHER_VALUE
from advisor.experiment.known import Evidence, Kind
from advisor.experiment.moves import moves
from advisor.experiment.request import Outputs
from advisor.experiment.search import search
from advisor.experiment.state import SessionState
from advisor.export.outputs import write_outputs
from advisor.judging.judge import BASELINE, CONTROL_SETTINGS
from advisor.judging.runs import Turns
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Mode, Numerics, WorkloadFacts
from advisor.report.rows import ranking
from advisor.report.verdict import no_result, result_line, verdict
from advisor.tui.views.headline import headline

pytestmark = pytest.mark.usefixtures("own_state")


def headline_of(state):
    """The headline of the app as text."""
    return "\n".join(line.plain for line in headline(state, ranking(state)).lines)


def in_turn(known, settings, speedup):
    """The same knowledge after turns of settings with the baseline."""
    return replace(known, judge=turns_of(speedup).added_to(known.judge, settings))


def turns_of(speedup):
    """The result of turns whose blocks are this many times as fast as the baseline's."""
    return Evidence(turns=Turns((result_at(speedup),), (result_at(1.0),), by_block=True))


def state_of(known):
    """The state of a session that ends with this knowledge."""
    told = [events.FactsFound(known.plan.facts)]
    reporter = reporter_to(told.append)
    reporter.report(known)
    reporter.report_stack(known, at_end=True)
    return SessionState.of([*told, events.SessionFinished(False, 10.0)])


def exported(state, folder):
    """The settings of the exported YAML and its text, and the JSON report, once all of them agree."""
    outputs = Outputs(json_path=str(folder / "out.json"), export_path=str(folder / "tuned.yaml"))
    assert write_outputs(state, sample_request(), outputs, load_catalog()).errors == ()
    text, report = (folder / "tuned.yaml").read_text(), json.loads((folder / "out.json").read_text())
    settings = Settings.from_yaml(text)
    assert settings == report["stack"]["settings"] == state.stack.settings
    assert report["stack"]["exported"] is bool(settings)
    assert {item.record.candidate.key for item in state.recommendations if item.in_stack} <= settings.keys()
    return settings, text, report


# --- without time to confirm ----------------------------------------------------------------------------------


def test_a_stack_that_was_measured_once_is_exported_with_its_interval_though_one_control_was_far_off(tmp_path):
    state = state_of(known_with((PLAIN, result_at(2.39)), (CONTROL_SETTINGS, result_at(0.73)), stack=PLAIN))
    settings, text, report = exported(state, tmp_path)
    assert settings == PLAIN
    assert report["stack"]["confirmed"] is False
    shown = (text, verdict(state), headline_of(state))
    assert [one for one in shown if "measured once" not in one] == []
    assert "2.39" in text


@pytest.mark.parametrize(("crowded", "found"), [(False, PLAIN), (True, Settings())])
def test_beside_other_programs_a_gain_whose_interval_reaches_below_1_1_is_not_exported(crowded, found):
    known = known_with((PLAIN, result_at(1.15)), stack=PLAIN)
    known = replace(known, judge=replace(known.judge, crowded=crowded))
    assert 1.01 < known.judge.compare(PLAIN).ci_low < 1.1
    assert known.found == found


@pytest.mark.parametrize("speedup", [1.02, 0.99])
def test_what_may_gain_nothing_is_called_unclear_and_not_exported_unless_a_person_wants_it(tmp_path, speedup):
    known = known_with((PLAIN, result_at(speedup)), (CONTROL_SETTINGS, result_at(0.9)), stack=PLAIN)
    assert known.judge.gain(PLAIN, Settings()).high > 1.05
    state = state_of(known)
    settings, text, _ = exported(state, tmp_path)
    assert settings == {}
    assert not no_result(state)[1]
    for told in (text, verdict(state), result_line(state), headline_of(state)):
        assert "measurably" not in told
        assert "more budget" in told
    settings, _, _ = exported(state_of(decided(known, autocast="accepted")), tmp_path)
    assert settings[BF16.key] == BF16.value


def test_an_unclear_stack_is_timed_in_turn_next():
    known = known_with((PLAIN, result_at(1.02)), stack=PLAIN)
    assert known.found == Settings()
    assert PLAIN in [move.settings for move in moves(known) if move.kind is Kind.TURNS]


@pytest.mark.parametrize(("seems", "turns"), [(1.0, 1), (0.92, 0)])
def test_where_nothing_is_clear_what_seems_best_takes_turns(seems, turns):
    alone = Settings(LAST.settings)
    runs = ((alone, result_at(seems)), (alone, result_at(seems * 1.1)), (Settings(BF16.settings), result_at(0.9)))
    known = known_with(*runs, ({}, result_at(0.9)), (CONTROL_SETTINGS, result_at(1.12)))
    assert known.found == known.stack == BASELINE
    asked = [move for move in moves(known) if move.kind is Kind.TURNS]
    assert [move.settings for move in asked] == [alone] * turns
    assert not any(move.has_priority for move in asked)
    for move, (speedup, found) in itertools.product(asked, ((1.2, alone), (1.0, BASELINE))):
        after = known.after(move, turns_of(speedup))
        assert after.found == after.stack == found
        assert Kind.TURNS not in {following.kind for following in moves(after)}


# --- each setting earns its place -----------------------------------------------------------------------------


def test_of_parts_that_are_too_noisy_to_tell_the_compilation_leaves_first(tmp_path):
    """Three settings took 19.9 ms and these four 21.2, on a machine whose runs are 10 % apart."""
    plain, no_fused = WHOLE.without(WITH_LOSS.key), WHOLE.without(FUSED.key)
    runs = [(WHOLE, result_at(1.81)), (plain, result_at(1.93)), (no_fused, result_at(1.83))]
    state = state_of(in_turn(known_with(*runs, ({}, result_at(0.9)), stack=WHOLE), WHOLE, 1.81))
    settings, _, report = exported(state, tmp_path)
    assert settings == plain
    assert WITH_LOSS.key in report["stack"]["dropped"]


def test_a_part_that_is_unclear_stays_where_the_person_accepted_it():
    rest = WHOLE.without(FUSED.key)
    known = known_with((WHOLE, result_at(2.0)), (rest, result_at(2.0)), stack=WHOLE)
    assert known.found == rest
    assert decided(known, fused_optimizer="accepted").found == WHOLE


def test_a_simpler_combination_below_the_interval_of_the_best_does_not_replace_it():
    """Runs of single processes cannot tell the two apart; turns have shown how fast the stack is."""
    rest = WHOLE.without(LAST.key)
    known = known_with((WHOLE, result_at(2.0)), (rest, result_at(1.6)), ({}, result_at(0.7)), stack=WHOLE)
    assert in_turn(known, WHOLE, 2.0).found == WHOLE


def test_of_two_that_are_confirmed_the_better_is_found_though_its_turns_met_a_faster_baseline():
    rest = WHOLE.without(FUSED.key)
    known = known_with((WHOLE, result_at(7.6)), (rest, result_at(7.0)), stack=WHOLE)
    for settings, baseline in ((rest, 1.0), (WHOLE, 1.1)):
        turns = Turns(known.judge.runs[settings], (result_at(baseline),))
        known = replace(known, judge=known.judge.with_turns(settings, turns))
    assert known.judge.compare(rest).speedup > known.judge.compare(WHOLE).speedup
    assert known.found == WHOLE


# --- the batch size is the caller's ---------------------------------------------------------------------------


def bigger_is_faster(settings):
    """Rates that rise with the batch, to its knee at 128."""
    return EVERYTHING_HELPS(settings) * min(4.0, int(settings.get("data.batch_size", 32)) / 32)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_batch_size_is_in_the_stack_only_where_that_is_wanted(mode):
    known, trials = found_by(bigger_is_faster, gpu_facts(mode=mode))
    assert "data.batch_size" not in known.found
    assert {move.settings.get("data.batch_size") for move in trials.asked} >= {64, 128}, "it is shown with its knee"
    assert known.plan.consent.needs_consent(next(c for c in known.plan.candidates if c.recipe == "batch_size"))
    allowed, _ = found_by(bigger_is_faster, gpu_facts(mode=mode), allow=Numerics.CHANGED)
    assert allowed.found["data.batch_size"] >= 128
    accepted = search(
        decided(known, values={"batch_size": 64}, batch_size="accepted"), MadeUpTrials(bigger_is_faster), moves
    )
    assert accepted.found["data.batch_size"] == 64


# --- what is accepted -----------------------------------------------------------------------------------------


def fed(**changes):
    facts = cpu_facts()
    workload: WorkloadFacts = replace(facts.workload, loader=loader_facts(**changes))
    return replace(facts, workload=workload)


@pytest.mark.parametrize("faster", [1.5, 1.0])
def test_the_value_that_is_accepted_is_tried_and_exported(tmp_path, faster):
    speed = lambda settings: faster if settings.get("data.num_workers") else 1.0  # noqa: E731
    trials = FakeTrials(speed, facts=fed(iterable_dataset=True))
    accept = (("num_workers", 2),)
    run = FakeRun(tmp_path, speed, trials=trials, only=("num_workers",), accept=accept, budget_s=40.0).run()
    assert {event.settings.get("data.num_workers") for event in run.posted(events.RunMeasured)} == {None, 2}
    assert exported(run.state, tmp_path)[0] == {"data.num_workers": 2}
    assert not [said.text for said in run.state.messages if "num_workers" in said.text]


@pytest.mark.parametrize(
    ("recipe", "loader", "speedup"),
    [(("num_workers", 2), {}, 0.5), (("num_workers", 2), {}, "out of shared memory"), (("allocator", None), {}, 1.0)],
    ids=["slower", "failed", "nothing to change"],
)
def test_where_what_is_accepted_cannot_be_exported_a_line_says_why(tmp_path, recipe, loader, speedup):
    speed = lambda settings: speedup if settings.get("data.num_workers") else 1.0  # noqa: E731
    trials = FakeTrials(speed, facts=fed(**loader))
    run = FakeRun(tmp_path, speed, trials=trials, only=(recipe[0],), accept=(recipe,), budget_s=40.0).run()
    _, _, report = exported(run.state, tmp_path)
    said = [one["text"] for one in report["messages"] if one["text"].startswith(f"{recipe[0]} is accepted, but")]
    assert len(said) == 1
    if isinstance(speedup, str):
        assert speedup in said[0]


def test_accepting_another_value_takes_the_first_out_and_says_so():
    known = known_with((WORKERS_OF[4], result_at(1.5)), (WORKERS_OF[2], result_at(1.45)), stack=WORKERS_OF[4])
    after = decided(known, values={"num_workers": 2}, num_workers="accepted")
    assert after.found == WORKERS_OF[2]
    assert known.plan.consent.permits(WORKERS_OF[4])
    assert after.plan.consent.why_not(WORKERS_OF[4]) == OTHER_VALUE


WORKERS_OF = {count: Settings({"data.num_workers": count}) for count in (2, 4)}


def test_what_added_nothing_joins_once_it_is_accepted():
    speed = product(autocast=1.5, channels_last=1.3, step_graph=1.3)
    known, _ = found_by(speed, only=("autocast", "channels_last", "step_graph", "cudnn_benchmark"))
    assert known.dropped[CUDNN.key]
    after = search(decided(known, cudnn_benchmark="accepted"), MadeUpTrials(speed), moves)
    assert after.found == together(BF16, LAST, GRAPH, CUDNN)
