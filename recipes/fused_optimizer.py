"""Optimizer implementation

What it does
------------
Chooses how the optimizer updates the parameters: one kernel for many tensors with the whole update in it
(`fused`), one kernel per arithmetic operation over many tensors (`foreach`), or one per operation and tensor
(`for-loop`). Left alone, PyTorch takes foreach on CUDA and the for-loop on the CPU. It is the built-in
successor of apex's fused optimizers.

Why it helps
------------
A fused update reads and writes parameters, gradients and state once, and launches a few kernels where a model
of many tensors needed hundreds.

When it does not
----------------
The optimizer is a small share of most steps, and that share is all there is to gain: look at its phase in the
profile. foreach needs a temporary copy as large as the parameters. A class that PyTorch has not fused, such as
RMSprop, offers only the other two, and classes from other libraries often offer none.

Numerics
--------
close: the same formula, with intermediate results rounded at other places.

References
----------
PyTorch documentation, torch.optim, Algorithms (for-loop, foreach, fused). NVIDIA ECCV 2020 tuning guide, fused
building blocks from apex. Hugging Face, Efficient training on a single GPU, optimizer choice.
"""

from advisor.recipe import TRAINING, Recipe, Stage, gain_from
from advisor.records import Bottleneck, Facts, Phase, Proposal, Skip, Value

# Parameter tensors from which updating them one kernel after another shows in a step. A count; ResNet-18 has 62.
_MANY_TENSORS = 50
_FUSED_ON_CPU_ONLY = frozenset({"Adagrad"})


class FusedOptimizer(Recipe):
    key = "optimizer.implementation"
    values = ("default", "fused", "foreach", "for-loop")
    modes = TRAINING
    attacks = frozenset({Bottleneck.LAUNCH, Bottleneck.MEMORY})
    partners = frozenset({"autocast", "compile", "step_graph"})
    usual = frozenset({"fused"})
    stage = Stage.OPTIMIZER
    calls = "optimizer_options.use_implementation(optimizer, value)"
    saves_memory = True
    phases = frozenset({Phase.OPTIMIZER})

    def candidates(self, facts: Facts) -> Proposal:
        optimizer = facts.workload.optimizer
        if optimizer is None:
            return Skip("the workload has no optimizer")
        offered = set(optimizer.implementations)
        if facts.on_cuda and optimizer.name in _FUSED_ON_CPU_ONLY:
            offered.discard("fused")
        if not offered - {"for-loop"}:
            return Skip(f"{optimizer.name} has neither a fused nor a foreach implementation here")
        by_default = "foreach" if facts.on_cuda and "foreach" in offered else "for-loop"
        return [value for value in ("fused", "foreach", "for-loop") if value in offered and value != by_default]

    def gain_for(self, facts: Facts, value: Value) -> float:
        # tests/gpu/RESULTS.md: fused 1.02x alone on large models and 2.1x in the stack of a recommender; for-loop 0.59x
        # to 0.93x; 1.02x to 1.10x on a CPU. One kernel takes about half as long as several.
        optimizer, profile = facts.workload.optimizer, facts.profile
        if optimizer is None:
            return 1.0
        if value == "for-loop":
            return 0.8 if facts.on_cuda else 1.0
        fewest = 1.05 if optimizer.tensors >= _MANY_TENSORS else 1.02
        return max(fewest, gain_from(profile.share(Phase.OPTIMIZER) / 2)) if profile else fewest
