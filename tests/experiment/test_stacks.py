"""The whole stacks of the search on made-up workloads, and the settings left out of failing stacks."""

from dataclasses import replace

import pytest
from facts import gpu_facts, loader_facts, profile_facts
from made_up import (
    BF16,
    CATALOG,
    COMPILED,
    EVERYTHING_HELPS,
    FUSED,
    GRAPH,
    LAST,
    PLAIN,
    TF32,
    UNCAPTURED,
    WHOLE,
    WITH_LOSS,
    WORKERS,
    MadeUpTrials,
    failed,
    found_by,
    known_of,
    product,
    result_at,
    together,
)

from advisor.experiment.caveats import of_failures
from advisor.experiment.known import Evidence, Kind
from advisor.experiment.moves import moves
from advisor.experiment.search import search
from advisor.judging.judge import BASELINE, CONTROL_SETTINGS
from advisor.recipe.settings import Settings
from advisor.records import Bottleneck, Cause, Numerics, Outcome

IN_PARTS = {**WITH_LOSS.settings, "compile.mode": "reduce-overhead"}


def test_the_first_two_stacks_are_the_usual_one_and_the_same_compiled():
    known, trials = found_by(EVERYTHING_HELPS)
    assert trials.settings_of(Kind.STACK)[:2] == [PLAIN, WHOLE]
    assert known.stack == WHOLE
    assert known.judge.took_turns(WHOLE)


def test_no_setting_needs_to_gain_alone():
    """Autocast gains nothing on a host-bound step, and much once it is captured."""

    def speed(settings):
        return product(step_graph=2.0)(settings) * (1.8 if set(PLAIN) <= set(settings) else 1.0)

    known, _ = found_by(speed)
    assert set(PLAIN) <= set(known.stack)


@pytest.mark.parametrize(
    ("culprit", "reason", "tried"),
    [
        (GRAPH.key, "RuntimeError: operation not permitted when stream is capturing", PLAIN.without(GRAPH.key)),
        (WITH_LOSS.key, failed("no second derivative", Outcome.FAILED, Cause.DOUBLE_BACKWARD), PLAIN),
        (WITH_LOSS.key, failed("cannot fuse", Outcome.FAILED, Cause.COMPILER), PLAIN.merged(COMPILED.settings)),
        (LAST.key, "RuntimeError: no such layout", PLAIN.without(LAST.key)),
        (FUSED.key, "ValueError: cannot be fused", PLAIN.without(FUSED.key)),
    ],
)
def test_a_stack_that_fails_is_made_again_without_the_part_that_fails(culprit, reason, tried):
    def speed(settings):
        return reason if culprit in settings else EVERYTHING_HELPS(settings)

    known, trials = found_by(speed)
    assert tried in trials.settings_of(Kind.STACK)
    assert known.stack == (PLAIN if culprit == WITH_LOSS.key else tried.merged(WITH_LOSS.settings))


@pytest.mark.parametrize(
    ("in_parts", "modes", "next_mode"),
    [(1.8, {"reduce-overhead"}, []), (0.7, {None}, [None]), ("RuntimeError: no graph", {None, "default"}, ["default"])],
)
def test_a_step_that_cannot_be_captured_is_replayed_in_parts_where_that_gains(in_parts, modes, next_mode):
    """The compiled parts record their own graphs; if these fail or cost time, the parts run without graphs."""

    def speed(settings):
        if GRAPH.key in settings:
            return "RuntimeError: operation not permitted when stream is capturing"
        if settings.get("compile.mode") != "reduce-overhead":
            return EVERYTHING_HELPS(settings)
        return in_parts if isinstance(in_parts, str) else in_parts * EVERYTHING_HELPS(settings)

    known, trials = found_by(speed, gpu_facts(parameters=25_000_000))
    assert trials.settings_of(Kind.STACK)[:3] == [PLAIN, UNCAPTURED, UNCAPTURED.merged(IN_PARTS)]
    assert known.stack.get("compile.mode") in modes
    assert set(UNCAPTURED.merged(WITH_LOSS.settings)) <= set(known.stack)
    assert [stack.get("compile.mode") for stack in trials.settings_of(Kind.STACK)[3:4]] == next_mode


@pytest.mark.parametrize(
    ("culprit", "reason"),
    [
        (LAST, failed("view size is not compatible", Outcome.FAILED, Cause.LAYOUT, Cause.OPERATION)),
        (BF16, failed("self and source must have the same scalar type", Outcome.FAILED, Cause.OPERATION)),
    ],
)
def test_a_failure_that_names_its_cause_costs_one_trial(culprit, reason):
    def speed(settings):
        return reason if culprit.key in settings else EVERYTHING_HELPS(settings)

    _, trials = found_by(speed, most=6)
    assert [culprit.key not in settings for settings in trials.settings_of(Kind.STACK)][:3] == [False, True, True]


@pytest.mark.parametrize("cause", [Cause.DOUBLE_BACKWARD, Cause.LAYOUT])
def test_what_the_compiler_does_not_take_is_not_compiled_again(cause):
    def speed(settings):
        compiles = any(key.startswith("compile.") for key in settings)
        takes = cause is Cause.LAYOUT and LAST.key not in settings
        return EVERYTHING_HELPS(settings) if takes or not compiles else failed("no", Outcome.FAILED, cause)

    known, _ = found_by(speed)
    compiled = [settings for settings in known.judge.runs if any(key.startswith("compile.") for key in settings)]
    assert len([settings for settings in compiled if not known.judge.measured_runs(settings)]) == 1
    assert any(known.judge.measured_runs(settings) for settings in compiled) is (cause is Cause.LAYOUT)


def test_two_parts_that_fail_for_reasons_of_their_own_are_left_out_one_after_the_other():
    """A detector's own kernel knows no half precision, and its step cannot be captured."""

    def speed(settings):
        if BF16.key in settings:
            return failed("\"nms_kernel\" not implemented for 'BFloat16'", Outcome.FAILED, Cause.OPERATION)
        if GRAPH.key in settings:
            return failed("a tensor was replaced", Outcome.FAILED, Cause.CAPTURE)
        return EVERYTHING_HELPS(settings)

    known, trials = found_by(speed)
    in_tf32 = PLAIN.without(BF16.key).merged(TF32.settings)
    assert trials.settings_of(Kind.STACK)[:3] == [PLAIN, in_tf32, in_tf32.without(GRAPH.key)]
    assert known.stack == together(LAST, FUSED, WITH_LOSS), "TensorFloat-32 gains nothing here"
    assert not [*of_failures(known)], "each row says why"
    known, _ = found_by(lambda settings: failed("no luck", Outcome.FAILED) if len(settings) > 1 else 1.0)
    assert any("together these fail" in text for text, _ in of_failures(known))


def test_where_half_precision_changes_the_results_the_stack_takes_tensorfloat32():
    def speed(settings):
        result = result_at(EVERYTHING_HELPS(settings) * (1.2 if TF32.key in settings else 1.0))
        return replace(result, losses=(9.0, 9.0)) if BF16.key in settings else result

    known, trials = found_by(speed)
    assert together(TF32, LAST, FUSED, GRAPH, WITH_LOSS) == known.stack
    kinds = [move.kind for move in trials.asked]
    assert {Kind.CONTROL, Kind.REFERENCE} <= set(kinds[1:4]), "first noise and rounding are told from faults"


def test_a_stack_that_the_reference_refutes_gives_way_to_a_simpler_form():
    """Without a reference 8 % may be rounding; the reference shows that here it is not."""

    class Exact(MadeUpTrials):
        def measure(self, move, known):
            if move.kind is Kind.REFERENCE:
                self.asked.append(move)
                return Evidence(reference=replace(result_at(1.0), losses=(1.0, 0.9), outputs=(1.0, 1.0)))
            return super().measure(move, known)

    def speed(settings):
        outputs = (1.3, 1.3) if BF16.key in settings else (1.0, 1.0)
        return replace(result_at(EVERYTHING_HELPS(settings)), losses=(1.0, 0.9), outputs=outputs)

    trials = Exact(speed)
    judge = known_of(allow=Numerics.CLOSE).judge
    baseline = replace(judge.baseline, losses=(1.0, 0.9), outputs=(1.0, 1.0))
    known = search(replace(known_of(allow=Numerics.CLOSE), judge=replace(judge, baseline=baseline)), trials, moves)
    assert trials.settings_of(Kind.STACK)[0] == PLAIN
    assert known.stack == WHOLE.without(BF16.key)


class Random(MadeUpTrials):
    """The steps draw random numbers: the control shows how far two runs of the baseline are apart."""

    of_control = (1.4, 0.6)

    def measure(self, move, known):
        evidence = super().measure(move, known)
        if move.kind is Kind.CONTROL:
            return Evidence(runs=((CONTROL_SETTINGS, result_at(1.0, losses=self.of_control)),))
        return evidence


def test_noise_of_dropout_makes_a_stack_usable_after_all():
    def speed(settings):
        return replace(result_at(EVERYTHING_HELPS(settings)), losses=(1.3, 0.7) if settings else (1.0, 0.9))

    trials = Random(speed)
    assert search(known_of(), trials, moves).stack == WHOLE
    assert trials.settings_of(Kind.STACK) == [PLAIN, WHOLE]


@pytest.mark.parametrize("seen_late", [False, True])
def test_half_precision_that_launches_hide_is_judged_compiled(seen_late):
    """A step of many launches with dropout: uncompiled, half precision gains less than TensorFloat-32."""

    def speed(settings):
        half, rounded = BF16.key in settings, TF32.key in settings
        gained = (4.5 if half else 3.0) if CATALOG.compiles(settings) else 1.5 if half else 2.0 if rounded else 1.0
        return replace(result_at(gained), losses=(1.3, 0.7) if half else (1.0, 0.9))

    known, trials = known_of(only=("autocast", "tf32", "compile")), Random(speed)
    if seen_late:  # the compiled stack had to do without it at first
        compiled = together(TF32, COMPILED)
        judge = known.judge.with_run(compiled, trials.run(compiled)).with_run(
            Settings(BF16.settings), trials.run(Settings(BF16.settings))
        )
        known = replace(known, judge=judge, stack=compiled)
    known = search(known, trials, moves)
    assert {BF16.key, COMPILED.key} <= set(known.found)
    assert seen_late or trials.settings_of(Kind.STACK) == [Settings(BF16.settings), together(BF16, COMPILED)]


class Dropout(Random):
    """The first two draws of the baseline happen to lie close together."""

    of_control = (1.0, 0.91)

    def measure(self, move, known):
        evidence = super().measure(move, known)
        if move.kind is Kind.AGAIN and not move.settings:
            losses = (1.0, 0.9 - 0.05 * (1 + len(known.judge.baseline_runs) % 3))
            return replace(evidence, runs=((BASELINE, result_at(1.0, losses=losses)),))
        return evidence


@pytest.mark.parametrize(("loss", "usable"), [(0.78, True), (9.0, False)])
def test_one_more_draw_of_the_random_numbers_is_seen_before_a_stack_is_refused(loss, usable):
    trials = Dropout(
        lambda settings: replace(result_at(EVERYTHING_HELPS(settings)), losses=(1.0, loss if settings else 0.9))
    )
    assert (set(PLAIN) <= set(search(known_of(allow=Numerics.CLOSE), trials, moves).stack)) is usable


ON_DEVICE = "step.create_on_device"
HOST_COPY = failed("a copy from the host", Outcome.FAILED, Cause.HOST_COPY, Cause.CAPTURE)


def makes_masks(settings):
    """A step that makes a mask on the host, as `torch.ones(n).to(x.device)` does."""
    return HOST_COPY if GRAPH.key in settings and ON_DEVICE not in settings else EVERYTHING_HELPS(settings)


def test_a_step_that_makes_tensors_on_the_host_is_captured_with_them_made_on_the_gpu():
    known, trials = found_by(makes_masks)
    assert trials.settings_of(Kind.STACK)[:2] == [PLAIN, PLAIN.with_value(ON_DEVICE, True)]
    assert set(WHOLE) | {ON_DEVICE} == set(known.stack)
    assert "create_on_device" not in known.plan.skipped, "no recipe proposed it before the step was looked into"
    assert any(known.record(c) for c in known.plan.candidates if c.key == ON_DEVICE)


IN_BACKWARD = failed("stream is capturing", Outcome.FAILED, Cause.CAPTURE, Cause.CAPTURE_OF_BACKWARD)
IN_LOSS = replace(HOST_COPY, causes=(*HOST_COPY.causes, Cause.CAPTURE_OF_LOSS))


@pytest.mark.parametrize("problem", [HOST_COPY, IN_LOSS, IN_BACKWARD])
def test_what_a_compiler_takes_out_of_a_step_does_not_keep_it_from_being_captured_compiled(problem):
    def speed(settings):
        if settings.get(GRAPH.key) is True and WITH_LOSS.key not in settings:
            return problem
        return EVERYTHING_HELPS(settings)

    known, trials = found_by(speed)
    assert known.stack == WHOLE
    assert next(settings for settings in trials.settings_of(Kind.STACK) if CATALOG.cost(settings)) == WHOLE


def test_where_the_compiled_step_cannot_be_captured_either_the_form_that_ran_is_compiled():
    known, trials = found_by(lambda settings: IN_BACKWARD if GRAPH.key in settings else EVERYTHING_HELPS(settings))
    compiled = [settings for settings in trials.settings_of(Kind.STACK) if CATALOG.cost(settings)]
    assert compiled[:2] == [WHOLE, PLAIN.without(GRAPH.key).merged(IN_PARTS)]
    assert GRAPH.key not in known.stack


def test_what_the_person_left_out_is_not_brought_in_to_capture_the_step():
    _, trials = found_by(makes_masks, skip=("create_on_device",))
    assert not any(ON_DEVICE in settings for settings in trials.settings_of(Kind.STACK))


def test_a_compilation_that_takes_too_long_is_not_tried_in_another_form_of_the_same_length():
    def speed(settings):
        compiling = {WITH_LOSS.key, COMPILED.key} & set(settings)
        return (
            failed("no result after 50 s (compiling)", Outcome.TIMED_OUT) if compiling else EVERYTHING_HELPS(settings)
        )

    known, trials = found_by(speed)
    assert known.stack == PLAIN
    assert PLAIN.merged(COMPILED.settings) not in trials.settings_of(Kind.STACK)


WAITS = profile_facts(step_ms=400.0, bottleneck=Bottleneck.INPUT, phases={**profile_facts().phases, "data wait": 300.0})
WAITING = gpu_facts(loader=loader_facts(), profile=WAITS)


def test_a_step_that_waits_for_its_data_changes_loader_and_step_at_once():
    _, trials = found_by(product(num_workers=4.0, autocast=1.2), WAITING, most=1)
    assert set(PLAIN) | {WORKERS.key, "data.pin_memory"} <= set(trials.asked[0].settings)


def test_where_a_stack_fails_the_settings_of_the_loader_are_doubted_last():
    def speed(settings):
        return "RuntimeError: nobody knows it" if LAST.key in settings else EVERYTHING_HELPS(settings)

    _, trials = found_by(speed, WAITING, most=8)
    failed_ones = [settings for settings in trials.settings_of(Kind.STACK) if LAST.key in settings]
    assert failed_ones
    assert all(WORKERS.key in settings for settings in failed_ones)


def test_a_stack_that_gained_nothing_is_made_again_once_the_step_no_longer_waits():
    """The profile did not show that the step waits for its data: its other settings gain only together with workers."""

    def speed(settings):
        return 3.0 * EVERYTHING_HELPS(settings) if WORKERS.key in settings else 1.0

    known, _ = found_by(speed, gpu_facts(loader=loader_facts()))
    assert set(WHOLE) | {WORKERS.key} <= set(known.stack)


ROUND = gpu_facts(own_step=True, capture_problem="the step is a round of a script's loop")


def test_where_no_graph_can_hold_the_step_the_compilers_own_graphs_do():
    facts, known = ROUND, known_of(ROUND)
    assert known.compiles == {"compile.mode": "reduce-overhead"}
    assert known_of(replace(facts, workload=replace(facts.workload, models=2))).compiles == COMPILED.settings
    already = {"compile.mode": "default"}
    assert known_of(replace(facts, workload=replace(facts.workload, current=already))).compiles == known.compiles


def test_who_leaves_out_graphs_gets_none_of_the_compilers():
    assert known_of(ROUND, skip=("step_graph",)).compiles == COMPILED.settings
