"""Faults of a GPU in a trial: each ends that trial with its reason, and the next trial measures as if nothing was."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from planted import TINY_TARGET

from advisor.records import Outcome, TargetSpec, TrialSpec
from advisor.runner.trials import Runner

pytestmark = pytest.mark.gpu

NOWHERE = "torch._C._construct_storage_from_data_pointer(1 << 46, x.device, 4096)"
# What the model's slow part does in its fourth call, and how that trial ends; None for any way but measured.
FAULTS = {
    "out of memory": ("torch.empty(2**50, dtype=torch.uint8, device=x.device)", Outcome.OUT_OF_MEMORY),
    "device-side assert": ("torch.ones(4, device=x.device)[torch.full((1,), 9, device=x.device)]", None),
    "illegal address": (
        f"torch.empty(0, dtype=torch.uint8, device=x.device).set_({NOWHERE}, 0, (4096,), (1,)).sum()",
        None,
    ),
}

TARGET = TINY_TARGET.replace(
    "        return 1.0 * x",
    textwrap.indent(
        "self.calls = getattr(self, 'calls', 0) + 1\nif self.calls > 3:\n    FAULT\nreturn 1.0 * x", " " * 8
    ),
)
FILLS = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(int(free * 0.97), dtype=torch.uint8, device="cuda")
print("filled", flush=True)
sys.stdin.read()
"""
NEEDS_MUCH = TINY_TARGET.replace(
    "        return 1.0 * x",
    "        half = torch.cuda.get_device_properties(0).total_memory // 2\n"
    "        held = torch.empty(half, dtype=torch.uint8, device=x.device)\n"
    "        return 1.0 * x + 0 * held[0]",
)


@pytest.fixture
def run(tmp_path):
    """One trial of a target's text on the GPU."""
    runner = Runner()

    def measure(text, name="target"):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        target = TargetSpec(f"{name}.py", str(tmp_path), device="cuda")
        log = str(tmp_path / f"{name}.log")
        spec = TrialSpec("t", target, {}, measure_s=0.1, warmup_limit_s=0.2, timeout_s=60.0, log_path=log)
        return runner.run(spec, lambda message: None)

    return measure


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_its_trial_with_a_reason_and_nothing_else(run, fault):
    statement, outcome = FAULTS[fault]
    failed = run(TARGET.replace("FAULT", statement))
    assert not failed.measured, fault
    assert failed.reason
    assert "\n" not in failed.reason
    assert outcome in (None, failed.outcome), failed.reason
    assert run(TINY_TARGET, "after").outcome is Outcome.MEASURED


def test_another_process_that_fills_the_gpu_half_way_ends_one_trial(run):
    assert run(TINY_TARGET, "before").outcome is Outcome.MEASURED
    other = subprocess.Popen([sys.executable, "-c", FILLS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "filled\n"
        crowded = run(NEEDS_MUCH, "crowded")
        assert crowded.outcome is Outcome.OUT_OF_MEMORY, crowded.reason
        assert crowded.reason
    finally:
        other.kill()
        other.communicate()
    assert run(NEEDS_MUCH, "after").outcome is Outcome.MEASURED
