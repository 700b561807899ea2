"""A baseline for which the budget has no time: it is not run again, and the reason is told."""

import time
from types import SimpleNamespace

import pytest
from fake_trials import FakeRun
from made_up import failed

from advisor.records import Block, Outcome, TargetSpec, TrialSpec
from advisor.trial.main import Stages

SLOW = "one step takes about 4 s: measuring the baseline alone needs 49 s, more than the 20 s that the budget leaves"


def test_steps_too_slow_for_the_budget_end_the_session_with_that_reason(tmp_path):
    asked = []

    def too_slow(settings):
        asked.append(settings)
        return failed(SLOW, Outcome.TIMED_OUT)

    run = FakeRun(tmp_path, too_slow).run()
    assert run.state.failure.message == f"the baseline could not be measured: {SLOW}"
    assert len(asked) == 1


@pytest.mark.parametrize(("left_s", "timed"), [(3.0, False), (60.0, True)])
def test_phases_are_not_timed_where_the_time_out_would_lose_what_was_measured(left_s, timed, tmp_path):
    spec = TrialSpec("baseline", TargetSpec("m.py:build", str(tmp_path), device="cpu"), {}, 1, 1, 60, "")
    trial = Stages(spec, SimpleNamespace(), None, lambda: None, time.monotonic() + left_s)
    assert trial._may_time_phases([Block(1, 8, 2.0)]) is timed
