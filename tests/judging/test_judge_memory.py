"""Verdicts by memory and by energy: which runs count, and how noisy they are."""

import pytest
from made_up import result_at

from advisor.judging.judge import Judge
from advisor.judging.objective import Goal
from advisor.judging.records import stack_record
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Mode, Objective

CATALOG = load_catalog()
CANDIDATE = Candidate("autocast", "precision.autocast", "bfloat16")
BF16 = Settings(CANDIDATE.settings)
MIB = 2**20


def at(memory_mib, *, energy_j=None, **changes):
    return result_at(1.0, peak_reserved_bytes=memory_mib * MIB, energy_j_per_sample=energy_j, **changes)


@pytest.fixture
def memory_judge():
    """A baseline of 1,030 MiB that inspected the model; later runs of the same settings take 1,000."""
    judge = Judge(CATALOG, Mode.TRAIN, at(1030), goal=Goal(Objective.MEMORY)).with_control(at(1000))
    return judge.with_run({}, at(1002)).with_run({}, at(998))


def helps(judge, tried):
    judge = judge.with_run(BF16, tried)
    return judge.yardstick.helps(judge.result(BF16), judge.compare(BF16))


def test_memory_is_held_against_runs_that_inspected_nothing(memory_judge):
    baseline = memory_judge.baseline_record()
    assert baseline.result.peak_reserved_bytes == 1000 * MIB
    assert baseline.memory_floor == pytest.approx(0.004, abs=1e-4)
    assert stack_record(memory_judge, {}, {}).result.peak_reserved_bytes == 1000 * MIB
    assert not helps(memory_judge, at(995))
    assert helps(memory_judge, at(940))


def test_identical_runs_that_differ_in_their_peaks_raise_the_floor(memory_judge):
    wide = memory_judge.with_run({}, at(930))
    assert wide.baseline_record().memory_floor > 0.07
    assert not helps(wide, at(940))


def test_energy_is_the_median_over_runs_and_its_noise_is_theirs():
    judge = Judge(CATALOG, Mode.TRAIN, at(1000, energy_j=1.0), goal=Goal(Objective.ENERGY))
    judge = judge.with_control(at(1000, energy_j=1.02))
    for energy_j, why in [(1.04, ""), (1.02, ""), (5.0, "somebody else")]:
        judge = judge.with_run({}, at(1000, energy_j=energy_j, disturbed=why))
    baseline = judge.baseline_record()
    assert baseline.result.energy_j_per_sample == 1.02
    assert 0.01 < baseline.energy_floor < 0.05
    for energy_j in (0.5, 0.6, 0.7):
        judge = judge.with_run(BF16, at(1000, energy_j=energy_j))
    assert stack_record(judge, BF16, {}).result.energy_j_per_sample == 0.6
    assert judge.gain(BF16, {}).ratio == pytest.approx(1.02 / 0.6)
