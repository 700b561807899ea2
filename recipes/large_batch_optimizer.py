"""Optimizers for very large batches

What it does: Replaces SGD by LARS, or Adam and AdamW by LAMB (both from timm). Each tensor gets its own learning rate,
proportional to the norm of its values divided by the norm of its update.

Why it helps: With a very large batch, layers whose gradients are large relative to their weights diverge first. With a
rate for each layer, batches of tens of thousands of samples reach the accuracy of small ones. No step gets faster.

When it does not: Computing the norms reads all parameters and gradients in every step. Up to some thousand samples, SGD
or AdamW with a scaled learning rate and a warm-up trains equally well. Tune the learning rate again. The optimizer
starts with empty state: change it before training starts, without a checkpoint of the old one.

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
    gain = 0.99  # tests/gpu/RESULTS.md: 0.99x, because it improves convergence and not speed
    excludes = {"optimizer.implementation": "optimizer.class replaces the optimizer of optimizer.implementation"}

    def candidates(self, facts: Facts) -> Proposal:
        optimizer, batch_size = facts.workload.optimizer, facts.workload.batch_size
        if optimizer is None:
            return Skip("the workload has no optimizer")
        if batch_size is None or batch_size < _LARGE_BATCH:
            size = "the size of yours is open" if batch_size is None else f"yours has {batch_size:,}"
            return Skip(f"it is for batches of about {_LARGE_BATCH:,} samples and more, and {size}: see --batch-size")
        if not optimizer.builtin or optimizer.name not in _VALUES:
            return Skip(f"LARS can replace SGD, and LAMB can replace Adam or AdamW, but not {optimizer.full_name}")
        if optimizer.made_steps:
            return Skip("the optimizer has made steps already, as in a script: change it where it is created")
        if find_spec("timm") is None:
            return Skip("LARS and LAMB come from timm, which is not installed: pip install timm")
        return [_VALUES[optimizer.name]]

    def apply(self, workload: Components, value: Value) -> None:
        if value != self.default and workload.optimizer is not None:
            from advisor.step.optimizer import change_class

            classes = [name for name, other in _VALUES.items() if other == value]
            change_class(workload, classes, lambda: self.run_code(workload, value))
