"""Smaller optimizer state

What it does: Replaces Adam or AdamW by an optimizer with less state. `adafactor` keeps only sums over the rows and
columns of the second moment; `8-bit` keeps both moments in 8 bits, with bitsandbytes or torchao.

Why it helps: Adam keeps 8 bytes of state for each parameter of 4 bytes. The freed memory allows a larger batch or
model, and the update reads and writes fewer bytes.

When it does not: Activations take most of the memory of convolutional networks and small models. Adafactor scales its
steps by the size of the parameters, so tune the learning rate again. It has no betas for a scheduler to change. The
optimizer starts with empty state: change it before training starts, without a checkpoint of the old one.

Numerics: changed: another rule for the update; 8-bit AdamW should train to the same result, Adafactor to a similar one.

References: Shazeer and Stern, Adafactor, 2018. Dettmers et al., 8-bit Optimizers, 2022. torchao, Low-bit optimizers.
"""

from importlib.util import find_spec

from advisor.figures.formatting import format_percent
from advisor.recipe import TRAINING, Bottleneck, Components, Facts, Proposal, Recipe, Skip, Stage, Value

_PACKAGES = ("bitsandbytes", "torchao")
_REPLACED = ("Adam", "AdamW")
_LEAST_SHARE = 0.2
_CODE = """\
# before the first step, and before a scheduler is made
kept = ("params", "lr", "weight_decay"{more})
optimizer = {cls}([{name: group[name] for name in kept} for group in optimizer.param_groups])
"""
_EIGHT_BIT = 'getattr(bitsandbytes.optim, f"{type(optimizer).__name__}8bit")'


class OptimizerMemory(Recipe):
    key = "optimizer.state"
    modes = TRAINING
    attacks = frozenset({Bottleneck.MEMORY})
    stage = Stage.OPTIMIZER
    codes = {
        "full": "# the optimizer keeps its whole state\n",
        "adafactor": _CODE.replace("{cls}", "torch.optim.Adafactor").replace("{more}", ""),
        "8-bit": "import bitsandbytes.optim\n\n"
        + _CODE.replace("{cls}", _EIGHT_BIT).replace("{more}", ', "betas", "eps"'),
    }
    saves_memory = True
    excludes = {
        key: f"optimizer.state replaces the optimizer that {key} is about"
        for key in ("optimizer.implementation", "optimizer.class")
    }
    gains = {"adafactor": 0.95, "8-bit": 1.0}  # tests/gpu/RESULTS.md: 0.94x and 1.06x, because it mainly saves memory

    def candidates(self, facts: Facts) -> Proposal:
        optimizer = facts.workload.optimizer
        if optimizer is None:
            return Skip("the workload has no optimizer")
        if not optimizer.builtin or optimizer.name not in _REPLACED:
            return Skip(f"only the state of a single Adam or AdamW can be made smaller, not of {optimizer.full_name}")
        if optimizer.made_steps:
            return Skip("the optimizer has made steps already, as in a script: change it where it is created")
        share = _share_of_memory(facts)
        if share < _LEAST_SHARE:
            return Skip(f"the optimizer's state is {format_percent(share)} of the memory that a step needs")
        eight_bit = facts.on_cuda and any(map(find_spec, _PACKAGES))
        return ["adafactor", "8-bit"] if eight_bit else ["adafactor"]

    def apply(self, workload: Components, value: Value) -> None:
        if value != self.default and workload.optimizer is not None:
            from advisor.step.optimizer import change_class

            change_class(workload, _REPLACED, lambda: self.run_code(workload, value))

    def code(self, value: Value) -> str:
        instead = find_spec("bitsandbytes") is None and find_spec("torchao") is not None
        return super().code(value).replace("bitsandbytes", "torchao" if instead else "bitsandbytes")

    def why(self, facts: Facts, value: Value) -> str:
        more = "" if any(map(find_spec, _PACKAGES)) or not facts.on_cuda else " For 8-bit: pip install bitsandbytes."
        share = format_percent(_share_of_memory(facts))
        return f"The optimizer's state is {share} of the memory that a step needs.{more}"


def _share_of_memory(facts: Facts) -> float:
    """The state's share of the baseline's peak memory; of parameters, gradients and state if that is not known."""
    workload = facts.workload
    state_bytes = workload.optimizer.state_bytes if workload.optimizer else 0
    peak_bytes = facts.peak_allocated_bytes if facts.on_cuda else None
    needed_bytes = peak_bytes or 2 * workload.parameter_bytes + state_bytes
    return min(1.0, state_bytes / needed_bytes) if needed_bytes else 0.0
