"""Sessions on fake trials that end early, are resumed or have another goal; requests that are continued."""

from dataclasses import replace

import pytest
from facts import cpu_facts
from fake_trials import THREE, FakeRun, FakeTrials, three_removers
from made_up import MIB, reporter_to, result_at
from planted import pauses_removed, plant

from advisor.errors import AdvisorError, ExitCode
from advisor.experiment import events
from advisor.experiment.past.journal import open_session
from advisor.experiment.request import Request
from advisor.experiment.state import SessionState
from advisor.records import Objective, Place, TargetSpec, Verdict
from advisor.runner.builder import NOT_IMPORTED

pytestmark = pytest.mark.usefixtures("own_state")
STACK = {f"planted.{recipe_id}": True for recipe_id in THREE}


def trial_behind(kind):
    """Matches the first trial that starts behind an event of a kind."""
    seen = []

    def matches(event):
        seen.append(type(event))
        return kind in seen and isinstance(event, events.TrialStarted)

    return matches


class SlowDisk(FakeTrials):
    """PyTorch is not imported before the budget is spent."""

    def build_once(self, target, seed, log_path, timeout_s, within_s=0.0):
        self.now_s += within_s
        return NOT_IMPORTED


def test_a_budget_shorter_than_the_import_of_pytorch_ends_with_what_to_do(tmp_path):
    run = FakeRun(tmp_path, pauses_removed, trials=SlowDisk(pauses_removed), budget_s=90.0).run()
    (failure,) = run.posted(events.SessionFailed)
    assert failure.message == "importing PyTorch takes more than 90 s, as from a slow network disk."
    assert "--budget 6m" in failure.hint
    assert not run.started


@pytest.mark.parametrize("after", [events.StageStarted, events.TrialMeasured])
def test_a_session_is_cancelled_during_a_trial(tmp_path, after):
    run = three_removers(tmp_path).run_until(trial_behind(after))
    assert run.told[-1].cancelled
    assert not run.posted(events.SessionFailed)
    past = open_session(run.journal.session_id)
    assert past.events[-1] == run.told[-1]
    measured = {f"{recipe_id}=true" for recipe_id in THREE} if after is events.TrialMeasured else set()
    assert set(SessionState.of(past.events).trials) == measured


def test_a_session_resumes_behind_a_cut_line(tmp_path):
    whole = three_removers(tmp_path).run()
    lines = whole.journal.path.read_text().splitlines(keepends=True)
    measured = [place for place, line in enumerate(lines) if '"TrialMeasured"' in line]
    kept = "".join(lines[: measured[3] + 1])  # those of the stack and the control
    path = whole.journal.path.with_name("19990101-000000.jsonl")
    path.write_text(kept + lines[measured[3] + 1][:25], encoding="utf-8")
    past = open_session("1999")
    before = {event.name for event in past.events if isinstance(event, events.TrialStarted)} - {"baseline"}
    assert len(before) > 1
    run = three_removers(tmp_path, past=past).run()
    assert not run.posted(events.SessionFailed)
    assert not before & set(run.started)
    assert set(run.state.trials) == set(whole.state.trials)
    assert run.state.stack_settings == STACK
    told = SessionState.of(open_session("1999").events)
    assert told.trials == run.state.trials
    assert told.finished is not None


def test_nothing_at_all_to_try(tmp_path):
    run = FakeRun(tmp_path, pauses_removed, only=("step_graph",)).run()
    assert run.state.failure is None
    assert run.state.planned == ()
    assert run.state.stack_settings == {}
    [told] = [said.text for said in run.posted(events.Said) if said.text.startswith("no recipe that --only names")]
    assert told == (
        "no recipe that --only names can be tried (step_graph: needs a CUDA GPU; this session runs on the CPU): "
        "name others, or leave --only out"
    )


def test_a_baseline_whose_loss_is_not_finite_is_pointed_out(tmp_path):
    run = FakeRun(tmp_path, lambda _: result_at(1.0, losses=(float("nan"),)), only=("zero_grad",)).run()
    warnings = [event.text for event in run.posted(events.Said) if event.severity == "warning"]
    assert any("not finite" in warning for warning in warnings)
    assert run.state.stack_settings == {}


def heavy(folder, *recipe_ids, **options):
    """A session in which `lighter` takes half the memory, and `crawling` a tenth of it at a quarter of the speed."""

    def speed(settings):
        if "planted.crawling" in settings:
            return result_at(0.25, memory=0.1)
        return result_at(1.0, memory=0.5 if "planted.lighter" in settings else 1.0)

    for recipe_id in ("lighter", "crawling"):
        plant(folder / "recipes", recipe_id)
    return FakeRun(folder, speed, only=recipe_ids, budget_s=60.0, **options).run()


def test_a_memory_limit_below_the_baseline_is_met_first(tmp_path):
    run = heavy(tmp_path, "crawling", memory_limit_bytes=500 * MIB)
    assert run.state.stack_settings == {"planted.crawling": True}
    assert run.state.stack.comparison.verdict is Verdict.SLOWER
    assert [item.record.candidate.recipe for item in run.state.recommendations] == ["crawling"]
    assert not [said for said in run.posted(events.Said) if "memory limit" in said.text]


def test_a_memory_limit_that_nothing_meets_is_told_with_what_came_nearest(tmp_path):
    run = heavy(tmp_path, "lighter", memory_limit_bytes=MIB)
    assert run.state.failure is None
    assert run.state.stack_settings == {}
    assert run.state.recommendations == ()
    (warning,) = [said.text for said in run.posted(events.Said) if "stays within the memory limit" in said.text]
    assert "limit of 1.00 MiB: the least was" in warning
    assert "planted.lighter: true" in warning
    assert "--memory-limit" in warning
    assert run.state.trials["lighter=true"].result.measured


def test_what_was_said_once_is_replaced_and_not_repeated():
    state = SessionState()
    for reporter in (reporter_to(state.apply), reporter_to(state.apply, state)):
        reporter.withdraw("fused", "it is used now")
        for text in ("", "it is not used", "it is not used", "it failed"):
            reporter.warn(text, "noise")
    assert [(said.text, said.severity) for said in state.messages] == [("it failed", "warning")]
    reporter.withdraw("noise", "it is used now")
    reporter.warn("something else")
    reporter.warn("something else")
    assert [said.text for said in state.messages] == ["it is used now", "something else", "something else"]


def test_energy_without_a_counter_is_refused_at_once_in_two_lines(tmp_path):
    run = FakeRun(tmp_path, pauses_removed, objective=Objective.ENERGY).run()
    (failure,) = run.posted(events.SessionFailed)
    assert "no energy counter" in failure.message
    assert "throughput" in failure.hint
    assert failure.exit_code == ExitCode.USAGE
    assert not run.posted(events.TrialStarted)


def test_habits_of_a_file_that_holds_the_loop_are_among_the_facts(tmp_path):
    loop = tmp_path / "loop.py"
    loop.write_text("def train(optimizer, loss):\n    optimizer.zero_grad(set_to_none=False)\n    loss.backward()\n")
    facts = cpu_facts()
    facts = replace(facts, workload=replace(facts.workload, places=(Place("step", str(loop), 2, 4, 3, 19),)))
    run = FakeRun(tmp_path, pauses_removed, trials=FakeTrials(pauses_removed, facts=facts), only=("zero_grad",)).run()
    assert [finding.recipe for finding in run.state.facts.findings] == ["zero_grad"]
    assert run.state.findings == run.state.facts.findings


def test_what_is_not_asked_anew_stays_as_the_session_was_asked():
    """`perf-advisor TARGET --resume` once measured recipes that the session's --only had left out."""
    past = Request(TargetSpec("demo", "/a", batch_size=4), budget_s=60.0, only=("autocast",))
    assert Request(TargetSpec("demo", "/a")).continuing(past) == past
    changed = Request(TargetSpec("demo", "/b"), only=("tf32",), objective=Objective.MEMORY).continuing(past)
    assert (changed.only, changed.budget_s, changed.objective) == (("tf32",), 60.0, Objective.MEMORY)
    assert (changed.target.directory, changed.target.batch_size) == ("/b", 4)


@pytest.mark.parametrize(
    ("options", "said", "typed"),
    [
        ({"min_score": 0.75}, "need each other", "--eval"),
        ({"evaluate": "train.py:evaluate", "max_drop": "0.5%"}, "'0.5%' is no number", "0.005"),
        ({"evaluate": "evaluate", "min_score": 0.75}, "'evaluate' names no function", "mymodel:evaluate"),
        ({"evaluate": "train.py:evaluate", "min_score": 0.75}, "train.py is a script", "perf-advisor init train.py"),
    ],
)
def test_a_score_that_cannot_be_taken_is_refused(tmp_path, options, said, typed):
    (tmp_path / "train.py").write_text("def evaluate(model):\n    return 1.0\n")
    with pytest.raises(AdvisorError) as error:
        Request(TargetSpec("train.py", str(tmp_path)), **options).check()
    assert said in error.value.message
    assert typed in error.value.hint
