import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from facts import cpu_facts, gpu_facts, loader_facts, profile_facts
from made_up import result_at

from advisor.judging.judge import BASELINE, CONTROL_SETTINGS, Judge, stack_record, trial_record
from advisor.judging.objective import Goal
from advisor.judging.runs import Turns, prior_spread
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Block, Candidate, Mode, Numerics, Objective, Outcome, TrialResult, Verdict

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
    settings = Settings(candidate.settings)
    return trial_record(judge.with_run(settings, tried), candidate, settings)


def verdict(judge, step_ms, **changes):
    return record(judge, result(step_ms, seed=1, **changes)).verdict


def beside(new_ms, old_ms, drift=(1.0,) * 8):
    """Blocks in turn on a machine whose speed drifts by these factors."""
    new = tuple(Block(10, 80, 0.01 * new_ms * factor) for factor in drift)
    return in_blocks(new, tuple(Block(10, 80, 0.01 * old_ms * factor) for factor in drift))


def in_blocks(new, old):
    return Turns((replace(result(1.0), blocks=new),), (replace(result(1.0), blocks=old),), by_block=True)


# --- verdicts -------------------------------------------------------------------------------------------------


def test_verdicts(judge):
    assert verdict(judge, 5.0) is Verdict.FASTER
    assert verdict(judge, 20.0) is Verdict.SLOWER
    assert verdict(judge, 10.02) is Verdict.UNCLEAR


def test_a_speed_up_is_in_samples_not_steps(judge):
    found = record(judge, result(15.0, samples=16))
    assert found.comparison.speedup == pytest.approx(16 / 12, rel=0.01)
    assert found.verdict is Verdict.FASTER
    assert found.numerics.difference is None


def test_the_same_is_said_once_many_runs_agree(judge):
    for seed in range(3):
        judge = judge.with_run(BASELINE, result(10.0, seed=seed)).with_run(BF16, result(10.02, seed=seed + 5))
    assert judge.compare(BF16).verdict is Verdict.SAME


def test_repeats_that_differ_widen_the_interval_and_join_the_baseline(judge):
    repeated = judge.with_run(BASELINE, result(10.8, seed=3)).with_run(BASELINE, result(10.2, seed=4))
    calm = judge.with_run(BASELINE, result(10.0, seed=3)).with_run(BASELINE, result(10.0, seed=4))
    known = repeated.baseline_record()
    assert known.half_width > 2 * calm.baseline_record().half_width
    assert len(repeated.baseline_runs) == 3
    assert known.step_ms == pytest.approx((10.8 * 10.2 * 10.0) ** (1 / 3), rel=0.01)
    assert repeated.with_run(CONTROL_SETTINGS, result(9.9, seed=5)).apart == pytest.approx(10.8 / 9.9 - 1, abs=0.01)


@pytest.mark.parametrize("prior", [0.01, 0.025, 0.04, 0.05])
@pytest.mark.parametrize("control_ms", [10.0 * 1.27, 10.0 / 1.27])
def test_an_odd_control_neither_erases_a_doubled_speed_nor_makes_one(prior, control_ms):
    """DenseNet-121: a control that was 27 % off made a stack of 2.39x (2.18-2.63) "too noisy to tell"."""
    judge = Judge(CATALOG, Mode.TRAIN, result(10.0), prior=prior).with_run(CONTROL_SETTINGS, result(control_ms, seed=2))
    stack = judge.with_run(BF16, result(10.0 / 2.39, seed=3))
    assert stack.compare(BF16).verdict is Verdict.FASTER
    assert judge.with_run(BF16, result(10.0, seed=3)).compare(BF16).verdict is Verdict.UNCLEAR
    for seed in (4, 5):  # the baseline is run again at once
        stack = stack.with_run(BASELINE, result(10.0, seed=seed))
    assert stack.compare(BF16).ci_low > 1.3
    assert stack.compare(BF16).ci_low < 2.39 * 10.0 / 10.0 < stack.compare(BF16).ci_high


def test_one_odd_repeat_moves_the_baseline_little_and_a_disturbed_one_not_at_all(judge):
    for seed in (2, 3):
        judge = judge.with_run(BASELINE, result(10.0, seed=seed))
    odd = judge.with_run(BASELINE, result(80.0, seed=4))
    assert odd.baseline_record().step_ms == pytest.approx(10.0, rel=0.08)
    assert odd.apart == pytest.approx(7.0, rel=0.02)
    told = judge.with_run(BASELINE, result(80.0, seed=4, disturbed="another process ran"))
    assert told.spread_of({}) == judge.spread_of({})
    assert told.baseline_record().step_ms == pytest.approx(10.0, rel=0.01)


def test_runs_that_nothing_disturbed_count_alone(judge):
    disturbed = judge.with_run(BF16, result(20.0, seed=1, disturbed="another process ran"))
    slowed = disturbed.with_run(BF16, result(5.0))
    assert slowed.compare(BF16).speedup == pytest.approx(2.0, rel=0.02)
    assert slowed.speed(BF16)[0] == pytest.approx(5.0, rel=0.02)
    assert (slowed.result(BF16).disturbed, disturbed.result(BF16).disturbed) == ("", "another process ran")


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.CRASHED, Outcome.TIMED_OUT])
def test_what_was_not_measured_is_failed(judge, outcome):
    failed = judge.with_run(BF16, TrialResult(outcome, "why"))
    found = trial_record(failed, CANDIDATE, BF16)
    assert (found.verdict, found.comparison, found.step_ms) == (Verdict.FAILED, None, None)
    assert stack_record(failed, BF16, {}).comparison is None
    assert failed.has_tried(BF16)
    assert failed.measured_runs(BF16) == ()
    assert failed.gain(BF16, {}).high < 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_that_are_not_finite_fail_a_fast_candidate(judge, bad):
    found = record(judge, result(1.0, losses=(2.3, bad)))
    assert (found.result.outcome, found.verdict) == (Outcome.NON_FINITE, Verdict.FAILED)
    assert found.result.reason == f"the loss became {bad} at step 2 of 2"
    assert (found.numerics.measured, found.numerics.text) == (Numerics.CHANGED, found.result.reason)
    assert found.numerics.worse_than_declared
    stack = stack_record(judge.with_run(BF16, result(1.0, losses=(bad,))), BF16, {})
    assert (stack.result.outcome, stack.numerics.measured) == (Outcome.NON_FINITE, Numerics.CHANGED)


# --- starting -------------------------------------------------------------------------------------------------


def test_a_slow_start_pays_back_after_some_steps(judge):
    def steps_of(run, judge=judge):
        return record(judge, run).break_even_steps

    assert steps_of(result(5.0, warmup_s=10.0, warmup_steps=0)) == pytest.approx(2000, rel=0.02)
    assert steps_of(result(5.0)) == 0
    assert steps_of(result(20.0)) is None
    # A run that was disturbed says nothing of the steps that turns have shown to be faster.
    in_turn = judge.with_turns(BF16, beside(5.0, 10.0))
    assert steps_of(result(20.0, warmup_s=10.0, warmup_steps=0), in_turn) == pytest.approx(2000, rel=0.02)


# --- in turn --------------------------------------------------------------------------------------------------


def test_blocks_in_turn_confirm_a_stack_and_cancel_the_drift_that_both_meet(judge):
    drift = [1 + 0.1 * index for index in range(10)]
    judge = judge.with_run(BF16, result(5.2)).with_turns(BF16, beside(5.0, 10.0, drift))
    stack = stack_record(judge, BF16, {"a.b": "why"})
    assert stack.confirmed
    assert stack.comparison.paired
    assert stack.comparison.speedup == pytest.approx(2.0)
    assert 1.9 < stack.comparison.ci_low < stack.comparison.ci_high < 2.1
    assert stack.dropped == {"a.b": "why"}
    assert stack.step_ms == pytest.approx(5 * 1.45, rel=0.001)
    assert stack.baseline_step_ms == pytest.approx(10 * 1.45, rel=0.001)
    assert stack.samples_per_s / stack.baseline_samples_per_s == pytest.approx(2.0)


def test_one_odd_process_of_the_baseline_confirms_nothing(judge):
    """Its blocks took three times as long as in all its runs, beside a combination as fast as ever."""
    found = judge.with_run(BF16, result(5.2)).with_turns(BF16, beside(5.2, 30.0, (1.0,) * 5))
    assert not stack_record(found, BF16, {}).confirmed
    assert found.compare(BF16).speedup == pytest.approx(10 / 5.2, rel=0.02)


def test_the_times_beside_a_speed_up_agree_with_it_however_the_machine_drifts(judge):
    """Medians of either side would be 5 and 40 ms beside 4x."""
    new_ms, old_ms = (20.0, 5.0, 5.0, 5.0, 10.0), (40.0, 20.0, 15.0, 45.0, 45.0)
    new = tuple(Block(10, 80, 0.01 * step_ms) for step_ms in new_ms)
    old = tuple(Block(10, 80, 0.01 * step_ms) for step_ms in old_ms)
    judge = judge.with_run(BF16, result(1.25)).with_turns(BF16, in_blocks(new, old))
    stack = stack_record(judge, BF16, {})
    assert stack.comparison.speedup == pytest.approx(4.0)
    assert (stack.step_ms, stack.baseline_step_ms) == pytest.approx((5.0, 20.0))
    fused, runs = Settings(FUSED.settings), judge.with_run(BASELINE, result(40.0, seed=3))
    runs = runs.with_run(fused, result(5.0)).with_run(fused, result(20.0, seed=3))
    apart = stack_record(runs, fused, {})
    assert apart.baseline_step_ms / apart.step_ms == pytest.approx(apart.comparison.speedup, rel=0.001)


def test_a_machine_that_slowed_down_until_the_turns_calls_no_trial_slower(judge):
    late = result(14.0, seed=1)
    assert record(judge, late).verdict is Verdict.SLOWER
    seen = judge.with_turns(Settings(FUSED.settings), beside(14.5, 15.0))
    assert record(seen, late).verdict is Verdict.UNCLEAR
    assert seen.apart > 0.4


@pytest.mark.parametrize(
    ("crowded", "ratio", "confirmed"),
    [(False, 1.0, True), (False, 1.12, True), (True, 1.0, False), (True, 1.12, False), (True, 1.3, True)],
)
def test_beside_other_programs_only_an_interval_above_1_1_is_confirmed(crowded, ratio, confirmed):
    judge = Judge(CATALOG, Mode.TRAIN, result(10.0), crowded=crowded)
    judge = judge.with_run(BF16, result(10.0)).with_turns(BF16, beside(10.0 / ratio, 10.0))
    stack = stack_record(judge, BF16, {})
    assert (stack.confirmed, stack.comparison.paired) == (confirmed, True)


def test_a_baseline_that_was_always_disturbed_is_one_on_a_busy_machine():
    company = {"disturbed": "another process used up to 40 % of the GPU"}
    judge = Judge(CATALOG, Mode.TRAIN, result(10.0, **company))
    assert judge.is_busy
    assert judge.with_run(BASELINE, result(10.0, **company)).is_busy
    assert not judge.with_run(BASELINE, result(10.0)).is_busy


@pytest.mark.parametrize("seed", range(10))
def test_a_machine_whose_runs_differ_by_a_fifth_still_tells_a_stack_of_1_8(seed):
    """The demo on a busy machine of two cores: three runs of the baseline, then turns whose blocks scatter as well."""
    draw = random.Random(seed)
    first, second, third = (result(10.0 * math.exp(draw.gauss(0.0, 0.2)), seed=seed) for _ in range(3))
    judge = Judge(CATALOG, Mode.TRAIN, first, prior=0.03).with_run(CONTROL_SETTINGS, second).with_run(BASELINE, third)
    drift = [math.exp(draw.gauss(0.0, 0.2)) for _ in range(8)]
    [new], [old] = beside(10.0 / 1.8, 10.0, drift).new, beside(10.0 / 1.8, 10.0, drift).old
    scattered = tuple(replace(block, seconds=block.seconds * math.exp(draw.gauss(0.0, 0.1))) for block in new.blocks)
    judge = judge.with_run(BF16, result(5.6)).with_turns(BF16, in_blocks(scattered, old.blocks))
    assert stack_record(judge, BF16, {}).verdict is Verdict.FASTER


def test_whole_runs_in_turn_confirm_by_those_that_chose_nothing(judge):
    ran = judge.with_run(BF16, result(4.8, seed=1))
    assert not stack_record(ran, BF16, {}).confirmed
    new, old = [result(5.2, seed=2), result(5.1, seed=3)], [result(10.4, seed=12), result(10.2, seed=13)]
    for one, other in zip(new, old, strict=True):
        ran = ran.with_run(BF16, one).with_run(BASELINE, other).with_turns(BF16, Turns((one,), (other,)))
    stack = stack_record(ran, BF16, {})
    assert (stack.confirmed, stack.comparison.paired) == (True, True)
    assert stack.comparison.speedup == pytest.approx(2.0, rel=0.01), "the run by which it was chosen was luckier"
    assert stack.samples_per_s / stack.baseline_samples_per_s == pytest.approx(stack.comparison.speedup, rel=0.005)
    assert stack.baseline_step_ms / stack.step_ms == pytest.approx(stack.comparison.speedup, rel=0.005)
    assert stack.comparison.ci_low > 1.8
    assert len(ran.in_turn[Settings(BF16)].new) == 2


def test_what_was_chosen_has_an_interval_of_99_per_cent_and_what_took_turns_one_of_95(judge):
    ran = judge.with_run(BF16, result(5.0, seed=1)).with_run(BASELINE, result(10.0, seed=2))
    turns = Turns(ran.measured_runs(BF16), ran.baseline_runs)
    chosen, measured = ran.compare(BF16), ran.with_turns(BF16, turns).compare(BF16)
    widths = [math.log(comparison.ci_high / comparison.ci_low) for comparison in (chosen, measured)]
    assert widths[0] / widths[1] == pytest.approx(4.032 / 2.571, rel=0.01)  # Student's t with five degrees of freedom


def test_the_stack_has_the_phases_that_one_of_its_trials_timed(judge):
    timed = replace(result(5.2, seed=2), phases={"data wait": 0.1, "captured step": 5.1})
    ran = judge.with_run(BF16, result(5.0, seed=1))
    assert stack_record(ran, BF16, {}).result.phases == {}
    assert stack_record(ran.with_run(BF16, timed).with_run(BF16, result(5.1)), BF16, {}).result.phases == timed.phases
    in_turn = beside(5.0, 10.0)
    in_turn = replace(in_turn, new=(replace(in_turn.new[0], phases=timed.phases),))
    assert stack_record(ran.with_turns(BF16, in_turn), BF16, {}).result.phases == timed.phases


# --- one combination against another --------------------------------------------------------------------------


def test_a_contribution_is_the_ratio_of_the_two_combinations(judge):
    whole = BF16.merged(FUSED.settings)
    judge = judge.with_run(BF16, result(5.0, seed=1)).with_run(whole, result(4.0, seed=2))
    found = trial_record(judge, FUSED, whole, judge.compare(whole, BF16))
    assert found.contribution.speedup == pytest.approx(1.25, rel=0.01)
    assert found.comparison.speedup == pytest.approx(2.5, rel=0.01)
    assert found.own_effect == found.contribution
    assert found.verdict is Verdict.FASTER


def test_an_empty_stack_is_the_baseline_and_once_as_fast(judge):
    judge = judge.with_run(BASELINE, result(14.0, seed=3))
    stack = stack_record(judge, BASELINE, {"a.b": "why"})
    assert (stack.settings, stack.dropped) == ({}, {"a.b": "why"})
    assert (stack.comparison.speedup, stack.comparison.ci_low, stack.comparison.ci_high) == (1.0, 1.0, 1.0)
    assert stack.comparison.verdict is Verdict.SAME
    assert stack.samples_per_s == stack.baseline_samples_per_s == judge.speed(BASELINE)[1]
    assert stack.numerics.measured is Numerics.EXACT


def test_turns_with_one_odd_run_of_the_baseline_confirm_nothing(judge):
    """It counts as one run of the baseline among others, until a second one was timed in turn."""
    for seed in range(3):
        judge = judge.with_run(BASELINE, result(10.0, seed=seed))
    new, odd, usual = result(1.0, seed=5), result(20.0, seed=6), result(10.0, seed=7)
    once = judge.with_run(BF16, new).with_run(BASELINE, odd).with_turns(BF16, Turns((new,), (odd,)))
    assert not once.took_turns(BF16)
    assert not once.compare(BF16).paired
    assert once.compare(BF16).speedup < 12
    again = once.with_run(BF16, new).with_run(BASELINE, usual).with_turns(BF16, Turns((new,), (usual,)))
    assert again.took_turns(BF16)
    assert again.compare(BF16).paired


# --- noise between processes ----------------------------------------------------------------------------------


def test_more_noise_is_expected_where_the_host_or_a_loader_sets_the_pace():
    quiet = prior_spread(gpu_facts(profile=profile_facts(device_busy_share=0.95)))
    by_host = prior_spread(gpu_facts(profile=profile_facts(device_busy_share=0.4)))
    fed = prior_spread(gpu_facts(loader=loader_facts()))
    in_time = prior_spread(gpu_facts(loader=loader_facts(), profile=profile_facts(device_busy_share=0.95)))
    late = prior_spread(gpu_facts(loader=loader_facts(), profile=profile_facts(device_busy_share=0.4)))
    assert quiet < in_time < by_host < late == fed
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
    judge = Judge(CATALOG, Mode.TRAIN, runs[0]).with_run(CONTROL_SETTINGS, runs[1])
    tried = []
    for number, run in enumerate(runs[2:]):
        settings = BASELINE if number in (3, 8) else Settings({"made.up": number})
        judge = judge.with_run(settings, run)
        tried += [settings] if settings else []
    verdicts = [judge.compare(settings).verdict for settings in tried]
    return len(verdicts), sum(told.is_change for told in verdicts)


def test_of_identical_programs_recorded_on_a_gpu_at_most_one_in_a_hundred_is_called_different():
    """112 real runs of seven workloads on an H200, two of them bound by launches on a host with slow minutes."""
    outcomes = [false_verdicts(recorded_runs(workload, start)) for workload in RECORDED for start in range(0, 16, 4)]
    judged, wrong = (sum(column) for column in zip(*outcomes, strict=True))
    assert judged >= 300
    assert wrong <= judged / 100


MIB = 2**20


def at(memory_mib, *, energy_j=None, **changes):
    return result_at(1.0, peak_reserved_bytes=memory_mib * MIB, energy_j_per_sample=energy_j, **changes)


@pytest.fixture
def memory_judge():
    """A baseline of 1,030 MiB that inspected the model; later runs of the same settings take 1,000."""
    judge = Judge(CATALOG, Mode.TRAIN, at(1030), goal=Goal(Objective.MEMORY)).with_run(CONTROL_SETTINGS, at(1000))
    return judge.with_run(BASELINE, at(1002)).with_run(BASELINE, at(998))


def helps(judge, tried):
    judge = judge.with_run(BF16, tried)
    return judge.yardstick.helps(judge.result(BF16), judge.compare(BF16))


def test_memory_is_held_against_runs_that_inspected_nothing(memory_judge):
    baseline = memory_judge.baseline_record()
    assert baseline.result.peak_reserved_bytes == 1000 * MIB
    assert baseline.memory_floor == pytest.approx(0.004, abs=1e-4)
    assert stack_record(memory_judge, BASELINE, {}).result.peak_reserved_bytes == 1000 * MIB
    assert not helps(memory_judge, at(995))
    assert helps(memory_judge, at(940))


def test_identical_runs_that_differ_in_their_peaks_raise_the_floor(memory_judge):
    wide = memory_judge.with_run(BASELINE, at(930))
    assert wide.baseline_record().memory_floor > 0.07
    assert not helps(wide, at(940))


def test_energy_is_the_median_over_runs_and_its_noise_is_theirs():
    judge = Judge(CATALOG, Mode.TRAIN, at(1000, energy_j=1.0), goal=Goal(Objective.ENERGY))
    judge = judge.with_run(CONTROL_SETTINGS, at(1000, energy_j=1.02))
    for energy_j, why in [(1.04, ""), (1.02, ""), (5.0, "somebody else")]:
        judge = judge.with_run(BASELINE, at(1000, energy_j=energy_j, disturbed=why))
    baseline = judge.baseline_record()
    assert baseline.result.energy_j_per_sample == 1.02
    assert 0.01 < baseline.energy_floor < 0.05
    for energy_j in (0.5, 0.6, 0.7):
        judge = judge.with_run(BF16, at(1000, energy_j=energy_j))
    assert stack_record(judge, BF16, {}).result.energy_j_per_sample == 0.6
    assert judge.gain(BF16, BASELINE).ratio == pytest.approx(1.02 / 0.6)
