"""Combined small kernels

What it does: The compiler generates one kernel for several independent pointwise operations and reductions of a graph
(`combo_kernels`). Usually it generates one kernel for each.

Why it helps: Parallel branches, many small outputs and the reductions of a backward pass each launch a kernel that
fills a part of the GPU. One combined kernel fills more of the GPU and costs one launch.

When it does not: A graph that is a single chain has no independent operations. Large kernels fill the GPU by
themselves, and a large kernel combined with a small one can become slower. The option is new (before PyTorch 2.9 it
combined few kinds of operations), and compiling takes somewhat longer.

Numerics: close: reductions may sum in another order, as with torch.compile.

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
    gain = 1.02  # tests/gpu/RESULTS.md: 1.3x on mlp12, no gain on most workloads
    excludes = {"compile.mode": "torch.compile takes a mode or options, not both"}
    conflicts = ((True, "compile.scope", "pointwise", "pointwise operations are compiled without options"),)
    codes = {True: 'model.compile(options={"combo_kernels": True})\n'}
