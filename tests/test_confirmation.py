"""How long baseline and settings are measured in turns: real trials, and a clock that what they time moves on."""

from __future__ import annotations

import pytest
from planted import TINY_TARGET

from advisor.experiment import bench as benches
from advisor.experiment.budget import Budget
from advisor.experiment.confirmation import FEWEST_PAIRS, MOST_PAIRS, confirm_in_turn, confirm_side_by_side
from advisor.experiment.events import TrialActivity, TrialStarted
from advisor.experiment.journal import Journal
from advisor.experiment.request import Request
from advisor.records import BlockDone, TargetSpec
from advisor.runner import Runner

pytestmark = pytest.mark.usefixtures("real_sessions")
SETTINGS = {"control.noop": True}
BLOCK_S = 2.0  # far longer than was asked for, as where a block holds whole epochs
TRIAL_S = 10.0


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Bench(benches.Bench):
    """Its budget is spent by blocks and by whole trials, by nothing else."""

    def __init__(self, folder, total_s):
        (folder / "target.py").write_text(TINY_TARGET, encoding="utf-8")
        request = Request(TargetSpec("target.py", str(folder), device="cpu"), budget_s=total_s)
        self.clock, self.asked = Clock(), []
        journal = Journal(folder / "session.jsonl", request)
        super().__init__(request, Runner(), Budget(total_s, self.clock), journal, self.hear)

    def hear(self, event):
        if isinstance(event, TrialStarted):
            self.asked.append(event.name)
        elif isinstance(event, TrialActivity) and event.text == "measuring":
            self.clock.now += TRIAL_S

    def listener(self, spec):
        told = super().listener(spec)

        def listen(message):
            if isinstance(message, BlockDone):
                self.clock.now += BLOCK_S
            told(message)

        return listen


@pytest.mark.parametrize(
    ("total_s", "pairs"),
    [(0.9 * BLOCK_S, FEWEST_PAIRS), (13.5 * BLOCK_S, 6), (2.5 * MOST_PAIRS * BLOCK_S, MOST_PAIRS)],
    ids=["no time", "some time", "time for all"],
)
def test_blocks_take_turns_while_another_pair_as_long_as_the_last_fits(tmp_path, total_s, pairs):
    bench = Bench(tmp_path, total_s)
    confirmation = confirm_side_by_side(bench, SETTINGS)
    assert len(confirmation.new) == len(confirmation.old) == pairs
    assert confirmation.result.blocks == confirmation.new


@pytest.mark.parametrize(
    ("total_s", "pairs"), [(0.5 * TRIAL_S, 1), (4.5 * TRIAL_S, 2)], ids=["no time", "time for two"]
)
def test_whole_trials_take_turns_while_another_pair_as_long_as_the_last_fits(tmp_path, total_s, pairs):
    bench = Bench(tmp_path, total_s)
    runs = confirm_in_turn(bench, SETTINGS, 0.0)
    assert len(runs.new) == len(runs.old) == pairs
    old, new = "baseline, beside stack", "stack, confirmed"
    assert bench.asked == [old, new, new, old][: 2 * pairs]
