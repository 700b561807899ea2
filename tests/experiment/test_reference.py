"""When a session affords itself a run in a higher precision."""

from dataclasses import replace

import pytest
from facts import GIB, cpu_facts, gpu_facts

from advisor.experiment.measuring.baseline import reference_spec
from advisor.experiment.measuring.bench import Bench
from advisor.experiment.measuring.budget import Budget
from advisor.experiment.past.journal import Journal
from advisor.experiment.request import Request
from advisor.judging.numerics import Spread
from advisor.recipe.catalog import load_catalog
from advisor.records import Block, Outcome, TargetSpec, TrialResult
from advisor.runner.trials import Runner

BASELINE = TrialResult(
    Outcome.MEASURED,
    batch_size=8,
    blocks=(Block(10, 80, 1.0),),
    losses=(2.3, 2.2),
    build_s=0.5,
    peak_reserved_bytes=4 * GIB,
)


@pytest.fixture
def spec(tmp_path):
    """The spec of the reference for these facts, this baseline and this spread."""
    request = Request(TargetSpec("t.py", str(tmp_path)))
    journal = Journal.create(request)

    def made(facts=None, baseline=BASELINE, spread=None, *, budget_s=300.0, spent_s=0.0):
        clock = iter([0.0, *[spent_s] * 99])
        budget = Budget(budget_s, clock=lambda: next(clock))
        bench = Bench(request, Runner(), budget, journal, emit=lambda event: None, catalog=load_catalog())
        return reference_spec(bench, facts or gpu_facts(), baseline, spread or Spread())

    return made


@pytest.mark.parametrize(
    ("budget_s", "spent_s", "timeout_s"), [(300.0, 0.0, 15.0), (300.0, 200.0, 10.0), (60.0, 0.0, 6.0)]
)
def test_it_takes_a_share_of_the_budget_that_is_left(spec, budget_s, spent_s, timeout_s):
    assert spec(budget_s=budget_s, spent_s=spent_s).timeout_s == pytest.approx(timeout_s)


def test_a_short_budget_has_no_time_for_it(spec):
    assert spec(budget_s=59.0) is None


def test_a_model_that_would_not_fit_twice_has_none(spec):
    assert spec(baseline=replace(BASELINE, peak_reserved_bytes=71 * GIB)) is None
    assert spec(baseline=replace(BASELINE, peak_reserved_bytes=70 * GIB)) is not None
    on_the_cpu = cpu_facts(device_memory_bytes=0)
    assert spec(on_the_cpu, replace(BASELINE, peak_reserved_bytes=51 * GIB)) is None
    assert spec(on_the_cpu, replace(BASELINE, peak_reserved_bytes=49 * GIB)) is not None


def test_random_streams_leave_nothing_to_compare(spec):
    assert spec(spread=Spread(losses=0.02)) is None
    assert spec(spread=Spread(outputs=0.5)) is None
    assert spec(spread=Spread(losses=1e-6, outputs=1e-6)) is not None  # additions that race
