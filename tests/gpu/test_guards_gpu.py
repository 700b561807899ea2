"""NVML's readings of real trials: alone on the GPU, beside another process, and their energy."""

import contextlib
import subprocess
import sys

import pytest
from trial_processes import spec_of, until

from advisor.machine.hardware import GpuGauges, Nvml, compute_pids, inspect_hardware
from advisor.records import Mode, Outcome
from advisor.runner.trials import Runner

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("started_fork_server")]

MATMULS = """
import torch
from torch import nn

def build():
    model = nn.Sequential(*[nn.Linear(4096, 4096, bias=False) for _ in range(8)]).bfloat16()
    return model, (torch.randn(4096, 4096).bfloat16(),)
"""

# Says a line when it is ready, waits for one, and then computes until it is killed, or holds its memory.
NEIGHBOUR = """
import sys, time
import torch
print("ready", flush=True)
sys.stdin.readline()
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
print("on the GPU", flush=True)
while True:
    {work}
"""
COMPUTE = "a @ a; torch.cuda.synchronize()"
HOLD = "time.sleep(1)"


@pytest.fixture
def trial(tmp_path):
    """Run the matmuls as a trial; ``listen`` hears its messages."""

    def run(listen=lambda message: None, measure_s=3.0):
        (tmp_path / "target.py").write_text(MATMULS, encoding="utf-8")
        times = {"measure_s": measure_s, "warmup_limit_s": 2.0, "timeout_s": 300.0}
        spec = spec_of(tmp_path, "target.py", mode=Mode.INFER, device="cuda", **times)
        result = Runner().run(spec, listen)
        assert result.outcome is Outcome.MEASURED, result.reason
        return result

    return run


class Neighbour:
    """Another process that uses the GPU when it is told to."""

    def __init__(self, work):
        code = NEIGHBOUR.format(work=work)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self.process.stdout.readline() == "ready\n"

    def arrive(self):
        """Start to use the GPU, and wait until NVML lists the process; skip the test if NVML lists no processes."""
        before = compute_pids()
        self.process.stdin.write("\n")
        assert self.process.stdout.readline() == "on the GPU\n"
        if not until(lambda: compute_pids() - before, 5.0):
            pytest.skip("NVML does not list the processes of this machine one by one")


@pytest.fixture
def neighbour():
    with contextlib.ExitStack() as stack:

        def start(work):
            other = Neighbour(work)
            stack.callback(other.process.wait)
            stack.callback(other.process.kill)
            return other

        yield start


def first_gpu():
    """The UUID of CUDA's first device, asked in another process: this one stays off the GPU."""
    code = "import torch; print(torch.cuda.get_device_properties(0).uuid)"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_the_readings_of_a_trial_are_plausible(trial):
    result = trial()
    gpu = result.gpu
    info = next(one for one in inspect_hardware().gpus if one.uuid.removeprefix("GPU-") == first_gpu())
    assert 20 <= gpu.temperature_c <= 100
    assert 300 <= gpu.sm_clock_mhz <= 4000
    assert 0.1 * info.power_limit_w <= gpu.power_w <= 1.2 * info.power_limit_w


def test_a_process_that_computes_beside_a_trial_marks_it(trial, neighbour):
    neighbour(COMPUTE).arrive()
    gauges = GpuGauges(first_gpu(), Nvml())
    if not until(lambda: gauges.read().sm_percent, 5.0):
        pytest.skip("this driver does not tell which process keeps the GPU busy")
    result = trial()
    assert "another process (pid " in result.disturbed
    assert "% of the GPU while it was measured" in result.disturbed


def test_a_process_that_only_holds_memory_does_not_disturb(trial, neighbour):
    neighbour(HOLD).arrive()
    assert "GPU" not in trial().disturbed


def test_energy_per_sample_agrees_with_the_power(trial):
    result = trial()
    seconds, samples = (sum(getattr(block, field) for block in result.blocks) for field in ("seconds", "samples"))
    by_power = result.gpu.power_w * seconds / samples
    print(f"{result.energy_j_per_sample:.4g} J per sample by the counter, {by_power:.4g} by the mean power")
    assert 0.2 * by_power <= result.energy_j_per_sample <= 2 * by_power
