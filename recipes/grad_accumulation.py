"""Gradients of several batches in one update

What it does: Adds up the gradients of 2, 4 or 8 batches (each loss is divided by that number), then updates the weights
and clears the gradients once. Speed is still measured in samples per second.

Why it helps: Several batches share one update and one clearing. It trains like a larger batch that would not fit.

When it does not: The optimizer is a small share of most steps. It saves no memory, and a larger batch is faster if it
fits. There are fewer updates: tune learning rate, warm-up and weight decay as for a larger batch. Batch norm still sees
the small batches. The step clears the gradients itself: a loop that also calls `zero_grad()` loses them.

Numerics: changed: each update is made from several batches, and there are fewer of them.

References: Hugging Face, Efficient training on a single GPU. Goyal et al., Large Minibatch SGD, 2017.
"""

from advisor.recipe import MODES_WITH_GRAPHS, TRAINING, Recipe, WholeNumbers
from advisor.records import Bottleneck, Facts, Phase, Proposal, Value, Values


class GradAccumulation(Recipe):
    key = "step.accumulate"
    values = WholeNumbers(1, such_as=(1, 2))
    plan_field = "accumulate"
    modes = TRAINING
    attacks = frozenset({Bottleneck.MEMORY, Bottleneck.LAUNCH})
    phases = frozenset({Phase.OPTIMIZER, Phase.ZERO_GRAD})
    inside_step = True
    ladder = True
    saves = {Phase.OPTIMIZER: 0.5, Phase.ZERO_GRAD: 0.5}  # with two batches; tests/gpu/RESULTS.md: 1.00x to 1.03x
    excludes = {"step.cuda_graph": "step.cuda_graph records each step with its update, and step.accumulate skips some"}
    codes = {1: "# every batch makes an update\n"}
    shown = """\
optimizer.zero_grad()
for _, (inputs, targets) in zip(range({value}), loader):
    loss = loss_fn(model(inputs.to(device)), targets.to(device))
    (loss / {value}).backward()
optimizer.step()
"""

    def candidates(self, facts: Facts) -> Proposal:
        return [2, 4, 8]

    def conflict(self, value: Value, settings: Values) -> str | None:
        mode = settings.get("compile.mode")
        if value != 1 and mode in MODES_WITH_GRAPHS:
            return f"the CUDA graphs of compile.mode {mode} overwrite their gradients, which step.accumulate adds up"
        return super().conflict(value, settings)
