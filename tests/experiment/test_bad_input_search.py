"""Sessions on bad input, with fake trials: each ends in time, names the problem, and keeps the best so far."""

from dataclasses import replace

import pytest
from fake_trials import FakeRun, FakeTrials
from made_up import failed, result_at
from planted import pauses_removed, plant, plant_removers

from advisor.experiment import events
from advisor.recipe.settings import Settings
from advisor.records import Outcome, Verdict
from advisor.report.rows import ranking
from advisor.report.verdict import result_line, verdict
from advisor.tui.views.headline import headline

pytestmark = pytest.mark.usefixtures("own_state")
BEST = {"planted.first": True, "planted.second": True}
LATE_S = 2.0  # a session ends that soon after its budget


def planted(folder, recipe_id, speed, *, expensive=False, usual=False, **options):
    """A session with two recipes that an expert would use, `first` and `second`, and this one."""
    plant_removers(folder / "recipes", usual=True, first="EXACT", second="EXACT")
    plant(folder / "recipes", recipe_id, stage="OPTIMIZER", expensive=expensive, usual=usual)
    return FakeRun(folder, speed, only=("first", "second", recipe_id), **options)


def with_fault(key, fault):
    """Trials whose speed depends on the removed pauses, unless a setting has a planted fault."""

    def speed(settings):
        return fault(pauses_removed(settings)) if key in settings else pauses_removed(settings)

    return speed


def ended_well(run):
    """Check that the session ended well and in time, with the helpful settings in its stack."""
    assert run.state.failure is None, run.posted(events.SessionFailed)
    assert run.state.stack_settings == BEST
    assert run.state.finished.session_s <= run.request.budget_s + LATE_S


def warnings(run):
    return [event.text for event in run.posted(events.Said) if event.severity == "warning"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("RuntimeError: no such trick", "RuntimeError: no such trick"),
        (replace(result_at(2.0), losses=(9.0, 9.0)), "the numerics are changed: the losses differ by "),
        (failed("no result after 2 s (measuring)", Outcome.TIMED_OUT), "no result after 2 s (measuring)"),
    ],
)
def test_where_only_a_stack_had_time_and_could_not_be_used_its_parts_have_the_reason(tmp_path, fault, reason):
    for recipe in ("one", "two"):
        plant(tmp_path / "recipes", recipe, usual=True)
    run = FakeRun(tmp_path, lambda settings: fault if settings else 1.0, only=("one", "two"), budget_s=4.0).run()
    assert run.order == ["baseline", f"combination: {Settings({'planted.one': True, 'planted.two': True})}"]
    told = "nothing that was tried could be used"
    assert f": {told}. 2 candidates could not be tried, with the reasons below." in verdict(run.state)
    shown = "\n".join(line.plain for line in headline(run.state, ranking(run.state)).lines)
    assert f": {told}." in shown
    assert "2 not tried (out of time). R tries them" in shown
    assert result_line(run.state).endswith(told)
    for record in run.state.trials.values():
        assert record.result.reason.startswith(f"it could not be used beside others: {reason}")
    over = any("left no time for a result; give it --budget 1m or more" in text for text in warnings(run))
    assert over is ("no result" in reason)
    assert not any("the baseline and its preparation took" in text for text in warnings(run))


def test_a_first_step_that_is_ten_times_slower_is_a_cost_and_no_fault(tmp_path):
    slow_start = with_fault("planted.slow_start", lambda speedup: result_at(speedup, warmup_s=1.0, warmup_steps=1))
    run = planted(tmp_path, "slow_start", slow_start, usual=True)
    run.run_until(lambda event: isinstance(event, events.StackMeasured))
    stack = run.state.stack
    assert stack.settings == {**BEST, "planted.slow_start": True}
    assert stack.comparison.speedup == pytest.approx(31 / 11)
    saved_s = 0.1 - 0.1 * 11 / 31
    assert stack.break_even_steps == pytest.approx(1.0 / saved_s, abs=2)


def test_a_target_that_takes_longer_to_build_than_the_budget_is_built_once_and_nothing_is_denied(tmp_path):
    trials = FakeTrials(pauses_removed, build_s=4.0)
    run = FakeRun(tmp_path, pauses_removed, trials=trials, only=("zero_grad",), budget_s=3.0).run()
    assert run.state.failure is None
    assert run.order == ["baseline"]
    assert {record.verdict for record in run.state.trials.values()} == {Verdict.SKIPPED}
    (warning,) = warnings(run)
    assert "left no time for a result" in warning
    shown = "\n".join(line.plain for line in headline(run.state, ranking(run.state)).lines)
    for advice in (verdict(run.state), shown):
        assert "no candidate was tried" in advice.lower()
        assert "measurably" not in advice


@pytest.mark.parametrize(("budget_s", "told"), [(5.0, "measured once"), (8.0, "confirmed")])
def test_seconds_are_enough_for_the_stack(tmp_path, budget_s, told):
    run = planted(tmp_path, "nothing", pauses_removed, budget_s=budget_s).run()
    ended_well(run)
    assert run.order[1] == f"combination: {Settings(BEST)}"
    assert told in verdict(run.state)


@pytest.mark.parametrize(("budget_s", "part_s"), [(200.0, 60.0), (45.0, 20.0)])
def test_a_recipe_that_hangs_takes_no_more_than_its_part(tmp_path, budget_s, part_s):
    """The limit is a few times a trial's duration plus a tenth of the budget."""
    hung = failed("no result (applying the settings)", Outcome.TIMED_OUT)
    run = planted(tmp_path, "hanging", with_fault("planted.hanging", lambda _: hung), budget_s=budget_s).run()
    ended_well(run)
    assert next(event for event in run.posted(events.TrialStarted) if event.name == "hanging=true").expected_s < 5.0
    assert run.state.trials["hanging=true"].result.outcome is Outcome.TIMED_OUT
    assert run.state.trials["hanging=true"].result.wall_s < part_s
    assert run.state.stack.confirmed


@pytest.mark.usefixtures("compilers")
def test_a_compilation_that_hangs_does_not_take_the_time_of_all_others(tmp_path):
    hung = failed("no result (compiling)", Outcome.TIMED_OUT)
    plant_removers(tmp_path / "recipes", usual=True, first="EXACT", second="EXACT")
    speed = with_fault("compile.mode", lambda _: hung)
    run = FakeRun(tmp_path, speed, only=("first", "second", "compile"), budget_s=120.0).run()
    ended_well(run)
    compiled = Settings({**BEST, "compile.mode": "default"})
    assert run.started.index(f"combination: {Settings(BEST)}") < run.started.index(f"combination: {compiled}")
    told = [text for text in warnings(run) if text.startswith("there was too little time for these together: ")]
    assert told[0] == f"there was too little time for these together: {compiled}: no result (compiling); raise --budget"
    assert not run.state.trials["compile=default"].result.measured


def test_a_baseline_that_fails_when_it_is_measured_again_is_told(tmp_path):
    """For example, a target can be built only once, and the trial in turn with the baseline builds it again."""

    class BuiltOnce(FakeTrials):
        def open(self, spec, listen):
            if spec.trial_id.startswith("baseline, in turns"):
                self.speed = lambda settings: pauses_removed(settings) if settings else "the port is taken"
            return super().open(spec, listen)

    trials = BuiltOnce(pauses_removed)
    plant_removers(tmp_path / "recipes", usual=True, first="EXACT", second="EXACT")
    run = FakeRun(tmp_path, pauses_removed, trials=trials, only=("first", "second"), budget_s=60.0).run()
    ended_well(run)
    assert not run.state.stack.confirmed
    assert run.started.count("combination, in turns") == 1
    (warning,) = warnings(run)
    assert warning.startswith("your own settings failed when they were measured again: the port is taken")
    assert "make sure that the target can be built and run more than once" in warning
