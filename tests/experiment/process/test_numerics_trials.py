"""Numerics of real trial processes: planted faults, overflow, random streams, a run in float64, usual settings."""

import functools
from pathlib import Path

import pytest
from planted import BLOCKS_TARGET, FAULTS, OVERFLOWING_TARGET, SCALED_LOSS_TARGET, TINY_TARGET, plant_numerics
from trial_processes import spec_of

from advisor.judging.judge import CONTROL_SETTINGS, Judge, trial_record
from advisor.judging.numerics import own_rounding
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.records import Candidate, Inspected, Mode, Numerics, Outcome, TrialKind, Verdict
from advisor.runner.trials import Runner

pytestmark = pytest.mark.usefixtures("real_sessions")
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
BLOCKS, DROPPING = (BLOCKS_TARGET.format(dropout=dropout) for dropout in (0.0, 0.1))
WORKLOADS = Path(__file__).parents[2] / "gpu" / "workloads"


class NumericsBench:
    """A target with its baseline, its control and its reference measured, briefly; ``record`` tries settings on it."""

    def __init__(self, folder, text, *, device, mode=None):
        self.folder = folder
        (folder / "target.py").write_text(text, encoding="utf-8")
        self.recipes = (str(plant_numerics(folder / "recipes")),)
        self.of_target = {"device": device, "mode": mode}
        self.catalog = load_catalog(self.recipes)
        self.runner = Runner()
        self.told = []
        baseline = self.trial({}, kind=TrialKind.BASELINE)
        assert baseline.measured, baseline
        workload = next(message.workload for message in self.told if isinstance(message, Inspected))
        rounding = own_rounding(self.catalog, workload)
        self.reference = self.trial({}, kind=TrialKind.REFERENCE)
        judge = Judge(
            self.catalog,
            workload.mode,
            baseline,
            reference=self.reference if self.reference.probed else None,
            own_rounding=rounding,
        )
        self.judge = judge.with_run(CONTROL_SETTINGS, self.trial({}, stream_seed=1))

    def trial(self, settings, **options):
        """Run a trial that measures for a moment only."""
        options |= {"measure_s": 0.01, "warmup_limit_s": 0.05, "timeout_s": 300.0, "recipe_folders": self.recipes}
        spec = spec_of(self.folder, "target.py", settings=dict(settings), **self.of_target, **options)
        return self.runner.run(spec, self.told.append)

    def record(self, recipe, value=True):
        """The record of a recipe's value."""
        candidate = Candidate(recipe, self.catalog[recipe].key, value)
        settings = Settings(candidate.settings)
        return trial_record(self.judge.with_run(settings, self.trial(settings)), candidate, settings)


@pytest.fixture(scope="module", params=["cpu", GPU])
def bench(request, tmp_path_factory):
    """Benches by the text of their target and their mode, each measured once."""

    @functools.cache
    def made(text, mode=None):
        return NumericsBench(tmp_path_factory.mktemp("bench"), text, device=request.param, mode=mode)

    return made


# --- faults and rounding --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_recipe_that_computes_something_else_is_changed_though_it_declares_close(bench, fault):
    record = bench(BLOCKS).record(fault)
    assert record.result.measured
    assert (record.numerics.measured, record.numerics.declared) == (Numerics.CHANGED, Numerics.CLOSE)
    assert record.numerics.worse_than_declared
    assert record.numerics.from_reference > record.numerics.baseline_from_reference
    assert "rounding explains" in record.numerics.text


def test_a_recipe_that_does_nothing_is_exact(bench):
    for one in (bench(BLOCKS), bench(DROPPING, Mode.INFER)):
        numerics = one.record("nothing").numerics
        assert (numerics.measured, numerics.difference) == (Numerics.EXACT, 0)


@pytest.mark.parametrize(
    ("recipe", "value", "declared"),
    [
        ("other_order", True, Numerics.CLOSE),
        ("fused_optimizer", "fused", Numerics.CLOSE),
        ("control", True, Numerics.EXACT),
    ],
)
def test_what_only_rounds_is_no_worse_than_declared(bench, recipe, value, declared):
    record = bench(BLOCKS).record(recipe, value)
    assert record.result.measured, record.result
    assert record.numerics.declared is declared
    assert not record.numerics.worse_than_declared, record.numerics
    assert record.numerics.measured is not Numerics.CHANGED


def test_half_precision_is_close_but_not_exact(bench):
    for one in (bench(BLOCKS), bench(DROPPING, Mode.INFER)):
        numerics = one.record("autocast", "bfloat16").numerics
        assert (numerics.measured, numerics.declared) == (Numerics.CLOSE, Numerics.CLOSE)
        assert numerics.difference > 1e-5
        assert numerics.from_reference > 10 * numerics.baseline_from_reference
        assert "error against float64: baseline" in numerics.text


def test_a_target_that_fails_in_float64_has_no_reference(bench):
    text = TINY_TARGET.replace("return 1.0 * x", "assert x.dtype == torch.float32; return 1.0 * x")
    one = bench(text)
    assert (one.reference.outcome, one.judge.reference) == (Outcome.FAILED, None)
    numerics = one.record("nothing").numerics
    assert (numerics.measured, numerics.from_reference) == (Numerics.EXACT, None)


def test_half_precision_weights_have_a_reference_in_float32(bench):
    text = TINY_TARGET.replace("nn.Linear(32, 4))", "nn.Linear(32, 4)).bfloat16()").replace(
        "torch.randn(8, 16)", "torch.randn(8, 16).bfloat16()"
    )
    one = bench(text)
    assert one.reference.notes == ("float32",)
    assert one.judge.own_rounding == 2.0**-8
    numerics = one.record("other_stream").numerics
    assert numerics.measured is Numerics.EXACT
    assert numerics.baseline_from_reference > 1e-5


# --- random streams -------------------------------------------------------------------------------------------


def test_steps_that_draw_random_numbers_have_no_reference(bench):
    dropping = bench(DROPPING)
    assert dropping.reference.outcome is Outcome.SKIPPED
    assert "random numbers" in dropping.reference.reason
    assert dropping.judge.reference is None
    assert dropping.judge.spread.random


def test_another_random_stream_is_close(bench):
    numerics = bench(DROPPING).record("other_stream").numerics
    assert numerics.measured is Numerics.CLOSE
    assert numerics.difference > 1e-4
    assert numerics.as_baselines
    assert "two baselines do" in numerics.text


# --- what is not finite ---------------------------------------------------------------------------------------


def test_activations_that_overflow_float16_fail_the_trial_and_say_at_which_step(bench):
    one = bench(OVERFLOWING_TARGET)
    record = one.record("autocast", "float16")
    assert (record.result.outcome, record.verdict) == (Outcome.NON_FINITE, Verdict.FAILED)
    assert record.result.reason in {f"the loss became {what} at step 1 of 5" for what in ("nan", "inf")}
    assert (record.numerics.measured, record.numerics.text) == (Numerics.CHANGED, record.result.reason)
    assert one.record("autocast", "bfloat16").numerics.measured is Numerics.CLOSE


def test_updates_that_the_scaler_skips_are_noted_and_do_not_count(bench):
    one = bench(SCALED_LOSS_TARGET.format(scale=1e3))
    record = one.record("autocast", "float16")
    assert record.numerics.measured is Numerics.CLOSE
    skipped = record.result.skipped_steps
    assert 0 < skipped < 24
    (note,) = [note for note in record.result.notes if "scaler skipped" in note]
    assert f"skipped {skipped} of the first {skipped + 5} updates" in note


def test_a_scaler_that_finds_no_scale_fails_the_trial(bench):
    one = bench(SCALED_LOSS_TARGET.format(scale=1e14))
    record = one.record("autocast", "float16")
    assert (record.result.outcome, record.numerics.measured) == (Outcome.NON_FINITE, Numerics.CHANGED)
    assert "skipped every update" in record.result.reason


def on_the_gpu(test):
    """Only where the bench is a GPU's."""
    return pytest.mark.gpu(pytest.mark.parametrize("bench", ["cuda"], indirect=True)(test))


@on_the_gpu
@pytest.mark.parametrize(("recipe", "value"), [("compile", "default"), ("step_graph", True), ("autocast", "bfloat16")])
def test_what_draws_other_random_numbers_is_close(bench, recipe, value):
    record = bench(DROPPING).record(recipe, value)
    assert record.result.measured, record.result
    assert record.numerics.measured is not Numerics.CHANGED, record.numerics


@on_the_gpu
@pytest.mark.parametrize("name", ["small_resnet18", "encoder"])
@pytest.mark.parametrize(
    ("recipe", "value"),
    [
        ("autocast", "bfloat16"),
        ("autocast", "float16"),
        ("tf32", "high"),
        ("channels_last", "channels_last"),
        ("cudnn_benchmark", True),
        ("fused_optimizer", "fused"),
        ("step_graph", True),
    ],
)
def test_usual_settings_are_not_taken_for_faults(bench, name, recipe, value):
    record = bench((WORKLOADS / f"{name}.py").read_text(encoding="utf-8")).record(recipe, value)
    assert record.result.measured, record.result
    assert record.numerics.measured is not Numerics.CHANGED, record.numerics
    assert not record.numerics.worse_than_declared, record.numerics
