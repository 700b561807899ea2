import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from facts import cpu_facts, gpu_facts, host, loader_facts, profile_facts

from advisor.experiment.judging.judge import AlternatedBlocks, Judge, beside_spread, prior_spread, speed
from advisor.experiment.judging.records import overhead_s, stack_record, steps_to_break_even, trial_record
from advisor.experiment.objective import Goal
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Block, Candidate, Hardware, Mode, Numerics, Objective, Outcome, TrialResult, Verdict

CATALOG = load_catalog()
CANDIDATE = Candidate("autocast", "precision.autocast", "bfloat16")
BF16 = Settings(CANDIDATE.settings)
FUSED = Candidate("fused_optimizer", "optimizer.implementation", "fused")


def result(step_ms, *, samples=8, losses=(2.3, 2.2), seed=0, **changes):
    draw = random.Random(seed)
    seconds = [10 * step_ms / 1e3 * draw.uniform(0.995, 1.005) for _ in range(15)]
    blocks = tuple(Block(10, 10 * samples, second) for second in seconds)
    options = {"prepare_s": 0.0, "warmup_s": 0.0, "losses": losses, "batch_size": samples}
    return TrialResult(Outcome.MEASURED, blocks=blocks, **{**options, **changes})


@pytest.fixture
def judge():
    return Judge(CATALOG, Mode.TRAIN, result(10.0))


def record(judge, tried, candidate=CANDIDATE):
    """The record of a candidate after one run with this result."""
    return trial_record(judge.with_run(candidate.settings, tried), candidate, candidate.settings)


def verdict(judge, step_ms, **changes):
    return record(judge, result(step_ms, seed=1, **changes)).verdict


def beside(new_ms, old_ms, drift=(1.0,) * 8):
    """Blocks in turn on a machine whose speed drifts by these factors."""
    new = tuple(Block(10, 80, 0.01 * new_ms * factor) for factor in drift)
    old = tuple(Block(10, 80, 0.01 * old_ms * factor) for factor in drift)
    return AlternatedBlocks(new, old, result(new_ms))


# --- verdicts -------------------------------------------------------------------------------------------------


def test_verdicts(judge):
    assert verdict(judge, 5.0) is Verdict.FASTER
    assert verdict(judge, 20.0) is Verdict.SLOWER
    assert verdict(judge, 10.02) is Verdict.NO_DIFFERENCE


def test_a_speed_up_is_in_samples_not_steps(judge):
    found = record(judge, result(15.0, samples=16))
    assert found.comparison.speedup == pytest.approx(16 / 12, rel=0.01)
    assert found.verdict is Verdict.FASTER
    assert found.numerics.difference is None


def test_a_judge_is_a_value(judge):
    later = judge.with_run(BF16, result(5.0)).with_control(result(10.0, seed=2)).with_in_turn(BF16)
    assert not judge.runs
    assert not judge.controls
    assert not judge.has_tried(BF16)
    assert later.has_tried(BF16)
    assert later.took_turns(BF16)
    forgotten = later.without_runs(BF16)
    assert not forgotten.has_tried(BF16)
    assert not forgotten.took_turns(BF16)
    assert forgotten.controls == later.controls


def test_a_noisy_control_makes_small_gains_unproven(judge):
    quiet = judge.with_control(result(10.0, seed=2)).with_run({}, result(10.0, seed=3))
    noisy = judge.with_control(result(11.0, seed=2)).with_run({}, result(9.2, seed=3))
    assert verdict(quiet, 8.5) is Verdict.FASTER
    assert noisy.noise_floor > 0.1 > quiet.noise_floor
    assert verdict(noisy, 8.5) is Verdict.NO_DIFFERENCE
    assert verdict(noisy, 4.0) is Verdict.FASTER


def test_repeats_widen_the_floor_and_join_the_baseline(judge):
    repeated = judge.with_run({}, result(10.8, seed=3)).with_run({}, result(10.2, seed=4))
    assert (
        repeated.noise_floor > judge.with_run({}, result(10.0, seed=3)).with_run({}, result(10.0, seed=4)).noise_floor
    )
    assert len(repeated.baseline_runs) == 3
    assert repeated.baseline_record().step_ms == pytest.approx(10.2, rel=0.01)
    assert repeated.baseline_record().noise_floor == repeated.noise_floor
    assert repeated.with_control(result(9.9, seed=5)).baseline_record().apart == pytest.approx(10.8 / 9.9 - 1, abs=0.01)


def test_step_time_and_rate_of_two_runs_that_differ_belong_together(judge):
    known = judge.with_run({}, result(90.0, seed=3)).baseline_record()
    assert known.step_ms == pytest.approx(30.0, rel=0.01), "as the ratio to them has it"
    assert known.samples_per_s == pytest.approx(8 * 1000 / known.step_ms, rel=0.01)


def test_one_disturbed_repeat_changes_neither_the_floor_nor_the_baseline(judge):
    for seed in (2, 3):
        judge = judge.with_run({}, result(10.0, seed=seed))
    disturbed = judge.with_run({}, result(80.0, seed=4))
    assert disturbed.noise_floor < 0.1
    assert disturbed.apart < 0.02, "the person is told how far the others lie apart"
    assert disturbed.baseline_record().step_ms == pytest.approx(10.0, rel=0.01)
    told = judge.with_run({}, result(80.0, seed=4, disturbed="another process ran"))
    assert told.process_spread == judge.process_spread


def test_runs_that_were_all_disturbed_prove_nothing_until_one_was_not(judge):
    disturbed = judge.with_run(BF16, result(5.0, seed=1, disturbed="another process ran"))
    assert disturbed.compare(BF16).verdict is Verdict.NO_DIFFERENCE
    assert disturbed.with_run(BF16, result(5.0, seed=2)).compare(BF16).verdict is Verdict.FASTER
    slowed = judge.with_run(BF16, result(20.0, seed=1, disturbed="another process ran")).with_run(BF16, result(5.0))
    assert slowed.compare(BF16).speedup == pytest.approx(2.0, rel=0.02)
    assert slowed.speed(BF16)[0] == pytest.approx(5.0, rel=0.02)
    assert (slowed.result(BF16).disturbed, disturbed.result(BF16).disturbed) == ("", "another process ran")


@pytest.mark.parametrize(
    ("step_ms", "waited", "told"),
    [
        (20.0, 0.5, Verdict.FASTER),
        (20.0, 0.75, Verdict.NO_DIFFERENCE),
        (40.0, 0.75, Verdict.FASTER),
        (20.0, None, Verdict.NO_DIFFERENCE),
        (11.0, 0.5, Verdict.NO_DIFFERENCE),
    ],
)
def test_settings_are_compared_less_the_waits_of_their_only_thread_for_a_core(judge, step_ms, waited, told):
    """However much processes of the baseline differ there, whose threads wait for one another as well."""
    busy = {"disturbed": "other processes used 1.6 of 2 cores"}
    judge = Judge(CATALOG, Mode.TRAIN, result(100.0, **busy)).with_control(result(400.0, **busy))
    whole = BF16.merged(FUSED.settings)
    judge = judge.with_run(whole, result(10.0, seed=1, waited=0.5, **busy))
    judge = judge.with_run(BF16, result(step_ms, seed=2, waited=waited, **busy))
    assert judge.contribution(whole, BF16).verdict is told
    assert judge.compare(whole).speedup == pytest.approx(10.0, rel=0.02), "as the step times have it"


def test_repeats_of_one_thread_are_as_far_apart_as_they_are_without_its_waits(judge):
    busy = {"disturbed": "other processes used 1.6 of 2 cores"}
    for waited, step_ms in ((0.5, 20.0), (0.75, 40.0)):
        judge = judge.with_run(BF16, result(step_ms, waited=waited, **busy))
    assert judge.spread_of(BF16).seen == pytest.approx(0.0, abs=1e-6)
    assert judge.with_run(BF16, result(40.0, waited=0.5, **busy)).spread_of(BF16).seen > 0.3


@pytest.mark.parametrize(("step_ms", "told"), [(5.2, Verdict.FASTER), (8.5, Verdict.NO_DIFFERENCE)])
def test_runs_on_a_gpu_that_slows_itself_down_prove_what_its_clock_leaves_open(step_ms, told):
    hot = {"disturbed": "the GPU slowed itself down", "off_by": 0.13}
    judge = Judge(CATALOG, Mode.TRAIN, result(10.0, **hot)).with_control(result(10.2, seed=3, **hot))
    comparison = judge.with_run(BF16, result(step_ms, seed=1, **hot)).compare(BF16)
    assert comparison.verdict is told
    assert comparison.ci_high / comparison.ci_low < 3


def test_failed_controls_and_repeats_say_nothing(judge):
    before = judge.baseline_record()
    failed = judge.with_control(TrialResult(Outcome.CRASHED)).with_run({}, TrialResult(Outcome.TIMED_OUT))
    assert failed.baseline_record() == before


def test_repeats_of_other_settings_tell_of_the_noise_as_well(judge):
    apart = judge.with_run(BF16, result(5.0, seed=1)).with_run(BF16, result(6.5, seed=2))
    assert apart.noise_floor > judge.noise_floor
    assert judge.with_run(BF16, result(5.0)).with_run({"a.b": 1}, result(6.5)).process_spread == judge.process_spread


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.CRASHED, Outcome.TIMED_OUT])
def test_what_was_not_measured_is_failed(judge, outcome):
    failed = judge.with_run(BF16, TrialResult(outcome, "why"))
    found = trial_record(failed, CANDIDATE, BF16)
    assert (found.verdict, found.comparison, found.step_ms) == (Verdict.FAILED, None, None)
    assert stack_record(failed, BF16, {}).comparison is None
    assert failed.has_tried(BF16)
    assert failed.measured_runs(BF16) == ()
    assert failed.gain(BF16, {}).is_worse


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_that_are_not_finite_fail_a_fast_candidate(judge, bad):
    found = record(judge, result(1.0, losses=(2.3, bad)))
    assert (found.result.outcome, found.verdict) == (Outcome.NON_FINITE, Verdict.FAILED)
    assert found.result.reason == f"the loss became {bad} at step 2 of 2"
    assert (found.numerics.measured, found.numerics.text) == (Numerics.CHANGED, found.result.reason)
    assert found.numerics.worse_than_declared
    stack = stack_record(judge.with_run(BF16, result(1.0, losses=(bad,))), BF16, {})
    assert (stack.result.outcome, stack.numerics.measured) == (Outcome.NON_FINITE, Numerics.CHANGED)


def test_a_baseline_that_diverges_fails_nobody_else():
    judge = Judge(CATALOG, Mode.TRAIN, result(10.0, losses=(2.3, math.nan)))
    assert verdict(judge, 5.0, losses=(2.3, math.nan)) is Verdict.FASTER
    found = record(judge, result(5.0, losses=(2.3, 2.2)))
    assert (found.numerics.measured, found.numerics.difference) == (Numerics.CLOSE, None)
    assert not judge.with_control(result(10.0, losses=(2.3, math.nan), seed=3)).spread.random


def test_a_scaler_that_skips_every_update_fails_its_candidate():
    judge = Judge(CATALOG, Mode.TRAIN, result(10.0, weights=(4.0, 3.9, 3.8)))
    found = record(judge, result(5.0, weights=(4.0, 4.0, 4.0), skipped_steps=26))
    assert (found.result.outcome, found.verdict) == (Outcome.NON_FINITE, Verdict.FAILED)
    assert "skipped every update" in found.numerics.text


# --- numerics -------------------------------------------------------------------------------------------------


def test_the_worst_class_that_is_declared_counts(judge):
    assert judge.declared({}) is Numerics.EXACT
    assert judge.declared({"step.zero_grad": "manual"}) is Numerics.EXACT
    assert judge.declared({"step.zero_grad": "manual", **CANDIDATE.settings}) is Numerics.CLOSE


def test_the_spread_of_the_control_excuses_what_is_within_it(judge):
    judge = judge.with_control(result(10.0, losses=(2.3, 2.0), seed=4))
    assert judge.spread.losses == pytest.approx(0.2 / 2.2)
    found = record(judge, result(5.0, losses=(2.3, 2.05)))
    assert found.numerics.measured is Numerics.CLOSE
    assert found.numerics.as_baselines


def test_the_spread_is_that_of_all_pairs_of_baseline_runs(judge):
    judge = judge.with_control(result(10.0, losses=(2.3, 2.1), seed=4))
    judge = judge.with_run({}, result(10.0, losses=(2.3, 2.4), seed=5))
    assert judge.spread.losses == pytest.approx(0.3 / 2.4)


def test_a_reference_tightens_what_counts_as_close(judge):
    judge = judge.with_run(FUSED.settings, result(10.0, losses=(2.3, 2.2005)))
    assert trial_record(judge, FUSED, FUSED.settings).numerics.measured is Numerics.CLOSE
    precise = TrialResult(Outcome.MEASURED, losses=(2.3 + 1e-7, 2.2), batch_size=8, notes=("float64",))
    judge = replace(judge, reference=precise)
    found = trial_record(judge, FUSED, FUSED.settings)
    assert found.numerics.measured is Numerics.CHANGED
    assert found.numerics.baseline_from_reference == pytest.approx(1e-7 / 2.3, rel=0.01)
    # What brings bfloat16 with it may round to that.
    assert record(judge, result(10.0, losses=(2.3, 2.2005))).numerics.measured is Numerics.CLOSE


def test_the_users_own_arithmetic_counts_for_every_candidate(judge):
    precise = TrialResult(Outcome.MEASURED, losses=(2.3, 2.2), batch_size=8)
    judge = replace(judge, reference=precise, own_rounding=2.0**-8)
    assert record(judge, result(10.0, losses=(2.3, 2.25)), FUSED).numerics.measured is Numerics.CLOSE


# --- starting -------------------------------------------------------------------------------------------------


def test_a_slow_start_pays_back_after_some_steps(judge):
    def steps_of(run, judge=judge):
        return steps_to_break_even(judge.with_run(BF16, run), BF16, run)

    slow_start = result(5.0, warmup_s=10.0, warmup_steps=0)
    assert steps_of(slow_start) == pytest.approx(2000, rel=0.02)
    assert steps_of(result(5.0)) == 0
    assert steps_of(result(20.0)) is None
    # A run that was disturbed says nothing of the steps that turns have shown to be faster.
    in_turn = judge.with_alternated(BF16, beside(5.0, 10.0))
    assert steps_of(result(20.0, warmup_s=10.0, warmup_steps=0), in_turn) == pytest.approx(2000, rel=0.02)


def test_the_steps_of_a_warm_up_are_no_overhead():
    slow = result(10.0, prepare_s=1.0, warmup_s=3.0, warmup_steps=100)
    assert overhead_s(slow, 10.0) == pytest.approx(3.0)
    assert overhead_s(result(10.0, warmup_s=0.5, warmup_steps=100), 10.0) == 0
    step_ms, rate = speed(slow)
    assert step_ms == pytest.approx(10, rel=0.01)
    assert rate == pytest.approx(800, rel=0.01)


# --- in turn --------------------------------------------------------------------------------------------------


def test_blocks_in_turn_confirm_a_stack_and_cancel_the_drift_that_both_meet(judge):
    drift = [1 + 0.1 * index for index in range(10)]
    judge = judge.with_run(BF16, result(5.2)).with_alternated(BF16, beside(5.0, 10.0, drift))
    stack = stack_record(judge, BF16, {"a.b": "why"})
    assert stack.confirmed
    assert stack.comparison.paired
    assert stack.comparison.speedup == pytest.approx(2.0)
    assert 1.9 < stack.comparison.ci_low < stack.comparison.ci_high < 2.1
    assert stack.dropped == {"a.b": "why"}
    assert stack.step_ms == pytest.approx(5 * 1.45, rel=0.001)
    assert stack.baseline_step_ms == pytest.approx(10 * 1.45, rel=0.001)
    assert stack.samples_per_s / stack.baseline_samples_per_s == pytest.approx(2.0)


def test_the_times_beside_a_speed_up_agree_with_it_however_the_machine_drifts(judge):
    """Medians of either side would be 5 and 40 ms beside 4x."""
    new_ms, old_ms = (20.0, 5.0, 5.0, 5.0, 10.0), (40.0, 20.0, 15.0, 45.0, 45.0)
    new = tuple(Block(10, 80, 0.01 * step_ms) for step_ms in new_ms)
    old = tuple(Block(10, 80, 0.01 * step_ms) for step_ms in old_ms)
    judge = judge.with_run(BF16, result(5.2)).with_alternated(BF16, AlternatedBlocks(new, old, result(5.0)))
    stack = stack_record(judge, BF16, {})
    assert stack.comparison.speedup == pytest.approx(4.0)
    assert (stack.step_ms, stack.baseline_step_ms) == pytest.approx((5.0, 20.0))
    fused = FUSED.settings
    runs = judge.with_run({}, result(40.0, seed=3)).with_run(fused, result(5.0)).with_run(fused, result(20.0, seed=3))
    apart = stack_record(runs, fused, {})
    assert apart.baseline_step_ms / apart.step_ms == pytest.approx(apart.comparison.speedup, rel=0.001)


def test_two_processes_that_take_turns_may_differ_by_where_their_memory_lies(judge):
    """The blocks agree to the last digit; another pair of processes would not."""
    for ratio, told in ((1.0, Verdict.NO_DIFFERENCE), (1.03, Verdict.NO_DIFFERENCE), (1.1, Verdict.FASTER)):
        tried = judge.with_run(BF16, result(10.0)).with_alternated(BF16, beside(10.0 / ratio, 10.0))
        assert tried.compare(BF16).verdict is told
        # Processes that ran one after the other may differ by more: that says nothing of two side by side.
        assert tried.with_control(result(14.0, seed=2)).compare(BF16).verdict is told


@pytest.mark.parametrize(
    ("foreign_cores", "ratio", "told"),
    [(0.0, 1.2, Verdict.FASTER), (31.0, 1.2, Verdict.NO_DIFFERENCE), (31.0, 1.8, Verdict.FASTER)],
)
def test_turns_beside_other_programs_tell_no_small_gain(foreign_cores, ratio, told):
    """A session reported 1.20x of a U-Net whose plain loops took 787 and 802 ms."""
    facts = cpu_facts(hardware=Hardware(host=host(foreign_cores=foreign_cores)))
    judge = Judge(CATALOG, Mode.TRAIN, result(10.0), beside=beside_spread(facts)).with_run(BF16, result(10.0))
    compared = judge.with_alternated(BF16, beside(10.0 / ratio, 10.0)).with_control(result(14.0, seed=2)).compare(BF16)
    assert compared.verdict is told
    assert compared.noise_floor == pytest.approx(0.1 if foreign_cores else 0.03, abs=0.002)


def test_the_noise_of_turns_beside_other_programs_needs_no_run_that_changes_nothing(judge):
    facts = cpu_facts(hardware=Hardware(host=host(foreign_cores=31.0)))
    judge = replace(judge, beside=beside_spread(facts)).with_alternated(BF16, beside(5.0, 10.0))
    assert judge.compare(BF16).noise_floor == pytest.approx(0.1, abs=0.002)


@pytest.mark.parametrize("seed", range(10))
def test_a_machine_whose_runs_differ_by_a_fifth_still_tells_a_stack_of_1_8(seed):
    """The demo on a busy machine of two cores: three runs of the baseline, then turns whose blocks scatter as well."""
    draw = random.Random(seed)
    first, second, third = (result(10.0 * math.exp(draw.gauss(0.0, 0.2)), seed=seed) for _ in range(3))
    judge = Judge(CATALOG, Mode.TRAIN, first, prior=0.03).with_control(second).with_run({}, third)
    drift = [math.exp(draw.gauss(0.0, 0.2)) for _ in range(8)]
    in_turn = beside(10.0 / 1.8, 10.0, drift)
    scattered = tuple(replace(block, seconds=block.seconds * math.exp(draw.gauss(0.0, 0.1))) for block in in_turn.new)
    judge = judge.with_run(BF16, result(5.6)).with_alternated(BF16, replace(in_turn, new=scattered))
    assert stack_record(judge, BF16, {}).verdict is Verdict.FASTER
    assert judge.noise_floor <= 0.3


def test_whole_runs_in_turn_confirm_by_all_that_ran(judge):
    ran = judge.with_run(BF16, result(5.0, seed=1))
    assert not stack_record(ran, BF16, {}).confirmed
    for seed, (new_ms, old_ms) in enumerate([(5.2, 10.4), (5.1, 10.2)], start=2):
        ran = ran.with_run(BF16, result(new_ms, seed=seed)).with_run({}, result(old_ms, seed=seed + 10))
    stack = stack_record(ran.with_in_turn(BF16), BF16, {})
    assert (stack.confirmed, stack.comparison.paired) == (True, True)
    assert stack.comparison.speedup == pytest.approx(2.0, rel=0.01)
    assert stack.samples_per_s / stack.baseline_samples_per_s == pytest.approx(stack.comparison.speedup)
    assert stack.comparison.ci_low > 1.8


def test_the_stack_has_the_phases_that_one_of_its_trials_timed(judge):
    timed = replace(result(5.2, seed=2), phases={"data wait": 0.1, "captured step": 5.1})
    ran = judge.with_run(BF16, result(5.0, seed=1))
    assert stack_record(ran, BF16, {}).result.phases == {}
    assert stack_record(ran.with_run(BF16, timed).with_run(BF16, result(5.1)), BF16, {}).result.phases == timed.phases
    in_turn = replace(beside(5.0, 10.0), result=timed)
    assert stack_record(ran.with_alternated(BF16, in_turn), BF16, {}).result.phases == timed.phases


def test_what_drifted_meanwhile_is_not_called_slower(judge):
    """A machine that became a fifth slower makes every later trial look slow; the repeated baseline shows that."""
    late = result(12.0, seed=1)
    assert record(judge, late).verdict is Verdict.SLOWER
    repeated = judge.with_control(result(10.1, seed=3)).with_run({}, result(12.1, seed=2))
    assert record(repeated, late).verdict is Verdict.NO_DIFFERENCE


# --- one combination against another --------------------------------------------------------------------------


def test_a_contribution_is_the_ratio_of_the_two_combinations(judge):
    whole = BF16.merged(FUSED.settings)
    judge = judge.with_run(BF16, result(5.0, seed=1)).with_run(whole, result(4.0, seed=2))
    found = trial_record(judge, FUSED, whole, BF16)
    assert found.contribution.speedup == pytest.approx(1.25, rel=0.01)
    assert found.comparison.speedup == pytest.approx(2.5, rel=0.01)
    assert found.own_effect == found.contribution
    assert found.verdict is Verdict.FASTER
    assert trial_record(judge, FUSED, whole, {"a.b": 1}).contribution is None


def test_what_adds_nothing_to_a_fast_combination_is_not_called_faster(judge):
    whole = BF16.merged(FUSED.settings)
    judge = judge.with_run(BF16, result(5.0, seed=1)).with_run(whole, result(4.99, seed=2))
    assert trial_record(judge, FUSED, whole, BF16).verdict is Verdict.NO_DIFFERENCE


def test_a_gain_is_that_of_one_combination_over_another(judge):
    judge = judge.with_run(BF16, result(5.0, seed=1)).with_run({"a.b": 1}, result(8.0, seed=2))
    gain = judge.gain(BF16, {"a.b": 1})
    assert gain.ratio == pytest.approx(1.6, rel=0.01)
    assert gain.is_better
    assert judge.gain({"a.b": 1}, BF16).is_worse
    assert judge.gain(BF16, {}).ratio == pytest.approx(2.0, rel=0.01)
    assert judge.gain({"never.run": 1}, {}).is_worse


def test_for_latency_a_larger_batch_is_no_gain():
    """Twice the samples in 1.5 times the time: a better throughput, and a longer step."""
    larger = {"data.batch_size": 16}
    run = replace(result(15.0, samples=16), blocks=(Block(5, 80, 0.075),) * 15)
    by_samples = Judge(CATALOG, Mode.TRAIN, result(10.0)).with_run(larger, run)
    by_steps = replace(by_samples, goal=Goal(Objective.LATENCY))
    assert by_samples.gain(larger, {}).is_better
    assert by_steps.gain(larger, {}).is_worse
    assert by_steps.gain(larger, {}).ratio == pytest.approx(10 / 15, rel=0.01)
    assert by_steps.gain({}, larger).is_better


def test_an_empty_stack_is_the_baseline_and_once_as_fast(judge):
    judge = judge.with_run({}, result(14.0, seed=3))
    stack = stack_record(judge, {}, {"a.b": "why"})
    assert (stack.settings, stack.dropped) == ({}, {"a.b": "why"})
    assert (stack.comparison.speedup, stack.comparison.ci_low, stack.comparison.ci_high) == (1.0, 1.0, 1.0)
    assert stack.comparison.verdict is Verdict.NO_DIFFERENCE
    assert stack.samples_per_s == stack.baseline_samples_per_s == judge.baseline_rate
    assert stack.numerics.measured is Numerics.EXACT


# --- noise between processes ----------------------------------------------------------------------------------


def test_more_noise_is_expected_where_the_host_or_a_loader_sets_the_pace():
    quiet = prior_spread(gpu_facts(profile=profile_facts(device_busy_share=0.95)))
    by_host = prior_spread(gpu_facts(profile=profile_facts(device_busy_share=0.4)))
    fed = prior_spread(gpu_facts(loader=loader_facts()))
    assert quiet < by_host < fed
    assert quiet < prior_spread(gpu_facts()) < by_host, "before the instrumented pass nobody knows"
    assert prior_spread(cpu_facts()) > quiet
    assert prior_spread(gpu_facts(profile=profile_facts(device_busy_share=0.7))) == quiet


RECORDED = json.loads(Path(__file__).parents[1].joinpath("data", "identical_runs.json").read_text(encoding="utf-8"))


def recorded_runs(workload, start):
    """The runs of a workload in their order in time, from one of them on: as if the session had begun there."""
    runs = [
        TrialResult(Outcome.MEASURED, blocks=tuple(Block(*block) for block in blocks), batch_size=8)
        for blocks in RECORDED[workload]
    ]
    return runs[start:] + runs[:start]


def false_verdicts(runs):
    """Candidates that change nothing, judged as a session does: baseline, control, trials with repeats among them."""
    judge = Judge(CATALOG, Mode.TRAIN, runs[0]).with_control(runs[1])
    tried = []
    for number, run in enumerate(runs[2:]):
        settings = {} if number in (3, 8) else {"made.up": number}
        judge = judge.with_run(settings, run)
        tried += [settings] if settings else []
    verdicts = [judge.compare(settings).verdict for settings in tried]
    return len(verdicts), sum(told is not Verdict.NO_DIFFERENCE for told in verdicts)


def test_of_identical_programs_recorded_on_a_gpu_at_most_one_in_a_hundred_is_called_different():
    """112 real runs of seven workloads on an H200, two of them bound by launches on a host with slow minutes."""
    outcomes = [false_verdicts(recorded_runs(workload, start)) for workload in RECORDED for start in range(0, 16, 4)]
    judged, wrong = (sum(column) for column in zip(*outcomes, strict=True))
    assert judged >= 300
    assert wrong <= judged / 100
