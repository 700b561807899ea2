"""The plan of a search and the knowledge in it, asked directly: bounded gains, usual settings, settings to blame."""

from __future__ import annotations

from dataclasses import replace

import pytest
from facts import adamw_facts, gpu_facts, loader_facts, profile_facts
from made_up import BF16, CATALOG, FUSED, GRAPH, LAST, WORKERS, failed, known_of, result_at

from advisor.experiment.judging.judge import BASELINE
from advisor.experiment.moves import repeats
from advisor.experiment.plan import facts_under
from advisor.recipe.settings import Settings

PAIR = Settings({**BF16.settings, **GRAPH.settings})
THREE = PAIR.merged(LAST.settings)


def known_with(*runs, stack=BASELINE):
    """Knowledge after some runs, as pairs of settings and a result."""
    known = known_of()
    for settings, result in runs:
        known = replace(known, judge=known.judge.with_run(settings, result))
    return replace(known, stack=stack)


@pytest.mark.parametrize(("wait_ms", "most"), [(0.5, 10 / 9.5), (5.0, 2.0), (9.9, 20.0), (10.0, 20.0)])
def test_a_gain_is_bounded_by_the_time_of_the_phases_that_a_recipe_shortens(wait_ms, most):
    """At most as if they took no time, and never more than twentyfold."""
    facts = gpu_facts(profile=profile_facts(step_ms=10.0, phases={"data wait": wait_ms}), loader=loader_facts())
    plan = known_of(facts).plan
    assert plan._bound(CATALOG[WORKERS.recipe], 10.0) == pytest.approx(most)
    assert plan.expected_gain(WORKERS, Settings(), 10.0) <= most * (1 + 1e-9)


def test_a_usual_setting_is_in_the_first_stack_where_the_phases_that_it_shortens_take_time():
    def usual(optimizer_ms):
        phases = {"forward": 90.0, "optimizer": optimizer_ms}
        return known_of(gpu_facts(optimizer=adamw_facts(), profile=profile_facts(phases=phases))).plan.usual_stack()

    assert FUSED.key in usual(10.0)
    assert FUSED.key not in usual(0.001)


@pytest.mark.parametrize("workers", [0, 1, 8])
def test_settings_of_workers_bring_persistent_ones_with_them(workers):
    workload = facts_under(gpu_facts(loader=loader_facts()), {WORKERS.key: workers}).workload
    assert workload.loader.num_workers == workers
    assert workload.loader.persistent_workers is (workers > 0)
    assert workload.current["data.persistent_workers"] is (workers > 0)


def test_a_setting_is_to_blame_for_a_combination_that_fails_only_with_it():
    broken = known_with((PAIR, failed("no capture")))
    assert not broken.fails_with_others(GRAPH), "nothing ran without it"
    assert known_with((PAIR, failed("no capture")), (Settings(BF16.settings), result_at(1.2))).fails_with_others(GRAPH)
    assert not known_with((PAIR, result_at(1.5)), (Settings(BF16.settings), result_at(1.2))).fails_with_others(GRAPH)


def test_a_stack_is_measured_again_once_a_smaller_one_ran_twice():
    def again(*rest):
        known = known_with((THREE, result_at(2.0)), *rest, stack=THREE)
        return [move.settings for move in repeats(known)]

    slower = (PAIR, result_at(1.5))
    assert again(slower) == []
    assert THREE in again(slower, slower)
