"""Combined small kernels

What it does: Has the compiler generate independent pointwise operations and reductions of a graph as one kernel
(`combo_kernels`), where it otherwise generates one for each.

Why it helps: Parallel branches, many small outputs and the reductions of a backward pass each launch a kernel that
fills a part of the GPU. As one kernel they fill more of it, and cost one launch.

When it does not: A graph that is one chain has nothing side by side. Large kernels fill the GPU by themselves, and one
combined with a small one can get slower. The option is young (before PyTorch 2.9 few kinds of operations were
combined), and compiling takes somewhat longer.

Numerics: close: as for torch.compile, reductions may sum in another order.

References: PyTorch source, torch/_inductor/config.py (`combo_kernels`).
"""

from advisor.recipe import CUDA, Bottleneck, Recipe


class ComboKernels(Recipe):
    key = "compile.combo_kernels"
    plan_field = "combo_kernels"
    compiles = True
    devices = CUDA
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    costs = {True: 1.2}
    gain = 1.02  # tests/gpu/RESULTS.md: 1.3x on mlp12, nothing on most
    excludes = {"compile.mode": "torch.compile takes a mode or options, not both"}
    conflicts = ((True, "compile.scope", "pointwise", "pointwise operations are compiled without options"),)
    codes = {True: 'model.compile(options={"combo_kernels": True})\n'}
