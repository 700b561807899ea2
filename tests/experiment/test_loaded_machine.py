"""Sessions on a machine whose cores others want for seconds at a time: the load falls on whatever runs then."""

import random
from contextlib import contextmanager
from dataclasses import replace

import pytest
from fake_trials import FakeRun, FakeTrials
from made_up import product

from advisor.recipe.settings import Settings
from advisor.records import BlockDone
from advisor.report.conclusions import candidates_tried, settings_to_export

HELPS = product(channels_last=1.25, autocast=1.28)
LEVELS = (1.0, 1.3, 1.8, 2.5)


class LoadedTrials(FakeTrials):
    """Trials whose blocks take longer while others compute: of one length for some seconds, then of another."""

    def __init__(self, speed, seed):
        super().__init__(speed, trial_s=2.5, build_s=5.0)
        self.draw, self.level, self.until_s = random.Random(seed), 1.0, 0.0

    def slowed(self, block):
        while self.until_s <= self.now_s:
            self.level, self.until_s = self.draw.choice(LEVELS), self.until_s + self.draw.uniform(1.0, 8.0)
        return replace(block, seconds=block.seconds * self.level * self.draw.lognormvariate(0.0, 0.05))

    @contextmanager
    def open(self, spec, listen):
        with super().open(spec, listen) as trial:
            quiet_block, quiet_result = trial.measure_block, trial._measure

            def measure_block(seconds):
                done = quiet_block(seconds)
                return BlockDone(self.slowed(done.block)) if isinstance(done, BlockDone) else done

            def measure():
                result = quiet_result()
                return replace(result, blocks=tuple(map(self.slowed, result.blocks)))

            trial.measure_block, trial._measure = measure_block, measure
            yield trial
            del trial.measure_block, trial._measure  # they hold the trial, and through it the session with its journal


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_a_stack_is_confirmed_with_its_interval_under_load(tmp_path, seed):
    state = FakeRun(tmp_path, HELPS, trials=LoadedTrials(HELPS, seed), budget_s=90.0).run().state
    stack = state.stack
    assert stack.confirmed
    assert settings_to_export(state) == dict(stack.settings)
    assert stack.comparison.ci_low <= HELPS(Settings(stack.settings)) <= stack.comparison.ci_high
    assert len([record for record in candidates_tried(state) if record.result.measured]) >= 6


class SlowedTrials(LoadedTrials):
    """Whole trials take longer, too: imports, the first steps and the warm-up wait for the cores as well."""

    @property
    def trial_s(self):
        return self.draw.choice((4.0, 5.0, 6.0, 8.0, 10.0)) if self.now_s else 5.0

    @trial_s.setter
    def trial_s(self, seconds):
        assert seconds


@pytest.mark.parametrize("seed", [0, 3, 5, 9])
def test_trials_that_overrun_leave_the_turns_their_time(tmp_path, seed):
    """Repeats that took half as long again as expected left no time for the turns, and the stack unconfirmed."""
    state = FakeRun(tmp_path, HELPS, trials=SlowedTrials(HELPS, seed), budget_s=90.0).run().state
    assert state.stack.confirmed


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
def test_nothing_is_exported_under_load_where_nothing_helps(tmp_path, seed):
    nothing = product()
    state = FakeRun(tmp_path, nothing, trials=LoadedTrials(nothing, seed), budget_s=90.0).run().state
    assert settings_to_export(state) == {}
