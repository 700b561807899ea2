"""The budget: its limits, the expected durations of trials and compilations, and the moves without time."""

import math
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from facts import GIB, cpu_facts, gpu_facts, host
from fake_trials import FakeRun
from made_up import bench_of, failed
from stopped_clock import Clock

from advisor.errors import TooSlowError
from advisor.experiment.measuring.baseline import reference_spec
from advisor.experiment.measuring.budget import Budget, expected_compile_s
from advisor.judging.numerics import Spread
from advisor.recipe.settings import Settings
from advisor.records import Block, Hardware, Outcome, TargetSpec, TrialResult, TrialSpec
from advisor.runner.trials import Runner
from advisor.trial.main import Stages
from advisor.workloads.loop import Loop

PLAIN, DEFAULT, TUNED = Settings(), Settings({"compile.mode": "default"}), Settings({"compile.mode": "max-autotune"})


@pytest.fixture
def clock():
    return Clock(100.0)


def test_a_trial_measures_for_a_share_within_bounds(clock):
    shares = [Budget(total_s, clock).measure_s for total_s in (1, 15, 100, 10_000)]
    assert shares == sorted(shares)
    assert shares[0] == shares[1] == 0.5
    assert shares[-1] == 3.0


def test_a_budget_is_spent_and_may_be_extended(clock):
    budget = Budget(90.0, clock)
    clock.now += 60
    assert (budget.spent_s, budget.left_s) == (60.0, 30.0)
    assert [budget.allows(20.0, reserve_s=reserve_s) for reserve_s in (10.0, 10.1)] == [True, False]
    budget.extended_s = 30.0
    assert (budget.left_s, budget.timeout_s) == (60.0, 59.5)
    with budget.stopped():
        clock.now += 90
    assert budget.left_s == 60.0
    clock.now += 90
    assert (budget.left_s, budget.timeout_s) == (0.0, 0.5)
    measure_s = budget.measure_s
    budget.extended_s += 60.0
    assert (budget.left_s, budget.measure_s) == (30.0, measure_s)
    budget.restart()
    assert budget.left_s == 90.0
    budget.restart(20.0)
    assert (budget.total_s, budget.left_s) == (20.0, 20.0)


def test_before_anything_was_measured_a_trial_takes_what_it_measures_twice_and_a_second(clock):
    budget = Budget(100.0, clock)
    assert budget.expected_s(PLAIN) == 4.0
    assert budget.expected_s(DEFAULT) == 4.0 + 25.0


def test_a_trial_is_expected_to_take_as_long_as_those_with_the_closest_settings(clock):
    budget = Budget(90.0, clock)
    stack = Settings({"precision.autocast": "bfloat16", "model.memory_format": "channels_last", "cpu.threads": 1})
    budget.baseline_s = 18.0
    for wall_s in (2.5, 3.5):
        budget.learn(stack, wall_s)
    assert (budget.expected_s(PLAIN), budget.expected_s(stack)) == (18.0, 3.0)
    budget.learn(PLAIN, 16.0)
    assert budget.expected_s(PLAIN) == 16.0
    alone, another = Settings({"data.num_workers": 2}), stack.merged({"data.num_workers": 2})
    assert (budget.expected_s(alone), budget.expected_s(another)) == (16.0, 3.0)
    assert budget.expected_s(stack.merged({"cpu.threads": 2})) == 3.0  # another value is one change


def test_what_only_the_first_trial_of_a_stack_takes_is_not_expected_of_all_its_neighbours(clock):
    budget = Budget(90.0, clock)
    stack = Settings({"precision.autocast": "bfloat16", "cpu.threads": 1, "step.cuda_graph": True})
    budget.baseline_s = 4.0
    budget.learn(stack, 20.0)
    for name in ("data.pin_memory", "data.persistent_workers"):
        budget.learn(stack.merged({name: True}), 5.0)
    assert budget.expected_s(stack.merged({"data.on_device": True})) == 5.0


def test_code_that_was_compiled_before_is_expected_from_the_cache(clock):
    budget = Budget(300.0, clock)
    budget.learn(PLAIN, 2.0)
    budget.learn(DEFAULT, 30.0)
    assert not budget.has_to_compile(DEFAULT)
    assert budget.has_to_compile(TUNED)
    assert 2.0 < budget.expected_s(DEFAULT) < 0.5 * budget.expected_s(TUNED)
    budget.learn(DEFAULT, 7.0)
    assert budget.expected_s(DEFAULT) == 7.0
    assert budget.compile_s == 30.0


def test_the_longest_first_compilation_is_what_the_next_one_is_expected_to_take(clock):
    budget = Budget(300.0, clock)
    assert budget.compile_s is None
    budget.learn(DEFAULT, 30.0)
    budget.learn(TUNED, 240.0)
    budget.learn(DEFAULT, 90.0)
    assert budget.compile_s == 60.0
    assert budget.expected_s(Settings({"compile.mode": "reduce-overhead"})) == 60.0


def test_the_first_trial_gets_what_is_left_of_a_short_budget_but_a_grace_at_least(clock):
    budgets = [Budget(total_s, clock) for total_s in (1.0, 60.0, 90.0, 200.0, 600.0)]
    assert [budget.first_timeout_s for budget in budgets] == [20, 60.5, 90.5, 120, 120]
    clock.now += 50
    assert [budget.first_timeout_s for budget in budgets] == [8, 10.5, 40.5, 120, 120]


def test_an_ordinary_trial_hangs_when_it_takes_many_times_as_long_as_usual(clock):
    budget = Budget(600.0, clock)
    assert budget.hangs_after_s == math.inf
    budget.learn(PLAIN, 2.0)
    assert 20.0 < budget.hangs_after_s < 60.0 < budget.timeout_s
    budget.learn(DEFAULT, 2000.0)
    assert budget.hangs_after_s < 60.0


# Operations of the forward pass, shapes of parameters, and the seconds from the uncompiled to the compiled stack, less
# the three of an ordinary trial. Sessions on an H200's host (16 cores of a Xeon), torch 2.11.
TOOK = {
    "T5-small": (1256, 6, 49),
    "GPT-2": (674, 9, 27),
    "Llama, 8 layers": (559, 5, 26),
    "Whisper, 4 layers": (518, 10, 26),
    "ViT-S": (336, 12, 24),
    "ConvNeXt-tiny": (314, 24, 34),
    "MobileNetV3": (190, 63, 65),
    "FCN on ResNet-50": (179, 29, 35),
    "ResNet-50": (178, 28, 35),
    "diffusion U-Net": (151, 23, 33),
    "ResNet-18": (72, 17, 24),
}

# The same on two cores of an AMD EPYC, torch 2.14, of a first step that was compiled with its loss.
TOOK_ON_CPU = {"GPT, 4 blocks": (208, 9, 49), "MLP-Mixer, 6 blocks": (162, 10, 57), "U-Net, 3 levels": (37, 15, 56)}


@pytest.mark.parametrize(
    ("on", "operations", "shapes", "seconds"),
    [(on, *took) for on, table in ((gpu_facts, TOOK), (cpu_facts, TOOK_ON_CPU)) for took in table.values()],
    ids=[*TOOK, *TOOK_ON_CPU],
)
def test_the_guess_is_within_a_fifth_of_what_it_took(on, operations, shapes, seconds):
    facts = replace(on(parameter_shapes=shapes), operations=operations)
    assert expected_compile_s(facts) == pytest.approx(seconds, rel=0.2)


@pytest.mark.parametrize(("foreign_cores", "slower"), [(0.4, 1.0), (1.3, 1.65), (2.0, 2.0)])
def test_beside_programs_that_keep_the_cores_busy_it_takes_longer(foreign_cores, slower):
    """A session of 90 s once spent 42 s on a compilation that did not finish."""
    two_cores = host(physical_cores=2, logical_cores=2, usable_cores=2, foreign_cores=foreign_cores)
    quiet, crowded = (cpu_facts(hardware=Hardware(host=one)) for one in (host(), two_cores))
    assert expected_compile_s(crowded) == pytest.approx(slower * expected_compile_s(quiet))


def test_what_older_sessions_know_is_enough_for_a_guess():
    guesses = [expected_compile_s(gpu_facts(parameter_tensors=tensors)) for tensors in (20, 60, 160)]
    assert guesses == sorted(guesses)
    assert 5 < guesses[0] < guesses[-1] < 60


SLOW = "one step takes about 4 s: measuring the baseline alone needs 49 s, more than the 20 s that the budget leaves"


def test_steps_too_slow_for_the_budget_end_the_session_with_that_reason(tmp_path):
    asked = []

    def too_slow(settings):
        asked.append(settings)
        return failed(SLOW, Outcome.TIMED_OUT)

    assert FakeRun(tmp_path, too_slow).run().state.failure.message == f"the baseline could not be measured: {SLOW}"
    assert len(asked) == 1


@pytest.mark.parametrize(("left_s", "timed"), [(3.0, False), (60.0, True)])
def test_phases_are_not_timed_where_the_time_out_would_lose_what_was_measured(left_s, timed, tmp_path):
    spec = TrialSpec("baseline", TargetSpec("m.py:build", str(tmp_path), device="cpu"), {}, 1, 1, 60, "")
    assert Stages(spec, SimpleNamespace(), time.monotonic() + left_s)._may_time_phases(2000.0) is timed


@pytest.mark.parametrize(("text", "advised"), [("def build(): ...", "--input"), ("print(1)", "in your script")])
def test_a_shorter_step_is_advised_by_what_works_for_the_target(text, advised, tmp_path):
    (tmp_path / "m.py").write_text(text)
    spec = TrialSpec("baseline", TargetSpec("m.py", str(tmp_path)), {}, 1, 1, 5, "")
    with pytest.raises(TooSlowError) as refused:
        Stages(spec, SimpleNamespace(), 0.0)._refuse_hopeless(Loop(), 0.0, 9.0)
    assert advised in refused.value.hint


BASELINE = TrialResult(
    Outcome.MEASURED,
    batch_size=8,
    blocks=(Block(10, 80, 1.0),),
    losses=(2.3, 2.2),
    build_s=0.5,
    peak_reserved_bytes=4 * GIB,
)


@pytest.fixture
def spec(tmp_path, monkeypatch):
    """The spec of the reference for these facts, this baseline and this spread."""
    monkeypatch.setenv("PERF_ADVISOR_STATE", str(tmp_path))

    def made(facts=None, baseline=BASELINE, spread=None, *, budget_s=300.0, spent_s=0.0):
        clock = iter([0.0, *[spent_s] * 99])
        bench = bench_of(Runner(), tmp_path, lambda: next(clock), total_s=budget_s)
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
