"""The verdict on a step: the part of the machine that it is bound by."""

from dataclasses import replace

import pytest
from facts import profile_facts

from advisor.records import Bottleneck, Ceilings
from advisor.report.evidence import bound_sentence
from advisor.trial.profile.profiler import judge


def profile(**changes):
    """A step that computes, at half of what the machine's products reach."""
    compute = {"data wait": 1.0, "forward": 40.0, "backward": 60.0}
    options = {"phases": compute, "flops_per_step": 10**12, "ceiling_flops_per_s": 2e13, "ceiling_dtype": "float32"}
    return replace(profile_facts(), **{**options, **changes})


WAITS = {"data wait": 50.0, "forward": 50.0}
COPIES = {"data wait": 2.0, "host-to-device": 48.0, "forward": 50.0}
TRANSFERS = Ceilings({}, host_to_device_bytes_per_s={"pageable": 9e9, "pinned": 5.5e10})


@pytest.mark.parametrize(
    ("measured", "bottleneck", "evidence"),
    [
        (profile(phases=WAITS), Bottleneck.INPUT, "50 %"),
        (profile(phases=WAITS), Bottleneck.INPUT, "waiting for data takes"),
        (profile(phases={**WAITS, "host-to-device": 20.0}), Bottleneck.INPUT, "waiting for data and copying it"),
        (profile(phases=COPIES), Bottleneck.INPUT, "copying"),  # on the CPU there is no device to copy to
        (profile(phases=WAITS, device_busy_share=0.1), Bottleneck.INPUT, "waiting for data"),
        (profile(phases=WAITS, device_busy_share=0.99), Bottleneck.COMPUTE, "50 %"),  # it waits while the GPU computes
        (profile(phases=COPIES, device_busy_share=0.5, host_to_device_bytes=2**29), Bottleneck.COPY, "48 %"),
        (
            profile(phases=COPIES, device_busy_share=0.5, host_to_device_bytes=2**29, ceilings=TRANSFERS),
            Bottleneck.COPY,
            "512 MiB in 48.0 ms is 11.2 GB/s; this machine reaches 9.00 GB/s from pageable memory and 55.0 GB/s from "
            "pinned memory",
        ),
        (
            profile(phases={"data wait": 20.0, "forward": 80.0}, device_busy_share=0.65),
            Bottleneck.INPUT,
            "waiting for data takes 20 %",
        ),
        (
            profile(phases={"data wait": 10.0, "forward": 90.0}, device_busy_share=0.65, kernels_per_step=9.0),
            Bottleneck.LAUNCH,
            "9 kernels",
        ),
        (profile(device_busy_share=0.2, kernels_per_step=731.0), Bottleneck.LAUNCH, "20 % of the step"),
        (profile(device_busy_share=0.2, kernels_per_step=731.0), Bottleneck.LAUNCH, "731 kernels"),
        (profile(device_busy_share=0.99), Bottleneck.COMPUTE, "50 % of this machine's float32"),
        (profile(), Bottleneck.COMPUTE, "50 %"),
        (
            profile(flops_per_step=10**10, moved_bytes_per_step=4 * 10**9, copy_bytes_per_s=4e12),
            None,
            "1 % of what a copy in memory reaches",
        ),
        (
            profile(flops_per_step=18 * 10**10, moved_bytes_per_step=4 * 10**9, copy_bytes_per_s=4e12),
            None,
            "the step reaches 9 % of the float32 matrix-product rate",
        ),
        (profile(flops_per_step=10**10), Bottleneck.MEMORY, "reaches 0 %"),
        (profile(flops_per_step=None), Bottleneck.MEMORY, "an unknown share"),
        (profile(flops_per_step=0), Bottleneck.MEMORY, "multiplies no matrices"),
        (
            profile(flops_per_step=10**10, moved_bytes_per_step=2 * 10**11, copy_bytes_per_s=4e12),
            Bottleneck.MEMORY,
            "about 186 GiB a step, 2.00 TB/s, 50 % of what a copy reaches",
        ),
        (
            profile(flops_per_step=10**10, moved_bytes_per_step=10**10, copy_bytes_per_s=4e12),
            None,
            "probably the overhead of many small operators",
        ),
        (
            profile(flops_per_step=0, moved_bytes_per_step=8 * 10**11, copy_bytes_per_s=4e12),
            Bottleneck.MEMORY,
            "more than a copy in memory reaches (4.00 TB/s): caches help",
        ),
        (
            profile(flops_per_step=4 * 10**11, moved_bytes_per_step=10**10, copy_bytes_per_s=4e12),
            Bottleneck.COMPUTE,
            "20 % of this machine's",
        ),
        (profile(flops_per_step=10**13), Bottleneck.COMPUTE, "500 % of this machine's"),
        (profile(calls_per_step=40_000.0, call_overhead_s=1e-6), Bottleneck.LAUNCH, "40000 operator calls"),
        (profile(calls_per_step=400.0, call_overhead_s=1e-6), Bottleneck.COMPUTE, "50 %"),
        (profile(device_busy_share=0.99, calls_per_step=40_000.0, call_overhead_s=1e-6), Bottleneck.COMPUTE, "50 %"),
    ],
)
def test_what_a_step_is_bound_by(measured, bottleneck, evidence):
    found, text = judge(measured)
    assert found is bottleneck
    assert evidence in text


def test_a_step_that_is_far_from_every_roof_is_not_called_bound_by_anything():
    measured = profile(flops_per_step=10**10, moved_bytes_per_step=4 * 10**9, copy_bytes_per_s=4e12)
    bottleneck, evidence = judge(measured)
    told = bound_sentence(replace(measured, bottleneck=bottleneck, evidence=evidence))
    assert told.startswith("What limits the step is not clear: probably the overhead of many small operators")
    assert bound_sentence(measured) == ""
