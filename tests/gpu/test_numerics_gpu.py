"""Numerics of real trial processes on a CUDA device: overflow, random streams, planted faults, usual settings."""

from pathlib import Path

import pytest
from planted import BLOCKS_TARGET, FAULTS, OVERFLOWING_TARGET, SCALED_LOSS_TARGET
from trial_numerics import NumericsBench

from advisor.records import Mode, Numerics, Outcome, Verdict
from advisor.runner.trials import Runner

pytestmark = pytest.mark.gpu

WORKLOADS = Path(__file__).with_name("workloads")


@pytest.fixture(scope="module", autouse=True)
def _state(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERF_ADVISOR_STATE", str(tmp_path_factory.mktemp("state")))
        Runner.prepare()
        yield


@pytest.fixture(scope="module")
def bench_of(tmp_path_factory):
    """Benches by the text of their target and their mode, each measured once."""
    benches = {}

    def bench(text, mode=None):
        if (text, mode) not in benches:
            folder = tmp_path_factory.mktemp("bench")
            benches[text, mode] = NumericsBench(folder, text, device="cuda", mode=mode)
        return benches[text, mode]

    return bench


def workload(name):
    return (WORKLOADS / f"{name}.py").read_text(encoding="utf-8")


# --- float16 --------------------------------------------------------------------------------------------------


def test_activations_that_overflow_float16_fail_the_trial(bench_of):
    bench = bench_of(OVERFLOWING_TARGET)
    record = bench.record("autocast", "float16")
    assert (record.result.outcome, record.verdict) == (Outcome.NON_FINITE, Verdict.FAILED)
    assert record.result.reason.endswith("at step 1 of 5")
    assert record.numerics.measured is Numerics.CHANGED
    assert bench.record("autocast", "bfloat16").numerics.measured is Numerics.CLOSE


def test_the_scaler_settles_and_its_skipped_updates_are_noted(bench_of):
    record = bench_of(SCALED_LOSS_TARGET.format(scale=1e3)).record("autocast", "float16")
    skipped = record.result.skipped_steps
    assert 0 < skipped < 24
    assert record.numerics.measured is Numerics.CLOSE
    assert any(f"skipped {skipped} of the first {skipped + 5} updates" in note for note in record.result.notes)


def test_a_scaler_that_finds_no_scale_fails_the_trial(bench_of):
    record = bench_of(SCALED_LOSS_TARGET.format(scale=1e14)).record("autocast", "float16")
    assert record.result.outcome is Outcome.NON_FINITE
    assert "skipped every update" in record.numerics.text


# --- faults ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_changed_though_it_declares_close(bench_of, fault):
    numerics = bench_of(BLOCKS_TARGET.format(dropout=0.0)).record(fault).numerics
    assert numerics.measured is Numerics.CHANGED
    assert numerics.worse_than_declared
    assert numerics.from_reference > numerics.baseline_from_reference


def test_a_recipe_that_does_nothing_is_exact(bench_of):
    assert bench_of(BLOCKS_TARGET.format(dropout=0.0)).record("nothing").numerics.measured is Numerics.EXACT


# --- random streams -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "value"),
    [("compile", "default"), ("step_graph", True), ("other_stream", True), ("autocast", "bfloat16")],
)
def test_what_draws_other_random_numbers_is_close(bench_of, recipe, value):
    bench = bench_of(BLOCKS_TARGET.format(dropout=0.1))
    assert bench.judge.reference is None
    assert "random numbers" in bench.reference.reason
    record = bench.record(recipe, value)
    assert record.result.measured, record.result
    assert record.numerics.measured is not Numerics.CHANGED, record.numerics


# --- what only rounds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["small_resnet18", "mlp12", "encoder", "recommender", "autoencoder"])
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
def test_usual_settings_are_not_taken_for_faults(bench_of, name, recipe, value):
    record = bench_of(workload(name)).record(recipe, value)
    assert record.result.measured, record.result
    assert record.numerics.measured is not Numerics.CHANGED, record.numerics
    assert not record.numerics.worse_than_declared, record.numerics


@pytest.mark.parametrize("name", ["small_resnet18", "encoder"])
@pytest.mark.parametrize("value", ["bfloat16", "float16"])
def test_usual_settings_are_not_taken_for_faults_in_inference(bench_of, name, value):
    record = bench_of(workload(name), Mode.INFER).record("autocast", value)
    assert record.numerics.measured is Numerics.CLOSE, record.numerics


def test_the_reference_is_in_float64_and_near(bench_of):
    bench = bench_of(workload("mlp12"))
    assert bench.reference.notes == ("float64",)
    numerics = bench.record("fused_optimizer", "fused").numerics
    assert numerics.baseline_from_reference is not None
    assert numerics.baseline_from_reference < 1e-3
