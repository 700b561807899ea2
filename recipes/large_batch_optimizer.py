"""Optimizers for very large batches

What it does: Replaces SGD by LARS, or Adam and AdamW by LAMB (both from timm). Each tensor gets its own learning rate,
in proportion to the norm of its values over the norm of its update.

Why it helps: With a very large batch, layers whose gradients are large beside their weights diverge first. A rate for
each layer lets batches of tens of thousands of samples reach the accuracy of small ones. No step gets faster.

When it does not: The norms cost a pass over all parameters and gradients in every step. Up to some thousand samples,
SGD or AdamW with a scaled learning rate and a warm-up trains as well. Find the learning rate again. The new state
begins empty: change the optimizer before training starts, without a checkpoint of the old one.

Numerics: changed: another rule for the update.

References: You et al., Large Batch Training of Convolutional Networks, 2017 (LARS); Training BERT in 76 minutes, 2020.
"""

from importlib.util import find_spec

from advisor.recipe import TRAINING, Components, Facts, Proposal, Recipe, Skip, Stage, Value

# Goyal et al. train ImageNet with plain SGD up to 8,192 samples a batch.
_LARGE_BATCH = 4096
_VALUES: dict[str, Value] = {"SGD": "lars", "Adam": "lamb", "AdamW": "lamb"}
_CODE = """\
import timm.optim

# before the first step, and before a scheduler is made
kept = ("params", "lr", "weight_decay", {kept})
optimizer = timm.optim.{cls}([{name: group[name] for name in kept} for group in optimizer.param_groups])
"""


class LargeBatchOptimizer(Recipe):
    key = "optimizer.class"
    modes = TRAINING
    stage = Stage.OPTIMIZER
    codes = {
        "default": "# the optimizer stays as it is\n",
        "lars": _CODE.replace("{cls}", "Lars").replace("{kept}", '"momentum", "nesterov"'),
        "lamb": _CODE.replace("{cls}", "Lamb").replace("{kept}", '"betas", "eps"'),
    }
    gain = 0.99  # tests/gpu/RESULTS.md: 0.99x: it is for convergence
    excludes = {"optimizer.implementation": "optimizer.class replaces the optimizer of optimizer.implementation"}

    def candidates(self, facts: Facts) -> Proposal:
        optimizer, batch_size = facts.workload.optimizer, facts.workload.batch_size
        if optimizer is None:
            return Skip("the workload has no optimizer")
        if batch_size is None or batch_size < _LARGE_BATCH:
            size = "the size of yours is open" if batch_size is None else f"yours has {batch_size:,}"
            return Skip(f"it is for batches of about {_LARGE_BATCH:,} samples and more, and {size}: see --batch-size")
        if not optimizer.builtin or optimizer.name not in _VALUES:
            return Skip(f"LARS takes the place of SGD and LAMB that of Adam or AdamW, not of {optimizer.full_name}")
        if optimizer.made_steps:
            return Skip("the optimizer has made steps, as a script's has: change it where it is made")
        if find_spec("timm") is None:
            return Skip("LARS and LAMB come from timm, which is not installed: pip install timm")
        return [_VALUES[optimizer.name]]

    def apply(self, workload: Components, value: Value) -> None:
        if value != self.default and workload.optimizer is not None:
            from advisor.step.optimizer import change_class

            classes = [name for name, other in _VALUES.items() if other == value]
            change_class(workload, classes, lambda: self.run_code(workload, value))
