"""The duration of turns of baseline and settings: real trials, and a clock that their timings move on."""

from dataclasses import replace

import pytest
from facts import GIB, cpu_facts, gpu_facts
from made_up import known_of, reporter_to, result_at
from planted import TINY_TARGET, plant
from stopped_clock import Clock

from advisor.experiment.events import TrialActivity, TrialStarted
from advisor.experiment.known import Kind, Move
from advisor.experiment.measuring import bench as benches
from advisor.experiment.measuring.budget import Budget
from advisor.experiment.measuring.move_trials import MoveTrials
from advisor.experiment.measuring.turns import (
    FEWEST_PAIRS,
    LEAST_PAIRS,
    MOST_PAIRS,
    may_be_side_by_side,
    side_by_side,
    turns_s,
)
from advisor.experiment.past.journal import Journal
from advisor.experiment.request import Request
from advisor.figures.stats import ProcessSpread
from advisor.judging.judge import Judge
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Block, Outcome, TargetSpec, TrialKind
from advisor.runner.trial_process import Trial
from advisor.runner.trials import Runner

pytestmark = pytest.mark.usefixtures("real_sessions")
SETTINGS = Settings({"control.noop": True})
FAILS = Settings({"planted.raising": True})
BLOCK_S = 200.0  # by the clock of the budget; far longer than was asked for, as where a block holds whole epochs
TRIAL_S = 100.0
STACK, BASELINE = "combination, in turns", "baseline, in turns"


class Bench(benches.Bench):
    """A bench whose budget is spent only by blocks and whole trials."""

    def __init__(self, folder, total_s):
        (folder / "target.py").write_text(TINY_TARGET, encoding="utf-8")
        plant(folder / "recipes", "raising", apply="raise RuntimeError('no such trick')")
        recipes = (str(folder / "recipes"),)
        target = TargetSpec("target.py", str(folder), device="cpu")
        request = Request(target, budget_s=total_s, recipe_folders=recipes)
        self.clock, self.asked = Clock(), []
        budget, journal = Budget(total_s, self.clock, load_catalog(recipes)), Journal(folder / "session.jsonl")
        super().__init__(request, Runner(), budget, journal, emit=self.hear)

    def hear(self, event):
        if isinstance(event, TrialStarted):
            self.asked.append(event.name)
        elif isinstance(event, TrialActivity) and event.text == "measuring":
            self.clock.now += TRIAL_S

    def listen(self, spec, message):
        if isinstance(message, Block) and spec.kind is TrialKind.TURNS:  # a whole trial tells its blocks too
            self.clock.now += BLOCK_S
        super().listen(spec, message)


def pairs_of(evidence):
    """The number of pairs of blocks."""
    (new,), (old,) = evidence.turns.new, evidence.turns.old
    assert evidence.turns.by_block
    assert len(new.blocks) == len(old.blocks)
    return len(new.blocks)


@pytest.mark.parametrize(
    ("total_s", "pairs"),
    [(0.9 * BLOCK_S, LEAST_PAIRS), (9.0 * BLOCK_S, 4), (2.5 * MOST_PAIRS * BLOCK_S, FEWEST_PAIRS)],
    ids=["no time", "some time", "time for all"],
)
def test_blocks_take_turns_while_another_pair_as_long_as_the_last_fits(tmp_path, total_s, pairs):
    bench = Bench(tmp_path, total_s)
    evidence = side_by_side(bench, SETTINGS)
    assert evidence.runs == ()
    assert pairs_of(evidence) == pairs
    assert set(evidence.turns.new[0].phases) >= {"forward", "backward"}
    assert bench.measuring_s == pytest.approx(2 * pairs * BLOCK_S)


def in_turn(bench, settings):
    """The evidence of turns of whole trials."""
    trials = MoveTrials(bench, reporter_to(lambda event: None))
    return trials.measure(Move(Kind.TURNS, settings, 1.0, STACK), known_of(cpu_facts()))


@pytest.mark.parametrize("in_time", [2 * LEAST_PAIRS - 1, 2 * LEAST_PAIRS, 2 * LEAST_PAIRS + 1])
def test_turns_that_the_budget_ends_keep_their_whole_pairs_where_they_are_enough(tmp_path, monkeypatch, in_time):
    bench, timed, measure = Bench(tmp_path, 10 * MOST_PAIRS * BLOCK_S), [], Trial.measure_block

    def measure_until_late(trial, seconds):
        if len(timed) == in_time:
            trial._deadline, seconds = 0.0, 3600.0  # a block that no machine ends before the deadline is seen
        timed.append(trial)
        return measure(trial, seconds)

    monkeypatch.setattr(Trial, "measure_block", measure_until_late)
    evidence = side_by_side(bench, SETTINGS)
    if in_time < 2 * LEAST_PAIRS:
        [(settings, result)] = evidence.runs
        assert (settings, result.outcome, evidence.turns) == (SETTINGS, Outcome.TIMED_OUT, None)
    else:
        assert evidence.runs == ()
        assert pairs_of(evidence) == LEAST_PAIRS
        assert evidence.turns.new[0].measured


@pytest.mark.parametrize(
    ("total_s", "pairs"), [(2.2 * TRIAL_S, 1), (4.5 * TRIAL_S, 2)], ids=["time for one", "time for two"]
)
def test_whole_trials_take_turns_while_another_pair_as_long_as_the_last_fits(tmp_path, total_s, pairs):
    bench = Bench(tmp_path, total_s)
    evidence = in_turn(bench, SETTINGS)
    assert bench.asked == [STACK, BASELINE, BASELINE, STACK][: 2 * pairs]
    assert [settings for settings, _ in evidence.runs] == [SETTINGS, {}, {}, SETTINGS][: 2 * pairs]
    assert all(result.measured for _, result in evidence.runs)
    assert [bool(result.phases) for _, result in evidence.runs] == [True, False, False, False][: 2 * pairs]
    assert (len(evidence.turns.new), len(evidence.turns.old), evidence.turns.by_block) == (pairs, pairs, False)


@pytest.mark.parametrize(("total_s", "baselines"), [(5.5 * TRIAL_S, 3), (20 * TRIAL_S, 6)])
def test_a_baseline_whose_processes_differ_more_runs_again_until_time_or_noise_is_over(
    tmp_path, monkeypatch, total_s, baselines
):
    wide, narrow = ProcessSpread(0.2, 4.0), ProcessSpread(0.01, 4.0)
    monkeypatch.setattr(Judge, "spread_of", lambda judge, settings: narrow if settings else wide)
    bench = Bench(tmp_path, total_s)
    evidence = in_turn(bench, SETTINGS)
    assert (len(evidence.turns.new), len(evidence.turns.old)) == (2, baselines)
    assert len(evidence.runs) == 2 + baselines


def test_settings_that_fail_in_their_turn_are_a_run_that_failed(tmp_path):
    bench = Bench(tmp_path, 10 * TRIAL_S)
    for evidence in (in_turn(bench, FAILS), side_by_side(bench, FAILS)):
        [(settings, result)] = evidence.runs
        assert (settings, result.outcome) == (FAILS, Outcome.FAILED)
        assert "no such trick" in result.reason
        assert evidence.turns is None


def known_with(baseline=None, stack=None, facts=None):
    known = known_of(facts or cpu_facts(), baseline=baseline)
    return replace(known, judge=known.judge.with_run(SETTINGS, stack)) if stack else known


def test_turns_are_expected_to_take_a_trial_of_each_and_their_blocks(tmp_path):
    bench = Bench(tmp_path, 10 * TRIAL_S)
    bench.budget.learn(Settings(), 7.0)
    in_processes, in_blocks = known_with(), known_with(stack=result_at(2.0))
    assert turns_s(bench, in_processes, SETTINGS) == 14.0
    assert turns_s(bench, in_blocks, SETTINGS) == pytest.approx(0.75 * (14.0 + 2 * FEWEST_PAIRS * 0.2 * 0.5))
    long_steps = known_with(baseline=result_at(0.05), stack=result_at(0.1))  # two seconds each
    assert turns_s(bench, long_steps, SETTINGS) == pytest.approx(0.75 * (14.0 + 2 * FEWEST_PAIRS * 2.0))
    bench.budget.learn(SETTINGS, 2.0)
    assert turns_s(bench, in_processes, SETTINGS) == 9.0


def test_two_processes_live_side_by_side_on_the_cpu_where_both_fit():
    small = result_at(1.0, peak_reserved_bytes=GIB)
    large = result_at(1.0, peak_reserved_bytes=80 * GIB)
    assert may_be_side_by_side(known_with(small, small), SETTINGS)
    assert may_be_side_by_side(known_with(small, large), SETTINGS)
    assert not may_be_side_by_side(known_with(large, large), SETTINGS)
    assert not may_be_side_by_side(known_with(small, small, gpu_facts()), SETTINGS)
