"""cuDNN autotuning

What it does: cuDNN times its algorithms for each new shape and uses the fastest (`torch.backends.cudnn.benchmark`).

Why it helps: Without it cuDNN chooses by heuristics, which can miss the best algorithm for unusual shapes.

When it does not: The heuristics are good for common shapes, so there is often no gain. The search takes seconds at the
start and at each new shape (variable image sizes, a smaller last batch). Algorithms with a large workspace are tried
too, so the peak of reserved memory can rise.

Numerics: close: another algorithm sums in another order, and the choice can differ from run to run.

References: PyTorch Performance Tuning Guide, Enable cuDNN auto-tuner. NVIDIA ECCV 2020 tuning guide.
"""

from advisor.recipe import CUDA, Bottleneck, Facts, Proposal, Recipe, Stage, unless_computed


class CudnnBenchmark(Recipe):
    key = "backends.cudnn_benchmark"
    devices = CUDA
    attacks = frozenset({Bottleneck.COMPUTE})
    usual = frozenset({True})
    stage = Stage.GLOBAL
    keeps_code = True  # the compiled code calls cuDNN, which chooses its kernels itself
    times_kernels = True
    gain = 1.02  # tests/gpu/RESULTS.md: 1.06x, 1.05x, 1.02x, 1.00x; 0.87x for one inference at batch 1
    shown = "torch.backends.cudnn.benchmark = {value}\n"

    def candidates(self, facts: Facts) -> Proposal:
        return unless_computed(facts, "conv1d", "conv2d", "conv3d", reason="the step computes no convolution") or [True]
