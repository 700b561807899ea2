"""The search under decisions, limits and other goals than speed, on made-up workloads."""

from dataclasses import replace

import pytest
from facts import adamw_facts, gpu_facts
from made_up import BF16, BLOCKS, CUDNN, EVERYTHING_HELPS, FUSED, GRAPH, WHOLE, MadeUpTrials, found_by, result_at

from advisor.experiment.control import Decision
from advisor.experiment.search import search
from advisor.judging.objective import Goal
from advisor.records import Objective

# --- decisions ------------------------------------------------------------------------------------------------


def decided(known, **decisions):
    return known.with_consent(replace(known.plan.consent, decisions={k: Decision(v) for k, v in decisions.items()}))


def test_a_rest_that_fails_leaves_the_best_that_was_measured():
    known, _ = found_by(EVERYTHING_HELPS)
    rest = WHOLE.without(GRAPH.key).without(FUSED.key)
    after = decided(known, step_graph="rejected", fused_optimizer="rejected")
    assert after.stack == rest

    def speed(settings):
        return "out of memory" if settings == rest else EVERYTHING_HELPS(settings)

    again = search(after, MadeUpTrials(speed))
    assert again.stack
    assert not {GRAPH.key, FUSED.key} & set(again.stack)


@pytest.mark.parametrize(("factor", "stays"), [(1.0, True), (0.8, False)])
def test_what_is_accepted_joins_unless_it_makes_the_whole_slower(factor, stays):
    def speed(settings):
        return EVERYTHING_HELPS(settings) * (factor if "data.batch_size" in settings else 1.0)

    known, _ = found_by(speed)
    after = search(decided(known, batch_size="accepted"), MadeUpTrials(speed))
    assert ("data.batch_size" in after.stack) is stays


# --- other goals ----------------------------------------------------------------------------------------------


def of_memory(**memory):
    def result(settings):
        share = 1.0
        for recipe, factor in memory.items():
            share *= factor if recipe.replace("__", ".") in settings else 1.0
        speedup = 0.8 if BLOCKS.key in settings else 1.0
        return result_at(speedup * EVERYTHING_HELPS(settings), memory=share)

    return result


SAVES = of_memory(precision__autocast=0.7, memory__activation_checkpointing=0.6, step__cuda_graph=1.4)


def memory_facts():
    return gpu_facts(families={"linear": 12}, repeated_blocks=(("Block", 12),), block_shapes=1, optimizer=adamw_facts())


def test_with_memory_as_the_goal_the_stack_saves_it():
    known, trials = found_by(SAVES, memory_facts(), goal=Goal(Objective.MEMORY))
    assert BLOCKS.key in trials.asked[0].settings
    assert {BF16.key, BLOCKS.key} <= set(known.stack)
    assert GRAPH.key not in known.stack


def test_a_memory_limit_bounds_the_stack():
    limit = round(0.9 * 1000 * 2**20)
    known, _ = found_by(SAVES, memory_facts(), goal=Goal(memory_limit_bytes=limit))
    assert known.judge.result(known.stack).peak_reserved_bytes <= limit
    assert known.stack


def test_energy_decides_where_it_is_the_goal():
    def result(settings):
        return result_at(EVERYTHING_HELPS(settings), energy=2.0 if GRAPH.key in settings else 0.5 if settings else 1.0)

    known, _ = found_by(result, goal=Goal(Objective.ENERGY))
    assert known.stack
    assert GRAPH.key not in known.stack


@pytest.mark.parametrize(("second_run", "joins"), [(1.04, True), (1.0, False)])
def test_a_small_gain_joins_only_when_a_second_run_shows_it_too(second_run, joins):
    runs = []

    def speed(settings):
        runs.append(settings)
        gain = (1.04 if runs.count(settings) == 1 else second_run) if CUDNN.key in settings else 1.0
        return EVERYTHING_HELPS(settings) * gain

    known, _ = found_by(speed)
    assert (CUDNN.key in known.stack) is joins
    assert runs.count(WHOLE.merged(CUDNN.settings)) > 1
