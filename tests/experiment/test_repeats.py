"""When the bench measures a disturbed trial again."""

import pytest
from fake_trials import FakeRun
from made_up import CATALOG, result_at

from advisor.experiment.measuring.bench import Bench
from advisor.experiment.measuring.budget import Budget
from advisor.experiment.past.journal import Journal
from advisor.experiment.request import Request
from advisor.machine.host import CoresInUse
from advisor.records import Outcome, TargetSpec, TrialKind, TrialResult

BUSY = "another process came to the GPU while it was measured"


class Machine:
    """Answers trials in turn, each after so many seconds; a stand-in for what no test can have: other programs."""

    def __init__(self, answers, seconds=3.0):
        self.answers, self.seconds, self.now, self.ran = list(answers), seconds, 0.0, 0

    def __call__(self):
        return self.now

    def run(self, spec, listen):
        self.ran += 1
        if self.seconds > spec.timeout_s:
            self.now += spec.timeout_s
            return TrialResult(Outcome.TIMED_OUT, reason="no result")
        self.now += self.seconds
        return result_at(1.0, disturbed=self.answers.pop(0))


def bench_on(machine, folder, monkeypatch, total_s=100.0):
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(folder))
    request = Request(TargetSpec("target.py", str(folder)), budget_s=total_s)
    budget = Budget(total_s, machine)
    return Bench(request, machine, budget, Journal.create(request), emit=lambda event: None, catalog=CATALOG)


def test_a_disturbed_baseline_is_repeated_also_where_other_programs_keep_cores_busy(tmp_path, monkeypatch):
    monkeypatch.setattr(CoresInUse, "foreign", lambda cores: 1.4)
    run = FakeRun(tmp_path, lambda settings: result_at(1.0, disturbed="" if settings else BUSY), only=("tf32",)).run()
    assert run.started.count("baseline") == 2
    assert run.state.facts.hardware.host.foreign_cores == 1.4


@pytest.mark.parametrize(
    ("answers", "ran"),
    [
        (["", ""], 2),
        ([BUSY, "", BUSY, ""], 4),  # each time the repeat is undisturbed
        ([BUSY, BUSY, BUSY], 3),  # what disturbs goes on: the second is not repeated
    ],
)
def test_a_disturbed_trial_is_repeated_as_long_as_that_helps(tmp_path, monkeypatch, answers, ran):
    machine = Machine(answers)
    bench = bench_on(machine, tmp_path, monkeypatch)
    for _ in range(2):
        bench.run(bench.spec("trial", {}))
    assert machine.ran == ran


def test_a_repeat_that_takes_much_longer_is_given_up_and_the_first_run_counts(tmp_path, monkeypatch):
    """On a busy machine a baseline of 4 s was repeated for 23, until 5 s after the end of the budget."""
    machine = Machine([BUSY, BUSY], seconds=4.0)
    bench = bench_on(machine, tmp_path, monkeypatch, total_s=35.0)
    run = machine.run

    def slower_and_slower(spec, listen):
        result = run(spec, listen)
        machine.seconds = 30.0
        return result

    machine.run = slower_and_slower
    result = bench.run(bench.spec("baseline", {}, kind=TrialKind.BASELINE))
    assert (result.measured, result.disturbed, machine.now) == (True, BUSY, 12.0)
    machine.run, machine.seconds = run, 4.0
    bench.run(bench.spec("trial", {}))
    assert machine.ran == 3, "no other trial is repeated"
