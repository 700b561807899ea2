"""Faults of a GPU: each ends the running trial with a reason, and the next trial measures normally."""

import subprocess
import sys
import textwrap

import pytest
from planted import TINY_TARGET
from real_session import Run
from trial_processes import spec_of

from advisor.experiment import events
from advisor.records import Block, Outcome, TrialKind
from advisor.runner.trials import Runner

pytestmark = pytest.mark.gpu

NOWHERE = "torch._C._construct_storage_from_data_pointer(1 << 46, x.device, 4096)"
# What the model's slow part does in its fourth call, and the words of its reason; a process may also be aborted.
FAULTS = {
    "out of memory": ("torch.empty(2**50, dtype=torch.uint8, device=x.device)", "out of memory"),
    "device-side assert": ("torch.ones(4, device=x.device)[torch.full((1,), 9, device=x.device)]", "assert"),
    "illegal address": (
        f"torch.empty(0, dtype=torch.uint8, device=x.device).set_({NOWHERE}, 0, (4096,), (1,)).sum()",
        "illegal",
    ),
}

TARGET = TINY_TARGET.replace(
    "        return 1.0 * x",
    textwrap.indent(
        "self.calls = getattr(self, 'calls', 0) + 1\nif self.calls > 3:\n    FAULT\nreturn 1.0 * x", " " * 8
    ),
)
# Takes all of the GPU's free memory but so many bytes, until its standard input ends.
FILLS = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("filled", flush=True)
sys.stdin.read()
"""
ENOUGH_FOR_A_CONTEXT, TOO_LITTLE = 4 * 2**30, 100 * 2**20
# Needs a third of the GPU's memory in each step, and gives it back: a second piece fits beside what is kept.
NEEDS_MUCH = TINY_TARGET.replace(
    "        return 1.0 * x",
    "        if not x.is_cuda:\n"
    "            return 1.0 * x\n"
    "        third = torch.cuda.get_device_properties(x.device).total_memory // 3\n"
    "        held = torch.empty(third, dtype=torch.uint8, device=x.device)\n"
    "        return 1.0 * x + 0.0 * held[0]",
)


class Filler:
    """Another process that fills the GPU between ``start`` and ``stop``."""

    def __init__(self):
        self._process = None

    def start(self, left_bytes=ENOUGH_FOR_A_CONTEXT):
        command = [sys.executable, "-c", FILLS, str(left_bytes)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout.readline() == "filled\n"

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.communicate()  # when it has ended, so has its hold of the memory
        self._process = None


@pytest.fixture
def filler():
    made = Filler()
    yield made
    made.stop()


@pytest.fixture
def gpu_spec(tmp_path):
    """The spec of a short trial of a target's text on the GPU."""

    def spec(text, name="target", **changes):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        return spec_of(tmp_path, f"{name}.py", device="cuda", timeout_s=60.0, **changes)

    return spec


@pytest.fixture
def run(gpu_spec):
    """The result of such a trial."""
    runner = Runner()
    return lambda text, name="target": runner.run(gpu_spec(text, name), lambda message: None)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_its_trial_with_a_reason_and_nothing_else(run, fault):
    statement, words = FAULTS[fault]
    failed = run(TARGET.replace("FAULT", statement))
    assert not failed.measured, fault
    assert "\n" not in failed.reason
    assert words in failed.reason.lower() or failed.outcome is Outcome.CRASHED, failed.reason
    assert (failed.outcome is Outcome.OUT_OF_MEMORY) == (fault == "out of memory"), failed.reason
    assert run(TINY_TARGET, "after").outcome is Outcome.MEASURED


def test_what_a_trial_holds_already_is_not_taken_by_another_process(gpu_spec, filler):
    with Runner().open(gpu_spec(NEEDS_MUCH, kind=TrialKind.TURNS), lambda message: None) as trial:
        assert trial.wait_ready() is None
        assert isinstance(trial.measure_block(0.1), Block)
        filler.start()
        assert isinstance(trial.measure_block(0.1), Block)
        assert trial.finish().outcome is Outcome.MEASURED


@pytest.mark.parametrize("left_bytes", [ENOUGH_FOR_A_CONTEXT, TOO_LITTLE])
def test_a_gpu_that_another_process_has_filled_ends_one_trial(run, filler, left_bytes):
    filler.start(left_bytes)
    crowded = run(NEEDS_MUCH, "crowded")
    assert crowded.outcome is Outcome.OUT_OF_MEMORY, crowded.reason
    assert "\n" not in crowded.reason
    filler.stop()
    assert run(NEEDS_MUCH, "after").outcome is Outcome.MEASURED


@pytest.mark.usefixtures("own_state")
def test_a_session_whose_gpu_another_process_fills_half_way_loses_the_trials_of_that_time(tmp_path, filler):
    """The process comes after the baseline and goes after the first trial that found no memory."""
    Runner.prepare()
    session = Run(tmp_path, NEEDS_MUCH, device="cuda", budget_s=60.0, only=("zero_grad", "fused_optimizer"))
    lost = []

    def crowded(event):
        return isinstance(event, events.TrialEnded) and event.outcome is Outcome.OUT_OF_MEMORY

    def measured_after(event):
        if crowded(event):
            lost.append(event)
        return bool(lost) and isinstance(event, events.TrialEnded) and event.outcome is Outcome.MEASURED

    session.when(lambda event: isinstance(event, events.BaselineMeasured), filler.start)
    session.when(crowded, filler.stop)
    session.run_until(measured_after)
    assert session.state.failure is None
    assert session.state.baseline.result.measured
    assert lost
    assert session.posted(events.TrialEnded)[-1].outcome is Outcome.MEASURED
