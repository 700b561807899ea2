"""What the profile shows to gain nothing is passed over, with the reason."""

import pytest
from facts import gpu_facts, loader_facts, profile_facts
from made_up import known_of

from advisor.judging.objective import Goal
from advisor.records import Objective

WORKERS = "num_workers"


def passed_over(workers=0, **phases):
    """The reasons of a plan for steps of 100 ms with these phases."""
    named = {name.replace("_", " "): ms for name, ms in phases.items()}
    facts = gpu_facts(profile=profile_facts(step_ms=100.0, phases=named), loader=loader_facts(num_workers=workers))
    return known_of(facts).plan.skipped


@pytest.mark.parametrize(("wait_ms", "tried"), [(2.5, True), (1.1, True), (0.9, False)])
def test_what_can_gain_one_per_cent_is_tried(wait_ms, tried):
    reasons = passed_over(data_wait=wait_ms, forward=60.0)
    assert (WORKERS not in reasons) is tried
    assert tried or "data wait takes 0.90 % of the step" in reasons[WORKERS]


def test_nothing_is_passed_over_without_a_measured_phase():
    assert WORKERS not in known_of(gpu_facts(loader=loader_facts(num_workers=0))).plan.skipped


@pytest.mark.parametrize(
    ("objective", "word"), [(Objective.MEMORY, "takes more memory"), (Objective.LATENCY, "makes no step shorter")]
)
def test_a_larger_batch_is_not_tried_where_it_cannot_serve_the_objective(objective, word):
    assert word in Goal(objective).words.larger_batch
    assert not Goal(objective).tries_larger_batches
    within = Goal(Objective.LATENCY, latency_limit_ms=20.0)
    assert within.tries_larger_batches, "the largest within the limit is asked for"
    assert all(Goal(other).tries_larger_batches for other in (Objective.THROUGHPUT, Objective.ENERGY))
