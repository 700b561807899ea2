from __future__ import annotations

import functools
import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from advisor.catalog import load_catalog
from advisor.experiment.confirmation import Confirmation, Runs
from advisor.experiment.judge import Judge, overhead_s, speed
from advisor.experiment.objective import Goal
from advisor.records import Block, Candidate, Mode, Numerics, Objective, Outcome, TrialResult, Verdict
from advisor.stats import ratio_interval

CATALOG = load_catalog()
CANDIDATE = Candidate("autocast", "precision.autocast", "bfloat16")


def result(step_ms, *, samples=8, losses=(2.3, 2.2), seed=0, **changes):
    draw = random.Random(seed)
    seconds = [10 * step_ms / 1e3 * draw.uniform(0.995, 1.005) for _ in range(15)]
    blocks = tuple(Block(10, 10 * samples, second) for second in seconds)
    options = {"prepare_s": 0.0, "warmup_s": 0.0, "losses": losses, "batch_size": samples}
    return TrialResult(Outcome.MEASURED, blocks=blocks, **{**options, **changes})


@pytest.fixture
def judge():
    return Judge(CATALOG, Mode.TRAIN, result(10.0))


def verdict(judge, step_ms, **changes):
    return judge.record(CANDIDATE, CANDIDATE.settings, result(step_ms, seed=1, **changes)).verdict


def test_verdicts(judge):
    assert verdict(judge, 5.0) is Verdict.FASTER
    assert verdict(judge, 20.0) is Verdict.SLOWER
    assert verdict(judge, 10.02) is Verdict.NO_DIFFERENCE


def test_a_speed_up_is_in_samples_not_steps(judge):
    record = judge.record(CANDIDATE, CANDIDATE.settings, result(15.0, samples=16))
    assert record.comparison.speedup == pytest.approx(16 / 12, rel=0.01)
    assert record.verdict is Verdict.FASTER
    assert record.numerics.difference is None


def test_a_noisy_control_makes_small_gains_unproven(judge):
    assert verdict(judge, 9.5) is Verdict.FASTER
    judge.add_control(result(11.0, seed=2))
    assert judge.noise_floor > 0.1
    assert verdict(judge, 9.5) is Verdict.NO_DIFFERENCE
    assert verdict(judge, 5.0) is Verdict.FASTER


def test_repeats_widen_the_floor_and_join_the_baseline(judge):
    judge.add_repeat(result(10.4, seed=3))
    assert judge.noise_floor > 0.04
    assert len(judge.baseline_rates) == 30
    assert 10.0 < judge.baseline_record().step_ms < 10.4
    assert judge.baseline_record().noise_floor == judge.noise_floor


def test_failed_controls_and_repeats_say_nothing(judge):
    before = judge.baseline_record()
    judge.add_control(TrialResult(Outcome.CRASHED))
    judge.add_repeat(TrialResult(Outcome.TIMED_OUT))
    assert judge.baseline_record() == before


def test_a_record_is_judged_again_under_a_new_floor(judge):
    record = judge.record(CANDIDATE, CANDIDATE.settings, result(9.5, seed=1))
    judge.add_repeat(result(11.0, seed=2))
    assert judge.again(record).verdict is not record.verdict


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.CRASHED, Outcome.TIMED_OUT])
def test_what_was_not_measured_is_failed(judge, outcome):
    record = judge.record(CANDIDATE, CANDIDATE.settings, TrialResult(outcome, "why"))
    assert (record.verdict, record.comparison, record.step_ms) == (Verdict.FAILED, None, None)
    assert judge.stack({}, TrialResult(outcome), {}).comparison is None


def test_what_was_skipped_is_skipped(judge):
    assert judge.record(CANDIDATE, {}, TrialResult(Outcome.SKIPPED, "why")).verdict is Verdict.SKIPPED


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_that_are_not_finite_fail_a_fast_candidate(judge, bad):
    record = judge.record(CANDIDATE, CANDIDATE.settings, result(1.0, losses=(2.3, bad)))
    assert (record.result.outcome, record.verdict) == (Outcome.NON_FINITE, Verdict.FAILED)
    assert record.result.reason == f"the loss became {bad} at step 2 of 2"
    assert (record.numerics.measured, record.numerics.text) == (Numerics.CHANGED, record.result.reason)
    assert record.numerics.worse_than_declared
    stack = judge.stack(CANDIDATE.settings, result(1.0, losses=(bad,)), {})
    assert (stack.result.outcome, stack.numerics.measured) == (Outcome.NON_FINITE, Numerics.CHANGED)


def test_a_baseline_that_diverges_fails_nobody_else():
    judge = Judge(CATALOG, Mode.TRAIN, result(10.0, losses=(2.3, math.nan)))
    assert verdict(judge, 5.0, losses=(2.3, math.nan)) is Verdict.FASTER
    record = judge.record(CANDIDATE, CANDIDATE.settings, result(5.0, losses=(2.3, 2.2)))
    assert (record.numerics.measured, record.numerics.difference) == (Numerics.CLOSE, None)
    judge.add_control(result(10.0, losses=(2.3, math.nan), seed=3))
    assert not judge.spread.random


def test_a_scaler_that_skips_every_update_fails_its_candidate():
    judge = Judge(CATALOG, Mode.TRAIN, result(10.0, weights=(4.0, 3.9, 3.8)))
    record = judge.record(CANDIDATE, CANDIDATE.settings, result(5.0, weights=(4.0, 4.0, 4.0), skipped_steps=26))
    assert (record.result.outcome, record.verdict) == (Outcome.NON_FINITE, Verdict.FAILED)
    assert "skipped every update" in record.numerics.text


def test_the_worst_class_that_is_declared_counts(judge):
    assert judge.declared({}) is Numerics.EXACT
    assert judge.declared({"step.zero_grad": "manual"}) is Numerics.EXACT
    assert judge.declared({"step.zero_grad": "manual", **CANDIDATE.settings}) is Numerics.CLOSE


def test_the_spread_of_the_control_excuses_what_is_within_it(judge):
    judge.add_control(result(10.0, losses=(2.3, 2.0), seed=4))
    assert judge.spread.losses == pytest.approx(0.2 / 2.2)
    record = judge.record(CANDIDATE, CANDIDATE.settings, result(5.0, losses=(2.3, 2.05)))
    assert record.numerics.measured is Numerics.CLOSE
    assert record.numerics.as_baselines


def test_the_spread_is_that_of_all_pairs_of_baseline_runs(judge):
    judge.add_control(result(10.0, losses=(2.3, 2.1), seed=4))
    judge.add_repeat(result(10.0, losses=(2.3, 2.4), seed=5))
    assert judge.spread.losses == pytest.approx(0.3 / 2.1)
    judge.add_repeat(result(10.0, losses=(2.3, 2.0), seed=6, disturbed="another process ran"))
    assert judge.spread.losses == pytest.approx(0.4 / 2.4)
    assert len(judge.repeats) == 1


def test_a_reference_tightens_what_counts_as_close(judge):
    drop = result(10.0, losses=(2.3, 2.2005))
    fused = Candidate("fused_optimizer", "optimizer.implementation", "fused")
    assert judge.record(fused, fused.settings, drop).numerics.measured is Numerics.CLOSE
    judge.add_reference(TrialResult(Outcome.TIMED_OUT))
    assert judge.reference is None
    judge.add_reference(TrialResult(Outcome.MEASURED, losses=(2.3 + 1e-7, 2.2), batch_size=8, notes=("float64",)))
    record = judge.again(judge.record(fused, fused.settings, drop))
    assert record.numerics.measured is Numerics.CHANGED
    assert record.numerics.baseline_from_reference == pytest.approx(1e-7 / 2.3, rel=0.01)
    # What brings bfloat16 with it may round to that.
    assert judge.record(CANDIDATE, CANDIDATE.settings, drop).numerics.measured is Numerics.CLOSE


def test_the_users_own_arithmetic_counts_for_every_candidate(judge):
    judge.add_reference(TrialResult(Outcome.MEASURED, losses=(2.3, 2.2), batch_size=8))
    judge.own_rounding = 2.0**-8
    fused = Candidate("fused_optimizer", "optimizer.implementation", "fused")
    record = judge.record(fused, fused.settings, result(10.0, losses=(2.3, 2.25)))
    assert record.numerics.measured is Numerics.CLOSE


def test_a_slow_start_pays_back_after_some_steps(judge):
    slow_start = result(5.0, warmup_s=10.0, warmup_steps=0)
    assert judge.break_even(slow_start) == pytest.approx(2000, rel=0.02)
    assert judge.break_even(result(5.0)) == 0
    assert judge.break_even(result(20.0)) is None


def test_the_steps_of_a_warm_up_are_no_overhead():
    slow = result(10.0, prepare_s=1.0, warmup_s=3.0, warmup_steps=100)
    assert overhead_s(slow, 10.0) == pytest.approx(3.0)
    assert overhead_s(result(10.0, warmup_s=0.5, warmup_steps=100), 10.0) == 0
    step_ms, rate = speed(slow)
    assert step_ms == pytest.approx(10, rel=0.01)
    assert rate == pytest.approx(800, rel=0.01)


def test_alternate_blocks_confirm_a_stack(judge):
    stack = judge.stack({"step.zero_grad": "manual"}, result(9.0), {"a.b": "why"})
    assert not stack.confirmed
    drift = [1 + 0.1 * index for index in range(10)]
    old = [Block(10, 80, 0.1 * factor) for factor in drift]
    new = [Block(10, 80, 0.05 * factor) for factor in drift]
    confirmed = judge.confirmed(stack, Confirmation(tuple(new), tuple(old), stack.result))
    assert confirmed.confirmed
    assert confirmed.comparison.paired
    comparison = confirmed.comparison
    assert (comparison.speedup, comparison.ci_low, comparison.ci_high) == pytest.approx((2, 2, 2))
    assert confirmed.dropped == {"a.b": "why"}
    assert confirmed.step_ms == pytest.approx(5 * 1.45)


def test_a_continued_session_keeps_its_noise_floor():
    continued = Judge(CATALOG, Mode.TRAIN, result(10.0), earlier_floor=0.076)
    assert continued.noise_floor == 0.076
    continued.nulls.append(1.2)
    assert continued.noise_floor > 0.2


def test_on_a_drifting_machine_blocks_in_turn_tell_what_single_trials_cannot(judge):
    judge.add_null(result(16.0).blocks)  # the machine became slower by more than half
    record = judge.record(CANDIDATE, CANDIDATE.settings, result(8.0, seed=1))
    assert record.verdict is Verdict.NO_DIFFERENCE
    drift = [1 + 0.05 * index for index in range(8)]
    old = tuple(Block(10, 80, 0.1 * factor) for factor in drift)
    new = tuple(Block(10, 80, 0.08 * factor) for factor in drift)
    settled = judge.confirm(record, Confirmation(new, old, result(8.0)))
    assert settled.verdict is Verdict.FASTER
    assert settled.comparison.noise_floor < judge.noise_floor
    same = Confirmation(old, old, result(10.0))
    assert judge.confirm(record, same).verdict is Verdict.NO_DIFFERENCE


def test_a_confirmed_stack_names_the_baseline_that_it_was_timed_beside(judge):
    stack = judge.stack({}, result(5.0), {})
    assert stack.baseline_samples_per_s == judge.baseline_record().samples_per_s
    slowed = [Block(10, 80, 80 / 400.0)] * 6
    confirmed = judge.confirmed(stack, Confirmation((Block(10, 80, 80 / 800.0),) * 6, tuple(slowed), stack.result))
    assert confirmed.comparison.speedup == pytest.approx(2.0)
    assert confirmed.samples_per_s / confirmed.baseline_samples_per_s == pytest.approx(confirmed.comparison.speedup)
    in_turn = judge.confirmed_by_runs(stack, [result(5.2)], [result(11.0)])
    assert in_turn.samples_per_s / in_turn.baseline_samples_per_s == pytest.approx(in_turn.comparison.speedup)


def test_what_drifted_meanwhile_is_not_called_slower(judge):
    """A machine that became a fifth slower makes every later trial look slow; the repeated baseline shows that."""
    late = judge.record(CANDIDATE, CANDIDATE.settings, result(12.0, seed=1))
    assert late.verdict is Verdict.SLOWER
    judge.add_null(result(12.1, seed=2).blocks)
    assert judge.again(late).verdict is Verdict.NO_DIFFERENCE


# --- close calls: confirmed in turn with the baseline ---------------------------------------------------------


@pytest.mark.parametrize(("step_ms", "close"), [(9.5, True), (10.5, True), (9.97, True), (5.0, False), (20.0, False)])
def test_what_lies_within_reach_of_the_noise_is_a_close_call(judge, step_ms, close):
    record = judge.record(CANDIDATE, CANDIDATE.settings, result(step_ms, seed=1))
    assert judge.is_close_call(record) is close


def test_what_cannot_be_told_from_the_baseline_is_not_asked_again(judge):
    assert not judge.is_close_call(judge.record(CANDIDATE, CANDIDATE.settings, result(10.0, seed=1)))
    assert not judge.is_close_call(judge.record(CANDIDATE, CANDIDATE.settings, TrialResult(Outcome.FAILED, "why")))


def test_runs_in_turn_decide_and_the_trial_that_was_picked_is_left_out(judge):
    lucky = judge.record(CANDIDATE, CANDIDATE.settings, result(9.0, seed=1))
    assert lucky.verdict is Verdict.FASTER
    in_turn = Runs((result(10.0, seed=2), result(10.05, seed=3)), (result(10.0, seed=4), result(10.0, seed=5)))
    confirmed = judge.confirm(lucky, in_turn)
    assert (confirmed.confirmed, confirmed.verdict) == (True, Verdict.NO_DIFFERENCE)
    assert confirmed.comparison.speedup == pytest.approx(1.0, abs=0.01)
    assert len(judge.repeats) == 2
    assert not judge.is_close_call(confirmed)


def test_a_small_true_effect_survives(judge):
    record = judge.record(CANDIDATE, CANDIDATE.settings, result(9.8, seed=1))
    in_turn = Runs((result(9.8, seed=2), result(9.78, seed=3)), (result(10.0, seed=4), result(10.02, seed=5)))
    confirmed = judge.confirm(record, in_turn)
    assert confirmed.verdict is Verdict.FASTER
    assert 1.0 < confirmed.comparison.ci_low <= confirmed.comparison.speedup <= confirmed.comparison.ci_high < 1.04


def test_drift_between_the_pairs_cancels(judge):
    record = judge.record(CANDIDATE, CANDIDATE.settings, result(9.0, seed=1))
    slowed = Runs((result(9.0, seed=2), result(10.8, seed=3)), (result(10.0, seed=4), result(12.0, seed=5)))
    assert judge.confirm(record, slowed).comparison.speedup == pytest.approx(1 / 0.9, rel=0.01)


def test_alternate_blocks_decide_as_well_and_stay_in_force_under_a_new_floor(judge):
    record = judge.record(CANDIDATE, CANDIDATE.settings, result(9.0, seed=1))
    old = result(10.0, seed=4)
    confirmed = judge.confirm(record, Confirmation(result(9.2, seed=2).blocks, old.blocks, result(9.2)))
    assert confirmed.confirmed
    assert confirmed.comparison.speedup == pytest.approx(10 / 9.2, rel=0.01)
    judge.add_null(result(11.5, seed=6).blocks)
    again = judge.again(confirmed)
    assert again.comparison.speedup == confirmed.comparison.speedup
    assert again.confirmed
    # The baseline drifted between trials; the blocks in turn were quiet, and their own noise decides.
    assert again.comparison.noise_floor < 0.05 < judge.noise_floor
    assert again.verdict is Verdict.FASTER


def test_a_repeat_that_stands_out_alone_widens_what_is_checked_not_the_noise(judge):
    slow = result(15.0, seed=2)
    assert judge.stands_out(slow)
    assert not judge.stands_out(result(10.5, seed=2))
    assert not judge.stands_out(replace(slow, disturbed="somebody else"))
    record = judge.record(CANDIDATE, CANDIDATE.settings, result(7.5, seed=1))
    assert not judge.is_close_call(record)
    judge.add_outlier(slow)
    assert judge.is_close_call(record)
    assert judge.noise_floor < 0.01


def test_an_empty_stack_is_the_baseline_and_once_as_fast(judge):
    judge.add_repeat(result(14.0, seed=3))
    stack = judge.empty_stack({"a.b": "why"})
    assert (stack.settings, stack.dropped) == ({}, {"a.b": "why"})
    assert (stack.comparison.speedup, stack.comparison.ci_low, stack.comparison.ci_high) == (1.0, 1.0, 1.0)
    assert stack.comparison.verdict is Verdict.NO_DIFFERENCE
    assert stack.samples_per_s == stack.baseline_samples_per_s == judge.baseline_rate
    assert stack.numerics.measured is Numerics.EXACT


RECORDED = json.loads(Path(__file__).with_name("data").joinpath("identical_runs.json").read_text(encoding="utf-8"))


def recorded_runs(workload, start):
    """The runs of a workload in their order in time, from one of them on: as if the session had begun there."""
    runs = [
        TrialResult(Outcome.MEASURED, blocks=tuple(Block(*block) for block in blocks), batch_size=8)
        for blocks in RECORDED[workload]
    ]
    return runs[start:] + runs[:start]


def false_verdicts(runs):
    """Candidates that change nothing, judged as a session does: baseline, control, trials with repeats, close calls."""
    judge = Judge(CATALOG, Mode.TRAIN, runs[0])
    judge.add_control(runs[1])
    records = {}
    for number, run in enumerate(runs[2:], start=2):
        if number % 7 == 1:
            judge.add_repeat(run)
            continue
        candidate = Candidate("autocast", "precision.autocast", f"number {number}")
        records[number] = judge.record(candidate, {}, run)
    following = itertools.cycle(runs)
    for number, record in records.items():
        if judge.is_close_call(judge.again(record)):
            first, second, third, fourth = itertools.islice(following, 4)
            judge.confirm(record, Runs((second, third), (first, fourth)))
        records[number] = judge.again(record)
    final = [judge.again(record).verdict for record in records.values()]
    return len(final), sum(verdict is not Verdict.NO_DIFFERENCE for verdict in final)


@pytest.fixture
def remembered_intervals(monkeypatch):
    """The same runs are compared again and again: each interval, a pure function of them, is computed once."""

    @functools.cache
    def interval(new, old):
        return ratio_interval(new, old)

    for module in ("advisor.experiment.judge", "advisor.stats"):
        monkeypatch.setattr(f"{module}.ratio_interval", lambda new, old: interval(tuple(new), tuple(old)))


@pytest.mark.usefixtures("remembered_intervals")
def test_of_identical_programs_recorded_on_a_gpu_at_most_one_in_a_hundred_is_called_different():
    """112 real runs of seven workloads on an H200, two of them bound by launches on a host with slow minutes."""
    outcomes = [false_verdicts(recorded_runs(workload, start)) for workload in RECORDED for start in range(0, 16, 4)]
    judged, wrong = (sum(column) for column in zip(*outcomes, strict=True))
    assert judged >= 300
    assert wrong <= judged / 100


# --- memory and energy ----------------------------------------------------------------------------------------

MIB = 2**20


def at(memory_mib, *, step_ms=10.0, energy_j=None, seed=1, **changes):
    return result(step_ms, seed=seed, peak_reserved_bytes=memory_mib * MIB, energy_j_per_sample=energy_j, **changes)


@pytest.fixture
def memory_judge():
    """A baseline of 1,030 MiB that inspected the model; later runs of the same settings take 1,000."""
    judge = Judge(CATALOG, Mode.TRAIN, at(1030), goal=Goal(Objective.MEMORY))
    judge.add_control(at(1000, seed=2))
    judge.add_repeat(at(1002, seed=3))
    judge.add_repeat(at(998, seed=4))
    return judge


def test_memory_is_held_against_runs_that_inspected_nothing(memory_judge):
    baseline = memory_judge.baseline_record()
    assert baseline.result.peak_reserved_bytes == 1000 * MIB
    assert baseline.memory_floor == pytest.approx(0.005)  # the smallest floor there is
    assert memory_judge.empty_stack({}).result.peak_reserved_bytes == 1000 * MIB
    assert not memory_judge.yardstick.helps(at(995), memory_judge.compare(at(995)))


def test_identical_runs_that_differ_in_their_peaks_raise_the_floor(memory_judge):
    memory_judge.add_repeat(at(950, seed=5))
    assert memory_judge.baseline_record().memory_floor > 0.07
    assert not memory_judge.yardstick.helps(at(940), memory_judge.compare(at(940)))


def test_a_small_saving_is_a_close_call_and_settled_by_its_largest_peak(memory_judge):
    record = memory_judge.record(CANDIDATE, CANDIDATE.settings, at(970))
    assert memory_judge.is_close_call(record)
    assert not memory_judge.is_close_call(memory_judge.record(CANDIDATE, CANDIDATE.settings, at(700)))
    runs = Runs((at(999, seed=6), at(975, seed=7)), (at(1000, seed=8), at(1001, seed=9)))
    settled = memory_judge.confirm(record, runs)
    assert settled.result.peak_reserved_bytes == 999 * MIB
    assert not memory_judge.yardstick.helps(settled.result, settled.comparison)
    assert memory_judge.again(settled).result.peak_reserved_bytes == 999 * MIB


def test_a_saving_whose_speed_nobody_knows_yet_is_a_close_call(memory_judge):
    blocks = tuple(Block(10, 80, 0.1 * factor) for factor in (0.9, 1.0, 1.1, 1.15, 1.2, 1.3))
    unsure = replace(at(700), blocks=blocks)
    record = memory_judge.record(CANDIDATE, CANDIDATE.settings, unsure)
    assert record.comparison.ci_low < 0.9 < record.comparison.ci_high
    assert memory_judge.is_close_call(record)
    assert not memory_judge.is_close_call(memory_judge.record(CANDIDATE, CANDIDATE.settings, at(700, step_ms=20.0)))


def test_a_confirmed_stack_has_the_largest_of_its_peaks(memory_judge):
    settings = CANDIDATE.settings
    stack = memory_judge.stack(settings, at(700), {})
    beside = Confirmation(stack.result.blocks, memory_judge.baseline.blocks, at(720))
    assert memory_judge.confirmed(stack, beside).result.peak_reserved_bytes == 720 * MIB
    runs = memory_judge.confirmed_by_runs(stack, [at(710), at(690)], [at(1000), at(1000)])
    assert runs.result.peak_reserved_bytes == 710 * MIB


def test_energy_is_the_median_over_runs_and_its_noise_is_theirs():
    judge = Judge(CATALOG, Mode.TRAIN, at(1000, energy_j=1.0), goal=Goal(Objective.ENERGY))
    judge.add_control(at(1000, energy_j=1.02, seed=2))
    assert judge.baseline_record().energy_floor == pytest.approx(1.02**1.5 - 1)
    judge.add_repeat(at(1000, energy_j=1.04, seed=3))
    judge.add_repeat(at(1000, energy_j=1.02, seed=4))
    judge.add_repeat(at(1000, energy_j=5.0, seed=5, disturbed="somebody else"))
    baseline = judge.baseline_record()
    assert baseline.result.energy_j_per_sample == 1.02
    assert baseline.energy_floor < 0.05
    stack = judge.stack({}, at(1000, energy_j=0.5), {})
    runs = judge.confirmed_by_runs(stack, [at(1000, energy_j=0.6), at(1000, energy_j=0.7)], [at(1000, energy_j=1.0)])
    assert runs.result.energy_j_per_sample == 0.6


def test_without_a_counter_there_is_no_energy():
    judge = Judge(CATALOG, Mode.TRAIN, at(1000))
    judge.add_repeat(at(1000, seed=2))
    baseline = judge.baseline_record()
    assert baseline.result.energy_j_per_sample is None
    assert baseline.energy_floor == 0.0
