from dataclasses import replace

import pytest
from facts import profile_facts

from advisor.experiment.objective import Goal
from advisor.experiment.plan import without_gain
from advisor.recipe.catalog import load_catalog
from advisor.records import Candidate, Objective

CATALOG = load_catalog()
WORKERS = Candidate("num_workers", "data.num_workers", 4)
TF32 = Candidate("tf32", "precision.float32_matmul", "high")


def profile(**phases):
    named = {name.replace("_", " "): ms for name, ms in phases.items()}
    return replace(profile_facts(), step_ms=100.0, phases=named)


def test_a_recipe_that_can_gain_less_than_counts_is_passed_over_with_its_share():
    reasons = without_gain(CATALOG, profile(data_wait=0.3, forward=60.0), [WORKERS, TF32])
    assert list(reasons) == ["num_workers"]
    assert "data wait takes 0.30 % of the step" in reasons["num_workers"]


@pytest.mark.parametrize(("wait_ms", "tried"), [(2.5, True), (1.1, True), (0.9, False)])
def test_what_can_gain_one_per_cent_is_tried(wait_ms, tried):
    assert (without_gain(CATALOG, profile(data_wait=wait_ms), [WORKERS]) == {}) is tried


def test_nothing_is_passed_over_without_a_measured_phase():
    assert without_gain(CATALOG, None, [WORKERS]) == {}
    assert without_gain(CATALOG, profile(forward=50.0), [WORKERS]) == {}


def test_what_is_on_already_is_measured_off_whatever_is_left_to_gain():
    assert without_gain(CATALOG, profile(data_wait=0.1), [replace(WORKERS, value=0, already_on=True)]) == {}


@pytest.mark.parametrize(
    ("objective", "word"), [(Objective.MEMORY, "takes more memory"), (Objective.LATENCY, "makes no step shorter")]
)
def test_a_larger_batch_is_not_tried_where_it_cannot_serve_the_objective(objective, word):
    assert word in Goal(objective).words.larger_batch
    assert not Goal(objective).tries_larger_batches
    within = Goal(Objective.LATENCY, latency_limit_ms=20.0)
    assert within.tries_larger_batches, "the largest within the limit is asked for"
    assert all(Goal(other).tries_larger_batches for other in (Objective.THROUGHPUT, Objective.ENERGY))
