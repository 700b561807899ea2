"""Debugging aids left on

What it does: Measures the cost of a debugging aid that was left on: `anomaly` (`set_detect_anomaly(True)`), `profiler`
(`torch.profiler.profile()` around the loop, without a schedule) or `nvtx` (`emit_nvtx()`). `none` switches it off.

Why it helps: Anomaly detection keeps a Python stack for every operation and searches each gradient for NaN, which makes
the host wait. The profiler records every operator, and its memory grows. NVTX ranges cost time even if not read.

When it does not: If no aid is on, there is no gain. The row then shows the cost of leaving one on.

Numerics: exact: the aids watch the computation and do not change it.

References: PyTorch Performance Tuning Guide, Disable debugging APIs. NVIDIA ECCV 2020 tuning guide.
"""

from typing import Any

from advisor.recipe import Bottleneck, Components, Facts, Mode, Proposal, Recipe, Stage, Value
from advisor.recipe.plan import AROUND_LOSS


class DebugOff(Recipe):
    key = "debug.switches"
    codes = {
        "none": (
            "torch.autograd.set_detect_anomaly(False)\n"
            "# and the loop outside of torch.profiler.profile() and torch.autograd.profiler.emit_nvtx()\n"
        ),
        "anomaly": "torch.autograd.set_detect_anomaly(True)\n",
        "profiler": "profiler = torch.profiler.profile()\nprofiler.start()  # profiler.stop() after the loop\n",
        "nvtx": (
            "nvtx_ranges = torch.autograd.profiler.emit_nvtx()\n"
            "nvtx_ranges.__enter__()  # nvtx_ranges.__exit__(None, None, None) after the loop\n"
        ),
    }
    attacks = frozenset({Bottleneck.LAUNCH})
    stage = Stage.GLOBAL
    keeps_code = True  # autograd checks the flag while the step runs, so compiled code stays the same
    habit = True
    conflicts = tuple(
        ("anomaly", "step.cuda_graph", graph, "anomaly detection makes the host wait, which no graph can capture")
        for graph in (True, AROUND_LOSS)
    )
    _running: Any = None  # keeps the aid that is on: without a reference it would end
    # tests/gpu/RESULTS.md: anomaly detection cost 3.6x and 1.4x to 1.6x, the profiler 1.5x, NVTX ranges 7 %.
    gains = {"anomaly": 0.4, "profiler": 0.6, "nvtx": 0.93}

    def candidates(self, facts: Facts) -> Proposal:
        records = facts.workload.mode is Mode.TRAIN or facts.current("infer.grad", "grad") == "grad"
        anomaly = ["anomaly"] if records else []  # anomaly detection does nothing if autograd does not record
        return [*anomaly, "profiler", *(["nvtx"] if facts.on_cuda else [])]

    def apply(self, workload: Components, value: Value) -> None:
        import torch

        torch.autograd.set_detect_anomaly(value == "anomaly")
        if torch._C._autograd._profiler_enabled():
            torch._C._autograd._disable_profiler()
        if aid := {"profiler": torch.profiler.profile, "nvtx": torch.autograd.profiler.emit_nvtx}.get(str(value)):
            self._running = aid()
            self._running.__enter__()
