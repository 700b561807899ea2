"""Optimizers for very large batches

What it does
------------
Replaces SGD by LARS, or Adam and AdamW by LAMB (both from timm): every tensor gets a learning rate of its own, in
proportion to the norm of its values over the norm of its update.

Why it helps
------------
With a very large batch and the learning rate that goes with it, the layers whose gradients are large beside their
weights diverge first. A rate for each layer lets the others train on, so batches of tens of thousands of samples
still reach the accuracy of small ones. It is what makes a larger batch usable; by itself it makes no step faster.

When it does not
----------------
The norms cost a pass over all parameters and gradients in every step. Up to some thousand samples, plain SGD or
AdamW with a scaled learning rate and a warm-up trains as well. The learning rate has to be found anew: LARS wants a
larger one. The new state begins at nothing: make the change before training starts.

Numerics
--------
changed: another rule for the update.

References
----------
You et al., Large Batch Training of Convolutional Networks, 2017 (LARS). You et al., Large Batch Optimization for
Deep Learning: Training BERT in 76 minutes, ICLR 2020 (LAMB). Goyal et al., Accurate, Large Minibatch SGD: Training
ImageNet in 1 Hour, 2017. NVIDIA ECCV 2020 tuning guide. timm documentation, Optimizers.
"""

from importlib.util import find_spec

from advisor.recipe import TRAINING, Recipe, Stage
from advisor.records import Facts, OptimizerFacts, Proposal, Skip, Value, Values

# Goyal et al. train ImageNet with plain SGD up to 8,192 samples a batch.
_LARGE_BATCH = 4096
_VALUES: dict[str, Value] = {"SGD": "lars", "Adam": "lamb", "AdamW": "lamb"}


class LargeBatchOptimizer(Recipe):
    key = "optimizer.class"
    values = ("default", "lars", "lamb")
    modes = TRAINING
    partners = frozenset({"batch_size"})
    stage = Stage.OPTIMIZER
    calls = "optimizers.use_layer_rates(optimizer, value)"
    codes = {"default": "# the optimizer stays as it is\n"}
    # Expected speed-up: 0.99x: it is for convergence (tests/gpu/RESULTS.md).
    gain = 0.99

    def candidates(self, facts: Facts) -> Proposal:
        optimizer, batch_size = facts.workload.optimizer, facts.workload.batch_size
        if optimizer is None:
            return Skip("the workload has no optimizer")
        if batch_size is None:
            return Skip(f"it is for batches of about {_LARGE_BATCH:,} samples and more, and the size of yours is open")
        if batch_size < _LARGE_BATCH:
            return Skip(
                f"it is for batches of about {_LARGE_BATCH:,} samples and more, and yours has {batch_size:,}; "
                "raise --batch-size first"
            )
        if problem := _problem_of(optimizer):
            return Skip(problem)
        if find_spec("timm") is None:
            return Skip("LARS and LAMB come from timm, which is not installed: pip install timm")
        return [_VALUES[optimizer.name]]

    def conflict(self, value: Value, settings: Values) -> str | None:
        if value == "default":
            return None
        for key in ("optimizer.implementation", "compile.optimizer"):
            if settings.get(key, "default") not in ("default", False):
                return f"optimizer.class replaces the optimizer that {key} is about"
        return None


def _problem_of(optimizer: OptimizerFacts) -> str:
    """The reason that an optimizer cannot become one of these; empty where it can."""
    if not optimizer.builtin or optimizer.name not in _VALUES:
        return (
            "LARS takes the place of torch.optim's SGD and LAMB that of its Adam or AdamW; yours is "
            f"{optimizer.name}{'' if optimizer.builtin else ' of another package'}"
        )
    if optimizer.made_steps:
        return "the optimizer has made steps, as a script's has once its loop is seen: change it where it is made"
    return ""
