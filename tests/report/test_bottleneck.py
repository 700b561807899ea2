"""The verdict on a step: the part of the machine that it is bound by."""

from dataclasses import replace

import pytest
from facts import gpu_facts, profile_facts

from advisor.experiment.state import SessionState
from advisor.records import Bottleneck
from advisor.report.evidence import baseline_section
from advisor.trial.profile.profiler import judge


def profile(**changes):
    """A step that computes, at half of what the machine's products reach."""
    compute = {"data wait": 1.0, "forward": 40.0, "backward": 60.0}
    options = {"phases": compute, "flops_per_step": 10**12, "ceiling_flops_per_s": 2e13, "ceiling_dtype": "float32"}
    return replace(profile_facts(), **{**options, **changes})


WAITS = {"data wait": 50.0, "forward": 50.0}
COPIES = {"data wait": 2.0, "host-to-device": 48.0, "forward": 50.0}


@pytest.mark.parametrize(
    ("measured", "bottleneck", "evidence"),
    [
        (profile(phases=WAITS), Bottleneck.INPUT, "waiting for data takes 50 % of the step"),
        (profile(phases={**WAITS, "host-to-device": 25.0}), Bottleneck.INPUT, "copying it 20 %"),
        (profile(phases=COPIES), Bottleneck.INPUT, "copying"),  # on the CPU there is no device to copy to
        (profile(phases=WAITS, device_busy_share=0.1), Bottleneck.INPUT, "waiting for data"),
        (profile(phases=WAITS, device_busy_share=0.99), Bottleneck.COMPUTE, "50 %"),  # it waits while the GPU computes
        (profile(phases=COPIES, device_busy_share=0.5, host_to_device_bytes=2**29), Bottleneck.COPY, "48 %"),
        (profile(phases={"data wait": 20.0, "forward": 80.0}, device_busy_share=0.65), Bottleneck.INPUT, "20 %"),
        (
            profile(phases={"data wait": 10.0, "forward": 90.0}, device_busy_share=0.65, kernels_per_step=9.0),
            Bottleneck.LAUNCH,
            "65 % of the step; the host launches for 9 kernels",
        ),
        (profile(device_busy_share=0.99), Bottleneck.COMPUTE, "50 % of this machine's float32"),
        (profile(), Bottleneck.COMPUTE, "50 %"),
        (profile(flops_per_step=10**10), Bottleneck.MEMORY, "only 0 %"),
        (profile(flops_per_step=None), None, "was not measured"),
        (profile(ceiling_flops_per_s=None), None, "was not measured"),
        (profile(flops_per_step=0), Bottleneck.MEMORY, "no matrix product"),
        (
            profile(flops_per_step=10**10, moved_bytes_per_step=2 * 10**11, copy_bytes_per_s=4e12),
            Bottleneck.MEMORY,
            "50 % of the rate of a copy",
        ),
        (profile(flops_per_step=10**10, moved_bytes_per_step=10**10, copy_bytes_per_s=4e12), None, "2 %"),
        (
            profile(flops_per_step=4 * 10**11, moved_bytes_per_step=10**10, copy_bytes_per_s=4e12),
            Bottleneck.COMPUTE,
            "20 % of this machine's",
        ),
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
    judged = replace(measured, bottleneck=bottleneck, evidence=evidence)
    first, _ = baseline_section(SessionState(facts=gpu_facts(profile=judged))).blocks
    assert first.startswith("What limits the step is not clear: probably many small operators")
    unjudged = baseline_section(SessionState(facts=gpu_facts(profile=measured)))
    assert not [block for block in unjudged.blocks if isinstance(block, str)]
