"""Workloads that are bound by one thing each, as real trials on the CPU find them; on a GPU: tests/gpu."""

import gzip
import json
import time

import pytest
from profiled import take_profile

from advisor.records import Bottleneck
from advisor.runner.trials import Runner

pytestmark = pytest.mark.timed

# Other processes can make any step wait for a processor, and it is then truly bound by something else.
ATTEMPTS = 4


@pytest.fixture(scope="module", autouse=True)
def _fork_server():
    Runner.prepare()


@pytest.mark.parametrize(
    ("workload", "bottleneck", "evidence"),
    [
        ("bound.py:data", Bottleneck.INPUT, "waiting for data"),
        ("bound.py:launches", Bottleneck.LAUNCH, "operator calls"),
        ("bound.py:memory", Bottleneck.MEMORY, "the rate of a copy in memory"),
        ("bound.py:products", Bottleneck.COMPUTE, "matrix"),
    ],
)
def test_the_verdict_is_what_the_workload_was_made_for(tmp_path, workload, bottleneck, evidence):
    for _ in range(ATTEMPTS):
        profile = take_profile(workload, tmp_path, device="cpu", clock=time.monotonic, measure_s=0.4).profile
        if profile.bottleneck is bottleneck:
            break
    assert profile.bottleneck is bottleneck, profile.evidence
    assert evidence in profile.evidence
    assert_whole(profile, tmp_path)


def assert_whole(profile, folder):
    """All parts of the pass come from one trial."""
    assert profile.ceilings.matmul_flops_per_s["float32"] > 0
    assert profile.trace_path == str(folder / "000-baseline.trace.json.gz")
    with gzip.open(profile.trace_path) as trace:
        assert any(event.get("name") == "forward" for event in json.load(trace)["traceEvents"])
