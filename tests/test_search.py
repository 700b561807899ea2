"""The search on made-up workloads: which moves it makes, and which stack it ends with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from facts import adamw_facts, cpu_facts, gpu_facts, loader_facts, profile_facts
from made_up import (
    BF16,
    BLOCKS,
    CATALOG,
    COMPILED,
    CUDNN,
    FUSED,
    GRAPH,
    LAST,
    TF32,
    WITH_LOSS,
    WORKERS,
    FakeLab,
    failed,
    found_by,
    known_of,
    product,
    result_at,
)

from advisor.experiment.control import REJECTED, Decision
from advisor.experiment.judge import BASELINE
from advisor.experiment.known import Kind
from advisor.experiment.moves import moves, why_not
from advisor.experiment.objective import Goal
from advisor.experiment.search import best, search
from advisor.recipe.settings import Settings
from advisor.records import Bottleneck, Numerics, Objective, Outcome


def together(*candidates):
    """The settings of several candidates."""
    settings = Settings()
    for candidate in candidates:
        settings = settings.merged(candidate.settings)
    return settings


PLAIN = together(BF16, LAST, FUSED, GRAPH)
WHOLE = together(BF16, LAST, FUSED, GRAPH, WITH_LOSS)
UNCAPTURED = PLAIN.without(GRAPH.key)
IN_PARTS = {**WITH_LOSS.settings, "compile.mode": "reduce-overhead"}
EVERYTHING_HELPS = product(autocast=1.5, channels_last=1.2, fused_optimizer=1.05, step_graph=1.3, compile_scope=1.4)


# --- the leap -------------------------------------------------------------------------------------------------


def test_the_first_two_stacks_are_the_usual_one_and_the_same_compiled():
    known, lab = found_by(EVERYTHING_HELPS)
    assert lab.settings_of(Kind.LEAP)[:2] == [PLAIN, WHOLE]
    assert [move.kind for move in lab.asked[:3]] == [Kind.LEAP, Kind.CONTROL, Kind.LEAP], "the noise is known before"
    assert known.stack == WHOLE
    assert known.judge.proven(WHOLE)


def test_no_setting_needs_to_gain_alone():
    """Autocast gains nothing on a host-bound step, and much once it is captured."""

    def speed(settings):
        return product(step_graph=2.0)(settings) * (1.8 if set(PLAIN) <= set(settings) else 1.0)

    known, _ = found_by(speed)
    assert set(PLAIN) <= set(known.stack)


def test_in_little_time_only_the_leap_is_made():
    known, lab = found_by(EVERYTHING_HELPS, budget_s=3.0)
    assert [move.kind for move in lab.asked] == [Kind.LEAP]
    assert known.stack == PLAIN


@pytest.mark.parametrize(
    ("culprit", "reason", "expected"),
    [
        (GRAPH.key, "RuntimeError: operation not permitted when stream is capturing", PLAIN.without(GRAPH.key)),
        (WITH_LOSS.key, "RuntimeError: torch.compile does not currently support double backward", PLAIN),
        (LAST.key, "RuntimeError: no such layout", PLAIN.without(LAST.key)),
        (FUSED.key, "ValueError: cannot be fused", PLAIN.without(FUSED.key)),
    ],
)
def test_a_leap_that_fails_is_made_again_without_the_part_that_fails(culprit, reason, expected):
    def speed(settings):
        return reason if culprit in settings else EVERYTHING_HELPS(settings)

    known, lab = found_by(speed)
    assert expected in lab.settings_of(Kind.LEAP)
    assert known.stack == (expected if culprit == WITH_LOSS.key else expected.merged(WITH_LOSS.settings))


@pytest.mark.parametrize(
    ("in_parts", "modes"),
    [(1.8, {"reduce-overhead"}), (0.7, {None}), ("RuntimeError: no such graph", {None, "default"})],
)
def test_a_step_that_cannot_be_captured_is_replayed_in_parts_where_that_gains(in_parts, modes):
    """The compiled parts record graphs of their own; where these fail or cost, the parts run without."""

    def speed(settings):
        if GRAPH.key in settings:
            return "RuntimeError: operation not permitted when stream is capturing"
        if settings.get("compile.mode") != "reduce-overhead":
            return EVERYTHING_HELPS(settings)
        return in_parts if isinstance(in_parts, str) else in_parts * EVERYTHING_HELPS(settings)

    known, lab = found_by(speed)
    assert lab.settings_of(Kind.LEAP)[:3] == [PLAIN, UNCAPTURED, UNCAPTURED.merged(IN_PARTS)]
    assert known.stack.get("compile.mode") in modes
    assert set(UNCAPTURED.merged(WITH_LOSS.settings)) <= set(known.stack)


@pytest.mark.parametrize(
    ("culprit", "reason"),
    [
        (LAST, "RuntimeError: view size is not compatible with input tensor's size and stride (at least one dimension"),
        (BF16, "RuntimeError: index_add_(): self (Float) and source (BFloat16) must have the same scalar type"),
    ],
)
def test_a_failure_that_names_its_cause_costs_one_trial(culprit, reason):
    def speed(settings):
        return reason if culprit.key in settings else EVERYTHING_HELPS(settings)

    _, lab = found_by(speed)
    without = [culprit.key not in settings for settings in lab.settings_of(Kind.LEAP)]
    assert without[:3] == [False, True, True]


def test_where_half_precision_changes_the_results_the_leap_takes_tensorfloat32():
    def speed(settings):
        result = result_at(EVERYTHING_HELPS(settings) * (1.2 if TF32.key in settings else 1.0))
        return replace(result, losses=(9.0, 9.0)) if BF16.key in settings else result

    known, lab = found_by(speed)
    assert together(TF32, LAST, FUSED, GRAPH, WITH_LOSS) == known.stack
    kinds = [move.kind for move in lab.asked]
    assert {Kind.CONTROL, Kind.REFERENCE} <= set(kinds[1:4]), "first noise and rounding are told from faults"


def test_noise_of_dropout_makes_a_leap_usable_after_all():
    """The steps draw random numbers: the control shows how far two runs of the baseline are apart."""

    def speed(settings):
        return replace(result_at(EVERYTHING_HELPS(settings)), losses=(1.3, 0.7) if settings else (1.0, 0.9))

    class Random(FakeLab):
        def measure(self, move, known):
            evidence = super().measure(move, known)
            if move.kind is Kind.CONTROL:
                return replace(evidence, control=replace(evidence.control, losses=(1.4, 0.6)))
            return evidence

    lab = Random(speed)
    known = search(known_of(), lab)
    assert known.stack == WHOLE
    assert lab.settings_of(Kind.LEAP) == [PLAIN, WHOLE]


class Dropout(FakeLab):
    """The steps draw random numbers: the first two draws of the baseline happen to lie close together."""

    def measure(self, move, known):
        evidence = super().measure(move, known)
        if move.kind is Kind.CONTROL:
            return replace(evidence, control=replace(evidence.control, losses=(1.0, 0.91)))
        if move.kind is Kind.AGAIN and not move.settings:
            losses = (1.0, 0.9 - 0.05 * (1 + len(known.judge.baseline_runs) % 3))
            return replace(evidence, runs=((BASELINE, result_at(1.0, losses=losses)),))
        return evidence


@pytest.mark.parametrize(("loss", "usable"), [(0.78, True), (9.0, False)])
def test_one_more_draw_of_the_random_numbers_is_seen_before_a_leap_is_refused(loss, usable):
    lab = Dropout(
        lambda settings: replace(result_at(EVERYTHING_HELPS(settings)), losses=(1.0, loss if settings else 0.9))
    )
    known = search(known_of(allow=Numerics.CLOSE), lab)
    assert (set(PLAIN) <= set(known.stack)) is usable


def test_a_compilation_that_crashes_is_weakened_to_the_model_alone():
    def speed(settings):
        return "InductorError: cannot fuse the loss" if WITH_LOSS.key in settings else EVERYTHING_HELPS(settings)

    known, lab = found_by(speed)
    assert PLAIN.merged(COMPILED.settings) in lab.settings_of(Kind.LEAP)
    assert not {WITH_LOSS.key} & set(known.stack)


def test_a_compilation_that_takes_too_long_is_not_tried_in_another_form_of_the_same_length():
    def speed(settings):
        compiling = {WITH_LOSS.key, COMPILED.key} & set(settings)
        return (
            failed("no result after 50 s (compiling)", Outcome.TIMED_OUT) if compiling else EVERYTHING_HELPS(settings)
        )

    known, lab = found_by(speed)
    assert known.stack == PLAIN
    assert PLAIN.merged(COMPILED.settings) not in lab.settings_of(Kind.LEAP)


def detector(settings):
    """Boxes whose number depends on the data: no graph, casts that only cost the host time, a slow compilation."""
    if GRAPH.key in settings:
        return "RuntimeError: operation not permitted when stream is capturing"
    if CATALOG.cost(settings):
        return failed("it was not done within its time", Outcome.TIMED_OUT)
    return product(autocast=0.8, fused_optimizer=1.15, tf32=1.05, channels_last=1.05)(settings)


def test_a_leap_that_gains_nothing_is_made_again_without_half_precision_before_anything_is_compiled():
    known, lab = found_by(detector, budget_s=100.0)
    lighter = together(TF32, LAST, FUSED)
    assert lab.asked[2].settings == lighter
    assert known.stack == lighter
    kinds = [move.kind for move in lab.asked if not CATALOG.cost(move.settings)]
    assert {Kind.PROFILE, Kind.CONTROL, Kind.DROP, Kind.ADD} <= set(kinds), "time is left for cheap questions"


def test_what_takes_as_long_to_compile_as_what_was_not_done_in_time_is_not_tried():
    _, lab = found_by(detector, budget_s=1000.0)
    costs = [CATALOG.cost(move.settings) for move in lab.asked if CATALOG.cost(move.settings)]
    assert costs == sorted(costs, reverse=True)
    assert len(costs) == len(set(costs)), "only what compiles less is tried after it"


def test_a_setting_that_failed_with_others_that_run_without_it_is_not_expected_to_gain_anything():
    _, lab = found_by(detector, budget_s=60.0)
    assert not [move for move in lab.asked[1:] if GRAPH.key in move.settings]


def test_what_fails_in_every_form_is_given_up():
    known, lab = found_by(lambda settings: "CUDA error" if settings else 1.0)
    assert known.stack == BASELINE
    assert len(lab.settings_of(Kind.LEAP)) < 12
    assert all(known.record(candidate) or why_not(known, candidate) for candidate in known.plan.candidates)


def test_a_step_that_waits_for_its_data_leaps_over_loader_and_step_at_once():
    waiting = profile_facts(bottleneck=Bottleneck.INPUT, phases={**profile_facts().phases, "data wait": 300.0})
    facts = gpu_facts(loader=loader_facts(), profile=replace(waiting, step_ms=400.0))
    _, lab = found_by(product(num_workers=4.0, autocast=1.2), facts)
    assert set(PLAIN) | {WORKERS.key, "data.pin_memory"} <= set(lab.asked[0].settings)


def test_a_leap_that_gained_nothing_is_made_again_once_the_step_no_longer_waits():
    """Nobody saw that the step waits for its data: the step's own settings gain only beside the workers."""

    def speed(settings):
        return 3.0 * EVERYTHING_HELPS(settings) if WORKERS.key in settings else 1.0

    known, _ = found_by(speed, gpu_facts(loader=loader_facts()))
    assert set(WHOLE) | {WORKERS.key} <= set(known.stack)


def test_hints_of_an_earlier_session_join_the_leap():
    hinted = known_of(hints={"memory.activation_checkpointing": "blocks", "nonsense.key": 3})
    assert "nonsense.key" not in hinted.usual
    lab = FakeLab(EVERYTHING_HELPS)
    search(hinted, lab)
    assert lab.asked[0].settings["precision.autocast"] == "bfloat16"


# --- the loop -------------------------------------------------------------------------------------------------


def test_every_setting_of_the_stack_gets_a_contribution():
    known, _ = found_by(EVERYTHING_HELPS)
    for candidate, factor in ((BF16, 1.5), (LAST, 1.2), (FUSED, 1.05), (GRAPH, 1.3), (WITH_LOSS, 1.4)):
        record = known.record(candidate)
        assert record.contribution.speedup == pytest.approx(factor, rel=0.01)


def test_contributions_that_cost_no_compilation_come_before_exotic_settings():
    _, lab = found_by(EVERYTHING_HELPS)
    adds = [place for place, move in enumerate(lab.asked) if move.kind is Kind.ADD]
    drops = [place for place, move in enumerate(lab.asked) if move.kind is Kind.DROP]
    assert sum(place < adds[0] for place in drops) >= 4


def test_a_setting_that_costs_speed_in_company_goes():
    def speed(settings):
        both = BF16.key in settings and LAST.key in settings
        return EVERYTHING_HELPS(settings) * (0.6 if both else 1.0)

    known, _ = found_by(speed)
    assert LAST.key not in known.stack
    assert known.dropped[LAST.key] == "the others do as well without it"


def test_what_adds_nothing_leaves_once_two_runs_of_each_say_so():
    known, lab = found_by(product(autocast=1.5, step_graph=1.5, compile_scope=1.2, channels_last=1.2))
    assert FUSED.key not in known.stack
    assert Kind.AGAIN in {move.kind for move in lab.asked}


def test_cudnn_benchmark_joins_where_it_helps_and_stays_out_where_it_costs():
    helps, _ = found_by(lambda settings: EVERYTHING_HELPS(settings) * (1.1 if CUDNN.key in settings else 1.0))
    costs, lab = found_by(lambda settings: EVERYTHING_HELPS(settings) * (0.8 if CUDNN.key in settings else 1.0))
    assert CUDNN.key in helps.stack
    assert CUDNN.key not in costs.stack
    assert any(CUDNN.key in move.settings for move in lab.asked)


def test_what_a_setting_rules_out_takes_its_place_where_that_is_better():
    speed = product(step_graph=2.0, autocast=1.02, tf32=1.4, compile_scope=1.2, channels_last=1.1)
    known, _ = found_by(speed, gpu_facts(families={"conv2d": 3, "attention": 3}))
    assert known.stack[TF32.key] == "high"
    assert BF16.key not in known.stack


def test_what_a_setting_rules_out_is_not_tried_where_the_setting_gains_much():
    _, lab = found_by(product(step_graph=1.2, autocast=2.5, tf32=1.4))
    assert not any(TF32.key in move.settings for move in lab.asked if len(move.settings) > 1)


def test_without_a_usual_stack_single_settings_are_asked_one_by_one():
    known, lab = found_by(product(host_gc=1.3), only=("host_gc", "reduced_reduction"))
    assert not lab.settings_of(Kind.LEAP)
    assert "host.gc" in known.stack


def test_one_slow_process_does_not_cost_a_usual_setting_its_place():
    """The stack's first run is 9 % slower than its others: without channels-last it then seems faster."""
    runs = []

    def speed(settings):
        runs.append(settings)
        slow = 0.91 if settings == WHOLE and runs.count(WHOLE) == 1 else 1.0
        return EVERYTHING_HELPS(settings) * slow

    known, _ = found_by(speed)
    assert set(known.stack) == set(WHOLE)


@pytest.mark.parametrize("budget_s", [2, 6, 34, 40, 60, 120])
def test_the_search_ends_with_its_budget_and_keeps_the_best_so_far(budget_s):
    known, lab = found_by(EVERYTHING_HELPS, budget_s=budget_s)
    assert lab.spent_s <= budget_s
    assert known.stack == (WHOLE if budget_s >= 34 else PLAIN)


def test_the_search_ends_early_when_nothing_is_left():
    known, lab = found_by(EVERYTHING_HELPS, budget_s=1e6)
    assert lab.spent_s < 1200
    assert best(moves(known), known, lab) is None


def test_ladders_end_at_their_knee():
    def speed(settings):
        size = settings.get("data.batch_size", 32)
        return min(2.0, (size / 32) ** 0.5) if len(settings) == 1 else EVERYTHING_HELPS(settings)

    known, _ = found_by(speed)
    sizes = [c for c in known.plan.candidates if c.recipe == "batch_size"]
    tried = [c.value for c in sizes if known.record(c) is not None]
    assert tried == sorted(tried)
    assert 128 in tried
    assert max(tried) <= 512
    left = next(c for c in sizes if known.record(c) is None)
    assert why_not(known, left) == f"batch_size={max(tried)} was no better than the value before it"


def test_nothing_that_changes_results_enters_without_consent():
    known, _ = found_by(lambda settings: 10.0 if "data.batch_size" in settings else EVERYTHING_HELPS(settings))
    assert "data.batch_size" not in known.stack
    allowed, _ = found_by(
        lambda settings: EVERYTHING_HELPS(settings) * (2.0 if "data.batch_size" in settings else 1.0),
        allow=Numerics.CHANGED,
    )
    assert "data.batch_size" in allowed.stack


# --- the proof ------------------------------------------------------------------------------------------------


def test_a_stack_that_its_turns_show_to_be_no_better_is_given_up():
    runs = []

    def speed(settings):
        runs.append(settings)
        return 1.5 if settings and runs.count(settings) == 1 else 0.5 if settings else 1.0

    known, lab = found_by(speed, only=("channels_last",))
    assert Kind.TURNS in {move.kind for move in lab.asked}
    assert known.stack == BASELINE
    assert "not measurably faster" in known.dropped[LAST.key]


def test_a_weakened_leap_that_seemed_better_by_chance_leaves_again():
    """The whole stack cannot be captured; what is left was lucky once, and its other runs are slower than nothing."""
    runs = []

    def speed(settings):
        if GRAPH.key in settings:
            return "RuntimeError: operation not permitted when stream is capturing"
        runs.append(settings)
        lucky = runs.count(settings) == 1 and set(settings) == set(PLAIN.without(GRAPH.key))
        return 1.02 if lucky else 0.9 if settings else 1.0

    known, _ = found_by(speed)
    assert known.stack == BASELINE


def test_a_weakened_leap_gives_way_to_a_better_one_that_is_measured_twice():
    """The compiled stack was unlucky once: the next process shows that it is the better one."""
    runs = []
    compiled = WHOLE.without(GRAPH.key)

    def speed(settings):
        if GRAPH.key in settings:
            return "RuntimeError: operation not permitted when stream is capturing"
        runs.append(settings)
        if settings == compiled:
            return 1.38 if runs.count(settings) == 1 else 1.6
        return 1.4 if set(settings) == set(PLAIN.without(GRAPH.key)) else 1.0

    known, _ = found_by(speed)
    assert set(compiled) <= set(known.stack)


def test_turns_that_leave_it_open_are_taken_again_and_are_no_proof():
    scattered = iter([1.3, 1.02, 1.25, 1.25, 1.28, 1.27])

    def speed(settings):
        return next(scattered, 1.27) if settings == LAST.settings else 1.0

    noisy = gpu_facts(profile=profile_facts(device_busy_share=0.3))
    known, lab = found_by(speed, noisy, only=("channels_last",))
    assert len(lab.settings_of(Kind.TURNS)) > 1
    assert known.stack == LAST.settings


def test_after_turns_that_show_no_gain_the_next_best_leap_is_the_stack():
    runs = []

    def speed(settings):
        runs.append(settings)
        if settings == WHOLE:
            return 1.8 if runs.count(settings) == 1 else 0.5
        return EVERYTHING_HELPS(settings) if set(settings) <= set(PLAIN) else 0.9

    known, _ = found_by(speed)
    assert known.stack
    assert set(known.stack) <= set(PLAIN)


# --- decisions ------------------------------------------------------------------------------------------------


def decided(known, **decisions):
    return known.under(replace(known.plan.consent, decisions={k: Decision(v) for k, v in decisions.items()}))


def test_what_is_rejected_goes_and_the_rest_is_measured_next():
    known, _ = found_by(EVERYTHING_HELPS)
    after = decided(known, autocast="rejected")
    assert after.stack == WHOLE.without(BF16.key)
    assert after.dropped[BF16.key] == REJECTED
    lab = FakeLab(EVERYTHING_HELPS)
    again = search(after, lab)
    if not known.judge.knows(after.stack):
        assert lab.asked[0].settings == after.stack
    assert BF16.key not in again.stack
    assert not any(BF16.key in move.settings for move in lab.asked)


def test_taking_a_decision_back_gives_the_setting_another_chance():
    known, _ = found_by(EVERYTHING_HELPS)
    back = decided(decided(known, autocast="rejected"), autocast="rejected")
    assert decided(back).dropped.get(BF16.key) is None
    assert search(decided(back), FakeLab(EVERYTHING_HELPS)).stack == WHOLE


def test_a_rest_that_fails_leaves_the_best_that_was_measured():
    known, _ = found_by(EVERYTHING_HELPS)
    rest = WHOLE.without(GRAPH.key).without(FUSED.key)
    after = decided(known, step_graph="rejected", fused_optimizer="rejected")
    assert after.stack == rest

    def speed(settings):
        return "out of memory" if settings == rest else EVERYTHING_HELPS(settings)

    again = search(after, FakeLab(speed))
    assert again.stack
    assert not {GRAPH.key, FUSED.key} & set(again.stack)


@pytest.mark.parametrize(("factor", "stays"), [(1.0, True), (0.8, False)])
def test_what_is_accepted_joins_unless_it_makes_the_whole_slower(factor, stays):
    def speed(settings):
        return EVERYTHING_HELPS(settings) * (factor if "data.batch_size" in settings else 1.0)

    known, _ = found_by(speed)
    after = search(decided(known, batch_size="accepted"), FakeLab(speed))
    assert ("data.batch_size" in after.stack) is stays


def test_decisions_taken_meanwhile_steer_the_search():
    def follow(known):
        return decided(known, autocast="rejected") if known.stack else known

    lab = FakeLab(EVERYTHING_HELPS)
    lab.follow = follow
    known = search(known_of(), lab)
    assert BF16.key not in known.stack
    assert not any(BF16.key in move.settings for move in lab.asked[1:])


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
    return gpu_facts(families={"linear": 12}, repeated_blocks=(("Block", 12),), optimizer=adamw_facts())


def test_with_memory_as_the_goal_the_leap_saves_it():
    known, lab = found_by(SAVES, memory_facts(), goal=Goal(Objective.MEMORY))
    assert BLOCKS.key in lab.asked[0].settings
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


def test_on_a_cpu_the_search_makes_the_same_loop():
    known, lab = found_by(product(channels_last=1.3, compile=1.5, autocast=1.2), cpu_facts())
    assert lab.asked[0].kind is Kind.LEAP
    assert LAST.key in known.stack


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


def test_a_setting_that_was_left_out_does_not_come_back_with_the_next_instrument():
    known, _ = found_by(product(autocast=1.5, step_graph=1.5, compile_scope=1.2, channels_last=1.2))
    assert FUSED.key in known.dropped
    move = next(move for move in moves(replace(known, done=known.done - {Kind.HOST})) if move.kind is Kind.HOST)
    assert known.after(move, FakeLab(EVERYTHING_HELPS).measure(move, known)).stack == known.stack


def fragmented(**changes):
    return replace(gpu_facts(), peak_allocated_bytes=4 * 2**30, peak_reserved_bytes=8 * 2**30, **changes)


def allocators_tried(lab):
    return [move.settings for move in lab.asked if "memory.allocator" in move.settings]


def test_a_fresh_interpreter_is_started_only_for_what_may_gain_something():
    """A GPT-2's three allocators took a tenth of its session, most of it imports, and never gained speed."""
    known, lab = found_by(EVERYTHING_HELPS, fragmented())
    assert not allocators_tried(lab)
    left = next(c for c in known.plan.candidates if c.recipe == "allocator")
    assert "--only allocator" in why_not(known, left)


@pytest.mark.parametrize(
    "options",
    [
        {"only": ("allocator",)},
        {"goal": Goal(Objective.MEMORY)},
        {"goal": Goal(memory_limit_bytes=6 * 2**30)},
    ],
)
def test_allocators_are_tried_where_they_are_asked_for_or_memory_counts(options):
    _, lab = found_by(EVERYTHING_HELPS, fragmented(), **options)
    assert allocators_tried(lab)
