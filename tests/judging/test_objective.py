"""What is better than what, by each objective: on made-up results, and on any that hypothesis can make up."""

# ruff: noqa: RUF001 - the en dash stands between the ends of an interval

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.judging.judge import BASELINE, Judge
from advisor.judging.objective import SMALLEST_SAVING, Goal, Yardstick
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records.kinds import Mode, Objective, Outcome, Verdict
from advisor.records.trials import BaselineRecord, Block, Comparison, Latency, Score, TrialResult

MIB = 2**20
NOISE = 0.006
WOBBLE = (0.999, 1.0, 1.001, 1.0, 0.9995)

CATALOG = load_catalog()
FIRST, SECOND = Settings({"a.b": 0}), Settings({"a.b": 1})
quick = settings(max_examples=50, deadline=None)

speeds = st.floats(0.2, 5.0)
shares = st.floats(0.2, 5.0)
objectives = st.sampled_from(list(Objective))


def result(speedup=1.0, *, memory=1.0, energy=1.0, batch=10):
    """A trial at a multiple of the baseline's samples per second, peak and energy a sample."""
    blocks = tuple(Block(10, 10 * batch, batch / 10 / speedup * wobble) for wobble in WOBBLE)
    return TrialResult(
        Outcome.MEASURED,
        blocks=blocks,
        peak_reserved_bytes=None if memory is None else round(1000 * MIB * memory),
        energy_j_per_sample=energy,
    )


def compared(speedup, *, half=0.002):
    return Comparison(speedup, speedup * (1 - half), speedup * (1 + half))


def yardstick(objective, *, limit=None, **goal):
    limit_bytes = None if limit is None else round(1000 * MIB * limit)
    return Yardstick(
        Goal(objective, memory_limit_bytes=limit_bytes, **goal),
        BaselineRecord(result(), 100.0, 100.0, half_width=NOISE),
    )


def asked(by, question, speedup=1.0, **changes):
    """The answer to one of the yardstick's questions about a result."""
    return getattr(by, question)(result(speedup, **changes), compared(speedup))


def judged(objective, *figures, limit=None):
    """A judge that knows one run of each of these ``(speed-up, memory, energy)``: of the settings 0, 1, ..."""
    judge = Judge(CATALOG, Mode.TRAIN, result(), goal=yardstick(objective, limit=limit).goal)
    for number, (speedup, memory, energy) in enumerate(figures):
        judge = judge.with_run(Settings({"a.b": number}), result(speedup, memory=memory, energy=energy))
    return judge


def beats(objective, new, old, *, limit=None):
    """Whether a result of ``(speed-up, memory, energy)`` is better than another beyond the noise."""
    return judged(objective, new, old, limit=limit).gain(FIRST, SECOND).low > 1


@given(speeds)
def test_the_gain_in_throughput_is_the_speed_up(speedup):
    gain, comparison = asked(yardstick(Objective.THROUGHPUT), "gain", speedup), compared(speedup)
    assert (gain.ratio, gain.low, gain.high) == (comparison.speedup, comparison.ci_low, comparison.ci_high)
    assert yardstick(Objective.THROUGHPUT).is_better(gain) is (comparison.verdict is Verdict.FASTER)


def test_a_gain_on_a_noisy_machine_has_to_clear_what_a_verdict_has_to():
    """A stack of 1.92x (1.15-3.21) was called faster, and left out of the settings."""
    by, noisy = yardstick(Objective.THROUGHPUT), Comparison(1.92, 1.15, 3.21)
    assert noisy.verdict is Verdict.FASTER
    assert by.helps(result(), noisy)
    assert by.helps(result(), Comparison(1.92, 1.02, 3.21))
    assert not by.helps(result(), Comparison(1.92, 1.005, 3.21))


@given(speeds, st.integers(1, 64))
def test_for_latency_a_larger_batch_is_no_gain(speedup, factor):
    """Twice the samples in twice the time is the same throughput, and a step that is twice as long."""
    by = yardstick(Objective.LATENCY)
    assert by.gain(result(speedup, batch=10 * factor), compared(speedup)).ratio == pytest.approx(speedup / factor)
    assert by.gain(result(speedup), compared(speedup)).ratio == pytest.approx(speedup)


def test_what_is_within_the_noise_of_identical_runs_is_no_gain():
    by = yardstick(Objective.MEMORY)
    assert not asked(by, "helps", memory=1 - SMALLEST_SAVING / 2)
    assert asked(by, "helps", memory=0.95)
    noisy = Yardstick(by.goal, replace(by.baseline, memory_floor=0.1, energy_floor=0.1))
    assert not asked(noisy, "helps", memory=0.95)
    assert not asked(Yardstick(Goal(Objective.ENERGY), noisy.baseline), "helps", energy=0.95)
    assert asked(yardstick(Objective.ENERGY), "helps", energy=0.95)


@pytest.mark.parametrize(
    ("speedup", "half", "helps"),
    [(0.97, 0.01, True), (0.91, 0.005, True), (0.91, 0.02, False), (0.85, 0.01, False), (1.3, 0.3, True)],
)
def test_a_saving_counts_when_the_whole_interval_keeps_the_speed(speedup, half, helps):
    assert yardstick(Objective.MEMORY).helps(result(speedup, memory=0.5), compared(speedup, half=half)) is helps


def test_what_is_faster_in_as_little_memory_helps_too_and_ranks_behind_every_saving():
    by = yardstick(Objective.MEMORY)
    assert asked(by, "helps", 1.5)
    assert not asked(by, "helps", 1.5, memory=1.1)
    assert asked(by, "merit", 0.95, memory=0.9) > asked(by, "merit", 3.0)
    assert asked(by, "merit", 0.95, memory=0.5) > asked(by, "merit", 1.5, memory=0.9)
    assert beats(Objective.MEMORY, (1.5, 1.0, 1), (1.0, 1.0, 1))
    assert not beats(Objective.MEMORY, (1.5, 1.1, 1), (1.0, 1.0, 1))
    assert beats(Objective.MEMORY, (0.95, 0.9, 1), (1.5, 1.0, 1))


@given(objectives, speeds, shares, shares)
def test_nothing_above_the_limit_is_recommended(objective, speedup, memory, energy):
    by = yardstick(objective, limit=0.8)
    if asked(by, "may_recommend", speedup, memory=memory, energy=energy):
        assert by.goal.fits(result(speedup, memory=memory))


def test_where_the_baseline_exceeds_the_limit_less_memory_comes_first():
    by = yardstick(Objective.THROUGHPUT, limit=0.8)
    assert by.too_large
    assert asked(by, "may_recommend", 0.6, memory=0.7)
    assert asked(by, "helps", 0.6, memory=0.9)
    assert not asked(by, "may_recommend", 0.6, memory=0.9)
    assert beats(Objective.THROUGHPUT, (0.6, 0.9, 1), (1.5, 1.0, 1), limit=0.8)
    assert beats(Objective.THROUGHPUT, (0.6, 0.7, 1), (1.5, 0.9, 1), limit=0.8)
    assert not beats(Objective.THROUGHPUT, (0.6, 0.5, 1), (0.7, 0.7, 1), limit=0.8)
    assert asked(by, "merit", 1.2, memory=0.7) > asked(by, "merit", 0.6, memory=0.5)


def calling(p95_ms, speedup=1.0, **changes):
    return replace(result(speedup, **changes), latency=Latency(p95_ms / 2, p95_ms, 2 * p95_ms, 100))


def within(limit_ms, own_ms):
    return Yardstick(Goal(latency_limit_ms=limit_ms), BaselineRecord(calling(own_ms), 100.0, 100.0, half_width=NOISE))


def test_what_exceeds_the_latency_limit_is_not_recommended_however_fast():
    by = within(20.0, 10.0)
    assert by.may_recommend(calling(19.0, 3.0), compared(3.0))
    assert not by.may_recommend(calling(21.0, 3.0), compared(3.0))
    assert by.goal.exceeded(calling(21.0)) == "longer than the latency limit"
    assert by.goal.fits(result()), "a trial without single calls exceeds no latency limit"


def test_a_baseline_beyond_the_latency_limit_is_not_beyond_the_memory_limit():
    by = within(20.0, 30.0)
    assert not by.goal.fits(by.baseline.result)
    assert not by.too_large
    assert by.helps(calling(25.0, 1.2), compared(1.2))
    assert not by.may_recommend(calling(25.0, 1.2), compared(1.2))


@pytest.mark.parametrize(
    ("objective", "new", "old", "better"),
    [
        (Objective.THROUGHPUT, (2.0, 0.9, 0.5), (1.25, 0.5, 0.8), True),
        (Objective.THROUGHPUT, (2.0, 1.1, 0.5), (1.25, 0.9, 0.8), False),  # only the other stays within the limit
        (Objective.THROUGHPUT, (1.1, 0.9, 0.9), (2.0, 1.1, 0.5), True),
        (Objective.THROUGHPUT, (1.1, 1.1, 0.9), (2.0, 1.3, 0.5), True),  # neither does: less memory is better
        (Objective.MEMORY, (1.1, 0.5, 0.9), (2.0, 0.9, 0.5), True),
        (Objective.MEMORY, (2.0, 0.9, 0.5), (1.1, 0.9, 0.9), True),  # as much memory: the faster
        (Objective.ENERGY, (1.1, 0.5, 0.9), (2.0, 0.5, 0.5), False),
    ],
)
def test_what_is_better_follows_from_the_goal(objective, new, old, better):
    judge = judged(objective, new, old, limit=1.0)
    gain = judge.gain(FIRST, SECOND)
    assert (gain.low > 1, gain.high < 1) == (better, not better)
    assert judge.gain(FIRST, FIRST).low <= 1


@quick
@given(objectives, st.sampled_from((None, 0.8)), *[st.tuples(speeds, shares, shares)] * 2)
def test_of_two_at_most_one_beats_the_other(objective, limit, first, second):
    assert not (beats(objective, first, second, limit=limit) and beats(objective, second, first, limit=limit))


@quick
@given(objectives, st.tuples(speeds, shares, shares))
def test_what_helps_beats_the_baseline(objective, new):
    judge, tried = judged(objective, new), FIRST
    if judge.yardstick.helps(judge.result(tried), judge.compare(tried)):
        assert judge.gain(tried, BASELINE).low > 1


@pytest.mark.parametrize(
    ("objective", "measured", "words"),
    [
        (Objective.THROUGHPUT, (1.5, 0.5, 1.0), "1.50x (1.50–1.50)"),
        (Objective.THROUGHPUT, (1.001, 0.5, 1.0), "same"),
        (Objective.MEMORY, (0.97, 0.69, 1.0), "saves 31 % of the memory at 0.970x (0.968–0.972) the speed"),
        (Objective.MEMORY, (1.5, 1.001, 1.0), "1.50x (1.50–1.50) as fast in as much memory"),
        (Objective.ENERGY, (1.5, 1.0, 0.78), "takes 22 % less energy a sample at 1.50x (1.50–1.50) the speed"),
        (Objective.ENERGY, (1.5, 1.0, 1.001), "takes as much energy a sample at 1.50x (1.50–1.50) the speed"),
    ],
)
def test_what_settings_do_is_told_by_the_objective(objective, measured, words):
    speedup, memory, energy = measured
    assert asked(yardstick(objective), "effect", speedup, memory=memory, energy=energy) == words


@pytest.mark.parametrize(
    ("goal", "score", "baseline", "bound"),
    [
        (Goal(min_score=0.75), 0.75, 0.912, ""),
        (Goal(min_score=0.75), 0.64, 0.912, "--min-score is 0.75"),
        (Goal(max_drop=0.005), 0.908, 0.912, ""),
        (Goal(max_drop=0.005), 0.907, 0.912, "--max-drop is 0.5 %"),
        (Goal(max_drop=0.1), -2.15, -2.0, ""),
        (Goal(max_drop=0.1), -2.25, -2.0, "--max-drop is 10 %"),
    ],
)
def test_a_score_is_held_against_the_bounds(goal, score, baseline, bound):
    judged = goal.judged(Score(score), Score(baseline))
    told = f"the score falls from {baseline:.4g} to {score:.4g}; {bound}" if bound else ""
    assert (judged.value, judged.baseline, judged.problem) == (score, baseline, told)
