"""The search for the stack, on made-up results: how fast a combination is comes from a table."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from advisor.catalog import load_catalog
from advisor.experiment.control import Decision
from advisor.experiment.decisions import Decisions
from advisor.experiment.judge import Judge
from advisor.experiment.objective import Goal
from advisor.experiment.request import Request
from advisor.experiment.search import StackSearch
from advisor.records import Block, Candidate, Mode, Numerics, Outcome, TargetSpec, TrialResult, TrialSpec
from advisor.settings import Settings

CATALOG = load_catalog()
BF16 = Candidate("autocast", "precision.autocast", "bfloat16")
FP16 = Candidate("autocast", "precision.autocast", "float16")
LAST = Candidate("channels_last", "model.memory_format", "channels_last")
FUSED = Candidate("fused_optimizer", "optimizer.implementation", "fused")
GRAPH = Candidate("step_graph", "step.cuda_graph", True)
TF32 = Candidate("tf32", "precision.float32_matmul", "high")
COMPILE = Candidate("compile", "compile.mode", "default")


def result_at(speedup):
    if speedup is None:
        return TrialResult(Outcome.OUT_OF_MEMORY, "out of memory")
    blocks = tuple(Block(10, 1000, 1 / speedup * wobble) for wobble in (0.999, 1.0, 1.001, 1.0, 0.9995))
    return TrialResult(Outcome.MEASURED, blocks=blocks, losses=(1.0, 0.9), weights=(1.0, 0.9), parameters=1)


class Bench:
    """Answers as trials would, and keeps what it was asked."""

    def __init__(self, speedups, affordable):
        self.speedups, self.asked = speedups, []
        self.request = Request(TargetSpec("made_up", "."), allow=Numerics.CLOSE)
        self.budget = SimpleNamespace(expected_s=lambda *, cost=0.0: 1.0, allows=self._allows, interpreter_s=9.0)
        self.expected_s = []
        self._affordable = affordable

    def _allows(self, expected_s, *, reserve_s):
        self.expected_s.append(expected_s)
        return len(self.asked) < self._affordable

    def spec(self, name, settings, **_):
        return TrialSpec(name, self.request.target, dict(settings), 1.0, 1.0, 1.0, "")

    def run(self, spec, *, cost=0.0, ahead=None):
        self.asked.append(Settings(spec.settings))
        return result_at(self.speedups(spec.settings))


class Searching:
    def __init__(self, speedups, *, affordable=100, applies=lambda candidate, settings: True):
        self.bench = Bench(speedups, affordable)
        self.judge = Judge(CATALOG, Mode.TRAIN, result_at(1.0))
        self.speedups = speedups
        self.grown = []
        self.decisions = Decisions()
        self.said = []
        self.search = StackSearch(
            self.bench,
            self.judge,
            CATALOG,
            allowed=lambda record: record.result.measured and not self.decisions.rejects(record.candidate.recipe),
            reserve_s=lambda: 0.0,
            progress=lambda stack: self.grown.append(stack.settings),
            applies=applies,
            decision=self.decisions.of,
            say=self.said.append,
        )

    def solo(self, *candidates):
        return [self.judge.record(c, c.settings, result_at(self.speedups(c.settings))) for c in candidates]

    @property
    def stack(self):
        return self.search.stack


def product(**factors):
    """A speed-up that is the product of each setting's own."""
    by_key = {CATALOG[recipe].key: factor for recipe, factor in factors.items()}

    def speedup(settings):
        total = 1.0
        for key in settings:
            total *= by_key.get(key, 1.0)
        return total

    return speedup


def test_winners_that_get_along_take_one_trial():
    found = Searching(product(autocast=1.5, fused_optimizer=1.1, step_graph=1.3))
    found.search.grow(found.solo(BF16, FUSED, GRAPH))
    assert set(found.stack.settings) == {BF16.key, FUSED.key, GRAPH.key}
    assert len(found.bench.asked) == 1


@pytest.mark.parametrize(("sixteen_alone", "asked_in_company"), [(2.0, 1), (1.5, 0)])
def test_as_many_workers_as_did_as_well_alone_are_tried_in_company(sixteen_alone, asked_in_company):
    """Alone the rest of the step hides what more workers could do; beside a faster step it shows."""
    eight, sixteen = (Candidate("num_workers", "data.num_workers", workers) for workers in (8, 16))

    def speedup(settings):
        if BF16.key not in settings:
            return {8: 2.0, 16: sixteen_alone}[settings["data.num_workers"]]
        return {None: 1.3, 8: 5.0, 16: 7.0}[settings.get("data.num_workers")]

    found = Searching(speedup)
    known = [*found.solo(eight, sixteen)]
    known.append(found.judge.record(BF16, BF16.settings, result_at(1.3)))
    found.search.grow(known)
    in_company = [settings for settings in found.bench.asked if settings.get("data.num_workers") == 16]
    assert len(in_company) == asked_in_company
    assert found.stack.settings["data.num_workers"] == (16 if asked_in_company else 8)


def test_a_partner_that_helps_only_in_company_is_found():
    def speedup(settings):
        both = BF16.key in settings and LAST.key in settings
        return 1.97 if both else 1.12 if BF16.key in settings else 0.97

    found = Searching(speedup)
    found.search.grow(found.solo(BF16, LAST))
    assert found.stack.settings == Settings({**BF16.settings, **LAST.settings})


def test_a_partner_that_adds_nothing_leaves_again():
    found = Searching(product(autocast=1.5, channels_last=1.0))
    found.search.grow(found.solo(BF16, LAST))
    assert found.stack.settings == Settings(BF16.settings)
    assert LAST.key in found.stack.dropped


def test_winners_that_spoil_each_other_are_added_one_by_one():
    def speedup(settings):
        if TF32.key in settings and BF16.key in settings:
            return 1.05
        return product(autocast=1.5, tf32=1.2, fused_optimizer=1.1)(settings)

    found = Searching(speedup)
    found.search.grow(found.solo(BF16, TF32, FUSED))
    assert found.stack.settings == Settings({**BF16.settings, **FUSED.settings})
    assert found.stack.dropped[TF32.key] == "it adds nothing to the others"


def test_a_combination_that_fails_leaves_the_best_alone():
    found = Searching(lambda settings: None if len(settings) > 1 else 1.5 if BF16.key in settings else 1.2)
    found.search.grow(found.solo(BF16, FUSED))
    assert found.stack.settings == Settings(BF16.settings)
    assert "together with the others it fails: out of memory" in found.stack.dropped[FUSED.key]


def test_usual_values_that_gain_nothing_alone_are_tried_with_the_winners():
    """Once the winners have moved the bottleneck they may gain: of these three, the two that do stay."""

    def speedup(settings):
        if GRAPH.key not in settings:
            return 1.0
        return 2.0 * product(autocast=1.3, channels_last=1.2, tf32=1.0)(settings)

    found = Searching(speedup)
    found.search.grow(found.solo(GRAPH, BF16, LAST, TF32))
    assert set(found.stack.settings) == {GRAPH.key, BF16.key, LAST.key}


def test_usual_values_that_had_no_trial_of_their_own_are_tried_with_the_winners():
    found = Searching(product(step_graph=1.5, autocast=1.3, channels_last=1.0))
    found.search.grow(found.solo(GRAPH), untried=[BF16, LAST, FP16, COMPILE])
    assert set(found.stack.settings.items()) == {*GRAPH.settings.items(), *BF16.settings.items()}
    assert LAST.key in found.stack.dropped


@pytest.mark.parametrize("company", [None, 0.5])
def test_one_that_nobody_tried_does_not_spoil_the_others(company):
    """Channels-last makes every combination fail, or slow: what ran alone is then tried without it."""

    def speedup(settings):
        factor = company if LAST.key in settings else 1.0
        return None if factor is None else factor * product(step_graph=1.5, autocast=1.2)(settings)

    found = Searching(speedup)
    known = [*found.solo(GRAPH), found.judge.record(BF16, BF16.settings, result_at(1.0))]
    found.search.grow(known, untried=[LAST], compiles_next=lambda: True)
    assert set(found.stack.settings) == {GRAPH.key, BF16.key}
    assert len(found.bench.asked) == 2


def test_without_any_winner_the_usual_values_are_tried_together():
    both = Searching(lambda settings: 1.5 if {BF16.key, LAST.key} <= set(settings) else 1.0)
    both.search.grow(both.solo(BF16, LAST))
    assert set(both.stack.settings) == {BF16.key, LAST.key}
    nothing = Searching(lambda settings: 1.0)
    nothing.search.grow(nothing.solo(BF16, LAST))
    assert not nothing.stack.settings


def test_what_the_others_leave_nothing_to_do_is_not_tried_with_them():
    found = Searching(
        product(autocast=1.5, tf32=1.2), applies=lambda new, others: new != TF32 or BF16.key not in others
    )
    found.search.grow(found.solo(BF16, TF32))
    assert found.stack.settings == Settings(BF16.settings)
    assert found.stack.dropped[TF32.key] == "the others leave it nothing to do"
    assert not found.bench.asked


@pytest.mark.parametrize("tf32", [1.2, 1.8])
def test_what_leaves_another_nothing_to_do_goes_before_it_whichever_was_faster_alone(tf32):
    found = Searching(
        product(autocast=1.5, tf32=1.0, step_graph=1.4),
        applies=lambda new, others: new != TF32 or BF16.key not in others,
    )
    known = [*found.solo(BF16, GRAPH), found.judge.record(TF32, TF32.settings, result_at(tf32))]
    found.search.grow(known)
    assert found.stack.settings == Settings({**BF16.settings, **GRAPH.settings})
    assert found.stack.dropped[TF32.key] == "the others leave it nothing to do"


def test_what_conflicts_with_a_better_one_is_named_and_not_tried():
    found = Searching(product(autocast=1.5, step_graph=1.2))
    found.search.grow(found.solo(FP16, GRAPH))
    assert found.stack.settings == Settings(FP16.settings)
    assert GRAPH.key in found.stack.dropped
    assert not found.bench.asked


def test_growing_again_measures_only_what_is_new():
    found = Searching(product(autocast=1.5, fused_optimizer=1.1, step_graph=1.3))
    first = found.solo(BF16, FUSED)
    found.search.grow(first)
    before = list(found.bench.asked)
    found.search.grow([*first, *found.solo(GRAPH)])
    assert len(found.stack.settings) == 3
    assert len(found.bench.asked) == len(before) + 1
    assert len(set(found.bench.asked)) == len(found.bench.asked)


def test_compilation_on_top_stays_only_when_it_helps():
    for factor, stays in ((1.2, True), (0.9, False)):
        found = Searching(product(autocast=1.5, compile=factor))
        found.search.grow(found.solo(BF16))
        record = found.search.try_expensive(COMPILE)
        assert record.settings == {**BF16.settings, **COMPILE.settings}
        assert (COMPILE.key in found.stack.settings) is stays
        assert found.stack.dropped == ({} if stays else {COMPILE.key: "it adds nothing to the others"})


def test_with_nothing_to_be_on_top_of_nothing_is_left_out():
    found = Searching(product(compile=0.9))
    found.search.try_expensive(COMPILE)
    assert not found.stack.settings
    assert not found.stack.dropped


def test_what_is_not_allowed_is_not_said_to_add_nothing():
    found = Searching(product(autocast=1.5, compile=2.0))
    found.search.grow(found.solo(BF16))
    found.decisions.take("compile", Decision.REJECTED)
    found.search.try_expensive(COMPILE)
    assert COMPILE.key not in {*found.stack.settings, *found.stack.dropped}


@pytest.mark.parametrize(("factor", "stays"), [(1.4, True), (0.9, False)])
def test_what_an_earlier_session_measured_on_top_is_offered_to_this_one(factor, stays):
    found = Searching(product(autocast=1.5, compile=factor))
    found.search.grow(found.solo(BF16))
    settings = Settings({**BF16.settings, **COMPILE.settings})
    found.search.offer(found.judge.record(COMPILE, settings, result_at(1.5 * factor)))
    assert (found.stack.settings == settings) is stays
    assert not found.bench.asked


def test_what_has_not_won_alone_is_checked_once_the_stack_is_compiled():
    """Before it is compiled bfloat16 gains nothing in company either; compiled it does, and TF32 still does not."""

    def speedup(settings):
        compiled = 1.5 if COMPILE.key in settings else 1.0
        half = 1.2 if BF16.key in settings and compiled > 1 else 1.0
        return (2.0 if GRAPH.key in settings else 1.0) * compiled * half

    found = Searching(speedup)
    found.search.grow(found.solo(GRAPH, BF16, TF32), compiles_next=lambda: True)
    assert set(found.stack.settings) == {GRAPH.key, BF16.key, TF32.key}
    found.search.try_expensive(COMPILE)
    found.search.settle_unproven()
    assert set(found.stack.settings) == {GRAPH.key, BF16.key, COMPILE.key}
    # What leaves the compiled code as it is comes first; there is nothing to settle twice.
    assert found.bench.asked[2] == Settings({**GRAPH.settings, **BF16.settings, **COMPILE.settings})
    asked = len(found.bench.asked)
    found.search.settle_unproven()
    assert len(found.bench.asked) == asked


def with_slow_runs(found, slow, factor=0.91):
    """The search's bench, whose runs of these numbers (from 0 on) are slower as a whole."""
    run = found.bench.run

    def sometimes_slow(spec, *, cost=0.0, ahead=None):
        result = run(spec, cost=cost)
        if len(found.bench.asked) - 1 not in slow:
            return result
        return replace(result, blocks=tuple(replace(block, seconds=block.seconds / factor) for block in result.blocks))

    found.bench.run = sometimes_slow


@pytest.mark.parametrize("slow", [{0}, {0, 2}, {1}])
def test_one_slow_run_does_not_cost_a_usual_setting_its_place(slow):
    """Runs: the stack, the stack without channels-last, and the stack again where it seemed the slower of the two."""
    found = Searching(product(step_graph=2.0, autocast=1.5, channels_last=1.05))
    with_slow_runs(found, slow)
    found.search.grow(found.solo(GRAPH, BF16, LAST), compiles_next=lambda: True)
    found.search.leave_one_out([LAST.key])
    assert set(found.stack.settings) == {GRAPH.key, BF16.key, LAST.key}
    assert len(found.bench.asked) <= 3


@pytest.mark.parametrize(("factor", "stays"), [(1.04, True), (1.0, False)])
def test_scattered_steps_do_not_cost_a_usual_setting_its_place(factor, stays):
    """A gain that is less than the steps scatter: its interval says nothing."""
    found = Searching(product(step_graph=2.0, autocast=1.5, channels_last=factor))
    run = found.bench.run

    def scattered(spec, *, cost=0.0, ahead=None):
        result = run(spec, cost=cost)
        wobbled = zip(result.blocks, (0.8, 1.2, 1.0, 0.9, 1.1), strict=True)
        return replace(result, blocks=tuple(replace(block, seconds=block.seconds * by) for block, by in wobbled))

    found.bench.run = scattered
    found.search.grow(found.solo(GRAPH, BF16, LAST), compiles_next=lambda: True)
    found.search.leave_one_out([LAST.key])
    assert (LAST.key in found.stack.settings) is stays


def test_a_usual_setting_that_costs_speed_in_company_goes():
    def speedup(settings):
        both = BF16.key in settings and LAST.key in settings
        return product(autocast=1.5, channels_last=1.1)(settings) * (0.8 if both else 1.0)

    found = Searching(speedup)
    found.search.stack.settings = Settings({**BF16.settings, **LAST.settings})
    found.search.stack.result = result_at(speedup(found.search.stack.settings))
    found.search.leave_one_out([LAST.key])
    assert found.stack.settings == Settings(BF16.settings)


def test_a_gain_of_two_that_gain_nothing_alone_is_found_among_the_leftovers():
    pair = {LAST.key, GRAPH.key}

    def speedup(settings):
        return product(autocast=1.5)(settings) * (1.3 if pair <= set(settings) else 1.0)

    found = Searching(speedup)
    found.search.grow(found.solo(BF16))
    found.search.add_leftovers(found.solo(BF16, FUSED, LAST), untried=[GRAPH, FP16, COMPILE])
    assert set(found.stack.settings) == {BF16.key, *pair}
    assert FUSED.key in found.stack.dropped


@pytest.mark.parametrize(("second_run", "stays"), [(1.0, False), (0.96, True)])
def test_what_gains_no_more_than_one_process_over_the_next_stays_out(second_run, stays):
    """The stack's first run was a slow one: beside it even what does nothing seems to gain."""
    runs = {}

    def speedup(settings):
        if len(settings) < 2:
            return product(autocast=1.5, step_graph=1.5)(settings)
        runs[Settings(settings)] = run = runs.get(Settings(settings), 0) + 1
        return 2.25 * (1.0 if LAST.key in settings else 0.96 if run == 1 else second_run)

    found = Searching(speedup)
    found.search.grow(found.solo(BF16, GRAPH))
    found.search.add_leftovers(found.solo(BF16, GRAPH, LAST))
    assert (LAST.key in found.stack.settings) is stays
    assert runs[Settings({**BF16.settings, **GRAPH.settings})] == 2


def test_leftovers_that_gain_nothing_at_once_stay_out():
    found = Searching(product(autocast=1.5, tf32=0.5))
    found.search.grow(found.solo(BF16))
    asked = len(found.bench.asked)
    known = found.solo(BF16, FUSED, LAST, TF32)
    found.search.add_leftovers(known)
    assert found.stack.settings == Settings(BF16.settings)
    assert found.bench.asked[asked:] == [Settings({**BF16.settings, **FUSED.settings, **LAST.settings})]
    assert "tried at once" in found.stack.dropped[FUSED.key]
    found.search.add_leftovers(known)
    assert len(found.bench.asked) == asked + 1


def test_what_no_longer_earns_its_place_is_left_out():
    def speedup(settings):
        return 2.0 if COMPILE.key in settings else product(autocast=1.5, fused_optimizer=1.1)(settings)

    found = Searching(speedup)
    found.search.grow(found.solo(BF16, FUSED))
    found.search.try_expensive(COMPILE)
    found.search.leave_one_out()
    assert found.stack.settings == Settings(COMPILE.settings)


def no_products_left(candidate, settings):
    """What `tf32` says of its own: autocast takes the products out of float32."""
    return candidate != TF32 or BF16.key not in settings


@pytest.mark.parametrize("tried_alone", [True, False])
def test_what_a_setting_rules_out_takes_its_place_where_that_is_better(tried_alone):
    found = Searching(product(step_graph=2.0, autocast=1.2, tf32=1.4), applies=no_products_left)
    alone, untried = ((GRAPH, BF16, TF32), ()) if tried_alone else ((GRAPH, BF16), (TF32,))
    found.search.grow(found.solo(*alone), untried, compiles_next=lambda: True)
    found.search.stack.settings = Settings({**GRAPH.settings, **BF16.settings})  # a compiled stack may have begun so
    found.search.stack.result = result_at(2.4)
    found.search.stack.dropped[TF32.key] = "the others leave it nothing to do"
    found.search.leave_one_out()
    assert found.stack.settings == Settings({**GRAPH.settings, **TF32.settings})
    assert found.stack.dropped == {BF16.key: f"{TF32.name} does more in its place"}


@pytest.mark.parametrize(("gain", "asked"), [(2.5, False), (1.6, True)])
def test_what_a_setting_rules_out_is_not_tried_where_the_setting_gains_much(gain, asked):
    found = Searching(product(autocast=gain, step_graph=1.1, tf32=1.4), applies=no_products_left)
    found.search.grow(found.solo(BF16, GRAPH), [TF32])
    found.search.leave_one_out([BF16.key])
    assert found.stack.settings == Settings({**BF16.settings, **GRAPH.settings})
    assert any(TF32.key in settings for settings in found.bench.asked) is asked


def test_what_is_accepted_is_not_exchanged():
    found = Searching(product(autocast=1.2, step_graph=1.1, tf32=1.4), applies=no_products_left)
    found.decisions.take("autocast", Decision.ACCEPTED)
    found.search.grow(found.solo(BF16, GRAPH), [TF32])
    found.search.leave_one_out()
    assert BF16.key in found.stack.settings


def test_a_combination_that_needs_a_fresh_interpreter_takes_longer():
    segments = Candidate("allocator", "memory.allocator", "expandable_segments")
    found = Searching(product(autocast=1.5, allocator=1.2, step_graph=1.1))
    found.search.grow(found.solo(BF16, segments))
    assert found.bench.expected_s == [1.0 + 9.0]


def test_what_keeps_the_compiled_code_costs_less_on_top():
    found = Searching(product(compile=1.5))
    pinned = Candidate("pin_memory", "data.pin_memory", True)
    assert found.search.cost_on_top(pinned) == 0
    found.search.try_expensive(COMPILE)
    assert 0 < found.search.cost_on_top(pinned) < found.search.cost_on_top(BF16) == 1.0


@pytest.mark.parametrize("affordable", range(6))
def test_without_time_the_best_so_far_is_kept(affordable):
    found = Searching(product(autocast=1.5, fused_optimizer=1.1, tf32=1.2), affordable=affordable)
    found.search.grow(found.solo(BF16, FUSED, TF32))
    found.search.leave_one_out()
    assert len(found.bench.asked) <= affordable
    assert BF16.key in found.stack.settings
    assert found.stack.result.measured


def test_a_stack_above_the_memory_limit_is_not_kept():
    found = Searching(product(autocast=1.5, fused_optimizer=1.1))
    found.judge.goal = Goal(memory_limit_bytes=100)
    heavy = replace(result_at(1.65), peak_reserved_bytes=101)
    found.bench.run = lambda spec, *, cost=0.0, ahead=None: heavy
    found.search.grow(found.solo(BF16, FUSED))
    assert found.stack.settings == Settings(BF16.settings)


# --- what the person decided ----------------------------------------------------------------------------------


def grown(speedups, *candidates):
    """A search that has grown its stack from these candidates' own trials."""
    found = Searching(speedups)
    found.search.grow(found.solo(*candidates))
    return found


def test_what_is_rejected_goes_and_the_rest_is_measured():
    found = grown(product(autocast=1.5, fused_optimizer=1.1, step_graph=1.3), BF16, FUSED, GRAPH)
    found.decisions.take("autocast", Decision.REJECTED)
    assert found.search.drop_rejected()
    rest = Settings({**FUSED.settings, **GRAPH.settings})
    assert found.bench.asked[-1] == found.grown[-1] == found.stack.settings == rest
    assert found.stack.dropped[BF16.key] == "you rejected it"
    assert found.search.drop_rejected()
    assert found.bench.asked.count(rest) == 1


def test_what_it_kept_out_gets_another_chance():
    def speedup(settings):
        if TF32.key in settings and BF16.key in settings:
            return 1.05
        return product(autocast=1.5, tf32=1.2, fused_optimizer=1.1)(settings)

    found = grown(speedup, BF16, TF32, FUSED)
    found.decisions.take("autocast", Decision.REJECTED)
    found.search.grow(found.solo(BF16, TF32, FUSED))
    assert found.stack.settings == Settings({**TF32.settings, **FUSED.settings})
    found.decisions.take("autocast", None)
    found.search.grow(found.solo(BF16, TF32, FUSED))
    assert found.stack.dropped.get(BF16.key) != "you rejected it"


def test_a_single_setting_that_is_left_is_not_measured_again():
    found = grown(product(autocast=1.5, fused_optimizer=1.1), BF16, FUSED)
    asked = len(found.bench.asked)
    found.decisions.take("autocast", Decision.REJECTED)
    assert found.search.drop_rejected()
    assert found.stack.settings == Settings(FUSED.settings)
    assert found.stack.result.measured
    assert len(found.bench.asked) == asked


def test_nothing_is_left_when_all_is_rejected():
    found = grown(product(autocast=1.5), BF16)
    found.decisions.take("autocast", Decision.REJECTED)
    assert found.search.drop_rejected()
    assert (found.stack.settings, found.stack.result) == (Settings(), None)


def test_a_rest_that_fails_is_told_and_the_best_single_setting_kept():
    def speedup(settings):
        alone = set(settings) == {FUSED.key, GRAPH.key}
        return None if alone else product(autocast=1.5, fused_optimizer=1.1, step_graph=1.3)(settings)

    found = grown(speedup, BF16, FUSED, GRAPH)
    assert len(found.stack.settings) == 3
    found.decisions.take("autocast", Decision.REJECTED)
    assert found.search.drop_rejected()
    assert found.stack.settings == Settings(GRAPH.settings)
    assert found.stack.result.measured
    [told] = found.said
    assert told == f"without {BF16.key} the others fail together: out of memory"
    assert found.stack.dropped == {BF16.key: "you rejected it", FUSED.key: told}


def test_without_time_to_measure_the_rest_the_stack_stays():
    found = grown(product(autocast=1.5, fused_optimizer=1.1, step_graph=1.3), BF16, FUSED, GRAPH)
    found.bench._affordable = 0
    found.decisions.take("autocast", Decision.REJECTED)
    assert not found.search.drop_rejected()
    assert len(found.stack.settings) == 3


@pytest.mark.parametrize(("factor", "stays"), [(1.0, True), (0.9, False), (None, False)])
def test_what_is_accepted_stays_unless_it_fails_or_makes_the_whole_slower(factor, stays):
    def speedup(settings):
        alone = FUSED.key not in settings or len(settings) == 1
        if alone:
            return product(autocast=1.5, fused_optimizer=1.1)(settings)
        return None if factor is None else 1.5 * factor

    found = grown(speedup, BF16, FUSED)
    assert FUSED.key not in found.stack.settings
    found.decisions.take("fused_optimizer", Decision.ACCEPTED)
    found.search.grow(found.solo(BF16, FUSED))
    found.search.leave_one_out()
    assert (FUSED.key in found.stack.settings) is stays
    assert stays or found.stack.dropped[FUSED.key]
