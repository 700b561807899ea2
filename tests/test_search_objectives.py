"""The search for the stack by memory, energy and latency, and under a memory limit, on made-up results."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from advisor.catalog import load_catalog
from advisor.experiment.judge import Judge
from advisor.experiment.objective import Goal
from advisor.experiment.ranking import may_enter
from advisor.experiment.request import Request
from advisor.experiment.search import StackSearch
from advisor.records import Block, Candidate, Mode, Numerics, Objective, Outcome, TargetSpec, TrialResult, TrialSpec
from advisor.settings import Settings

CATALOG = load_catalog()
BF16 = Candidate("autocast", "precision.autocast", "bfloat16")
LAST = Candidate("channels_last", "model.memory_format", "channels_last")
FUSED = Candidate("fused_optimizer", "optimizer.implementation", "fused")
TF32 = Candidate("tf32", "precision.float32_matmul", "high")
BLOCKS = Candidate("checkpointing", "memory.activation_checkpointing", "blocks")
BATCH = Candidate("batch_size", "data.batch_size", 64)
COMPILE = Candidate("compile", "compile.mode", "default")
MIB = 2**20


def result_at(speedup, memory=1.0, energy=1.0, batch=1):
    blocks = tuple(Block(10, 1000 * batch, batch / speedup * wobble) for wobble in (0.999, 1.0, 1.001, 1.0, 0.9995))
    return TrialResult(
        Outcome.MEASURED,
        blocks=blocks,
        losses=(1.0, 0.9),
        weights=(1.0, 0.9),
        parameters=1,
        peak_reserved_bytes=round(1000 * MIB * memory),
        energy_j_per_sample=energy,
    )


class World:
    """A workload in which each setting multiplies speed, memory and energy by its factors, and a search in it."""

    def __init__(self, goal, effects):
        self.effects = {candidate.key: factors for candidate, factors in effects.items()}
        self.candidates, self.asked, self.combined = list(effects), [], []
        self.judge = Judge(CATALOG, Mode.TRAIN, result_at(1.0), goal=goal)
        bench = SimpleNamespace(
            request=Request(TargetSpec("made_up", "."), allow=Numerics.CLOSE),
            budget=SimpleNamespace(expected_s=lambda *, cost=0.0: 1.0, allows=lambda expected_s, *, reserve_s: True),
            spec=self._spec,
            run=self._run,
        )
        self.search = StackSearch(
            bench,
            self.judge,
            CATALOG,
            allowed=self._allowed,
            reserve_s=lambda: 0.0,
            progress=lambda stack: None,
            combined=lambda settings, result: self.combined.append(settings),
        )

    def _spec(self, name, settings, **_):
        return TrialSpec(name, TargetSpec("made_up", "."), dict(settings), 1.0, 1.0, 1.0, "")

    def _run(self, spec, *, cost=0.0, ahead=None):
        self.asked.append(Settings(spec.settings))
        return self.measure(spec.settings)

    def _allowed(self, record):
        facts = SimpleNamespace(workload=SimpleNamespace(mode=Mode.TRAIN, device_memory_bytes=0))
        return may_enter(CATALOG, facts, record, self.judge.yardstick, None)

    def measure(self, settings):
        speedup, memory, energy = 1.0, 1.0, 1.0
        for key in settings:
            factors = self.effects.get(key, (1.0, 1.0, 1.0))
            speedup, memory, energy = speedup * factors[0], memory * factors[1], energy * factors[2]
        return result_at(speedup, memory, energy)

    def found(self, *expensive):
        alone = [candidate for candidate in self.candidates if candidate not in expensive]
        records = [self.judge.record(c, c.settings, self.measure(c.settings)) for c in alone]
        self.search.grow(records)
        for candidate in expensive:
            self.search.try_expensive(candidate)
            self.search.add_partners(records)
        self.search.leave_one_out()
        return {CATALOG.by_key(key).id for key in self.search.stack.settings}


def test_by_memory_what_saves_it_is_stacked_and_what_is_faster_for_nothing_beside_it():
    world = World(Goal(Objective.MEMORY), {BF16: (1.5, 0.7, 1), BLOCKS: (0.95, 0.5, 1), LAST: (1.3, 1.0, 1)})
    assert world.found() == {"autocast", "checkpointing", "channels_last"}


def test_by_memory_what_takes_more_is_left_out_however_fast():
    world = World(Goal(Objective.MEMORY), {BF16: (1.2, 0.7, 1), LAST: (3.0, 1.1, 1)})
    assert world.found() == {"autocast"}


def test_what_takes_more_memory_alone_is_not_tried_with_all_the_others_at_once():
    effects = {BF16: (1.2, 0.7, 1), FUSED: (1.1, 0.9, 1), LAST: (3.0, 1.1, 1)}
    world = World(Goal(Objective.MEMORY), effects)
    assert world.found() == {"autocast", "fused_optimizer"}
    assert world.asked[0] == Settings({**BF16.settings, **FUSED.settings})


def test_what_saves_memory_and_is_too_slow_alone_is_welcome_beside_what_is_faster():
    world = World(Goal(Objective.MEMORY), {BLOCKS: (0.75, 0.4, 1), BF16: (1.5, 0.8, 1)})
    assert world.found() == {"checkpointing", "autocast"}


@pytest.mark.parametrize(("keep_speed", "stack"), [(0.7, {"checkpointing"}), (0.8, set())])
def test_the_share_of_speed_to_keep_decides_what_may_be_saved(keep_speed, stack):
    world = World(Goal(Objective.MEMORY, keep_speed=keep_speed), {BLOCKS: (0.75, 0.4, 1), TF32: (1.0, 1.0, 1)})
    assert world.found() == stack


def test_what_keeps_the_whole_fast_enough_stays_when_each_setting_is_left_out_once():
    """Without the faster one, which saves nothing itself, the other would be too slow."""
    world = World(Goal(Objective.MEMORY), {BLOCKS: (0.75, 0.4, 1), LAST: (1.3, 1.0, 1)})
    assert world.found() == {"checkpointing", "channels_last"}


def test_compilation_can_make_room_for_what_was_too_slow():
    world = World(Goal(Objective.MEMORY), {BLOCKS: (0.75, 0.4, 1), COMPILE: (1.4, 0.9, 1)})
    assert world.found(COMPILE) == {"checkpointing", "compile"}


def test_by_energy_what_takes_less_is_stacked_and_what_is_only_faster_is_not():
    world = World(Goal(Objective.ENERGY), {BF16: (1.5, 1, 0.7), FUSED: (1.05, 1, 0.9), LAST: (1.4, 1, 1.05)})
    assert world.found() == {"autocast", "fused_optimizer"}


def test_a_limit_below_the_baseline_is_reached_by_several_that_do_not_reach_it_alone():
    goal = Goal(memory_limit_bytes=500 * MIB)
    world = World(goal, {BF16: (1.5, 0.8, 1), BLOCKS: (0.75, 0.6, 1), TF32: (1.2, 1.0, 1)})
    assert world.found() == {"autocast", "checkpointing", "tf32"}
    assert goal.fits(world.search.stack.result)


def test_once_below_the_limit_speed_counts_again():
    world = World(Goal(memory_limit_bytes=900 * MIB), {BLOCKS: (0.75, 0.4, 1), BF16: (1.5, 0.8, 1)})
    assert world.found() == {"autocast"}


def test_a_limit_above_the_baseline_keeps_out_what_exceeds_it_in_company():
    world = World(Goal(memory_limit_bytes=1100 * MIB), {LAST: (1.3, 1.06, 1), FUSED: (1.2, 1.06, 1)})
    assert world.found() == {"channels_last"}
    assert all(settings != world.asked[0] for settings in world.combined)


def test_every_combination_that_was_measured_is_told_once():
    world = World(Goal(), {BF16: (1.5, 0.8, 1), LAST: (1.2, 1.0, 1), FUSED: (1.1, 1.0, 1)})
    world.found()
    assert world.combined == world.asked
    assert len(set(world.combined)) == len(world.combined) > 1


def test_latency_takes_a_faster_step_and_no_larger_batch():
    judge = Judge(CATALOG, Mode.TRAIN, result_at(1.0), goal=Goal(Objective.LATENCY))
    world = World(Goal(Objective.LATENCY), {BF16: (1.5, 1, 1)})
    assert world.found() == {"autocast"}
    larger = judge.record(BATCH, BATCH.settings, result_at(1.9, batch=2))
    assert not judge.yardstick.helps(larger.result, larger.comparison)
