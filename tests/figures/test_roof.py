import pytest
from facts import profile_facts

from advisor.figures.roof import dtype_under, overhead_share, roof_share, step_copy_share, step_roof_share, upper_bound
from advisor.records import Ceilings, Phase, Profile

CEILINGS = Ceilings({"float32": 2e13, "tf32": 1e14, "bfloat16": 4e14})


def profile(**changes):
    """A step of 100 ms and 10^12 operations."""
    known = {"flops_per_step": 10**12, "ceiling_flops_per_s": 2e13, "ceiling_dtype": "float32", "ceilings": CEILINGS}
    return profile_facts(**known | changes)


def test_shares_of_the_roof_of_the_copy_rate_and_of_calls():
    assert step_roof_share(profile()) == pytest.approx(0.5)
    assert step_copy_share(profile(moved_bytes_per_step=10**11, copy_bytes_per_s=4e12)) == pytest.approx(0.25)
    assert overhead_share(profile(calls_per_step=40_000.0, call_overhead_s=1e-6)) == pytest.approx(0.4)
    assert overhead_share(profile(calls_per_step=400_000.0, call_overhead_s=1e-6)) == 1, "never more than the step"
    unknown = profile(ceiling_flops_per_s=None), profile(flops_per_step=None)
    assert [*map(step_roof_share, unknown), step_copy_share(profile()), overhead_share(profile())] == [None] * 4


def test_the_share_before_and_after_is_that_of_the_type_the_stack_computes_in():
    measured = profile()
    assert roof_share(measured, 500.0, 50, "float32").share == pytest.approx(step_roof_share(measured))
    assert roof_share(measured, 5000.0, 50, "bfloat16").share == pytest.approx(0.25)
    assert roof_share(measured, 500.0, 50, "float16") is None
    assert roof_share(measured, 500.0, None, "float32") is None
    assert roof_share(profile(flops_per_step=0), 500.0, 50, "float32") is None


@pytest.mark.parametrize(
    ("profiled", "settings", "dtype"),
    [
        ("float32", {}, "float32"),
        ("float32", {"model.memory_format": "channels_last"}, "float32"),
        ("float32", {"precision.autocast": "bfloat16"}, "bfloat16"),
        ("float32", {"precision.autocast": "bfloat16", "precision.float32_matmul": "high"}, "bfloat16"),
        ("float32", {"precision.float32_matmul": "medium"}, "tf32"),
        ("tf32", {"precision.float32_matmul": "highest"}, "float32"),
        ("float32", {"precision.weights": "float16"}, "float16"),
        ("bfloat16", {"precision.float32_matmul": "high"}, "bfloat16"),
        ("bfloat16", {"precision.autocast": "none"}, None),
        ("float32", {"precision.autocast": "none"}, "float32"),
    ],
)
def test_the_type_that_a_stack_computes_in(profiled, settings, dtype):
    assert dtype_under(profile(ceiling_dtype=profiled), settings) == dtype


def test_what_shortening_a_phase_can_give_at_most():
    measured = profile()  # waits 20 of 100 ms for data and copies for 2
    assert upper_bound(measured, {Phase.DATA_WAIT}) == pytest.approx(1.25)
    assert upper_bound(measured, {Phase.DATA_WAIT, Phase.HOST_TO_DEVICE}) == pytest.approx(1 / 0.78)
    assert upper_bound(profile(phases={"data wait": 0.3, "forward": 99.0}), {Phase.DATA_WAIT}) < 1.0031


def test_phases_that_nobody_measured_bound_nothing():
    assert upper_bound(profile(), set()) is None
    assert upper_bound(Profile(step_ms=1.0, phases={"forward": 1.0}), {Phase.OPTIMIZER}) is None
    assert upper_bound(profile(step_ms=0.0), {Phase.DATA_WAIT}) is None
