"""Activation checkpointing

What it does: `blocks` checkpoints each block that the model repeats (the layers of a transformer): only the block's
inputs are kept, and the backward pass runs the block again. `budget-0.5` is for compiled models: torch.compile keeps
about half of the activations and chooses which ones to compute again. Names and state dict do not change.

Why it helps: Activations fill most of the memory. Without them a larger batch, sequence or model fits.

When it does not: A step takes about a third longer. Weights, gradients and optimizer state take the same memory. Blocks
that overwrite their inputs fail. Hooks, counters, and random draws by Python or NumPy inside a block run twice. With
CUDA graphs, PyTorch 2.10 or later is needed.

Numerics: exact: random numbers are drawn again from the same state, and running statistics of norms are updated once. A
memory budget changes the rounding of compiled kernels, as compiling does.

References: PyTorch documentation, torch.utils.checkpoint. Chen et al., Deep Nets with Sublinear Memory Cost, 2016.
"""

from advisor.errors import RefusedError
from advisor.recipe import TRAINING, Components, Recipe, Stage, code_of, is_compiled, torch_is_older
from advisor.records import Facts, Numerics, Proposal, Skip, Value, Values

# By value: the share of the activations that the compiler may keep.
_SHARES: dict[Value, float] = {f"budget-{share}": share for share in (0.3, 0.5, 0.7, 0.9)}
_FOUND = "blocks = [block for group in repeated_blocks(model) for _, block in group]"
# The first version in which the random generator's state can be read and set while a CUDA graph is captured.
_REWINDS_IN_GRAPHS = (2, 10)
_NO_BLOCK = "repeats no block whose activations could be recomputed"


class Checkpointing(Recipe):
    key = "memory.activation_checkpointing"
    values = ("none", "blocks", *_SHARES)
    modes = TRAINING
    stage = Stage.MODEL
    numerics_by = dict.fromkeys(_SHARES, Numerics.CLOSE)
    saves_memory = True
    order = 10  # applied last: it wraps blocks that other recipes have changed
    gain = 0.85  # tests/gpu/RESULTS.md: 0.39x to 0.80x for blocks; a compiler recomputes the cheapest activations
    gains = {"blocks": 0.7}
    here = {
        "blocks": "The model repeats {workload.repeated_blocks[0][0]} {workload.repeated_blocks[0][1]} times; only the "
        "inputs of each block have to be kept."
    }

    def candidates(self, facts: Facts) -> Proposal:
        blocks = ["blocks"] if facts.workload.repeated_blocks else []
        return [*blocks, *(["budget-0.5"] if is_compiled(facts) else [])] or Skip(f"the model {_NO_BLOCK}")

    def apply(self, workload: Components, value: Value) -> None:
        from torch._functorch import config

        from advisor.inlined.blocks import repeated_blocks
        from advisor.inlined.checkpointing import checkpoint_blocks, checkpoints_itself

        if value != "blocks":
            config.activation_memory_budget = _SHARES.get(value, 1.0)
        by_itself = checkpoints_itself(workload.model)
        if value == "none" and by_itself:
            workload.model.gradient_checkpointing_disable()
        if value == "blocks" and not by_itself:
            blocks = [block for group in repeated_blocks(workload.model) for _, block in group]
            if not blocks:
                raise RefusedError(f"{type(workload.model).__name__} {_NO_BLOCK}")
            checkpoint_blocks(blocks)

    def code(self, value: Value) -> str:
        if value == "blocks":
            return code_of("blocks", _FOUND) + code_of("checkpointing", "checkpoint_blocks(blocks)")
        if value == "none":
            return super().code(value)
        return (
            "from torch._functorch import config as functorch_config\n\n"
            f"functorch_config.activation_memory_budget = {_SHARES[value]}  # before the model is compiled\n"
        )

    def conflict(self, value: Value, settings: Values) -> str | None:
        if value == "blocks" and settings.get("step.cuda_graph") and torch_is_older(_REWINDS_IN_GRAPHS):
            return "before PyTorch 2.10 checkpoints cannot set the random generator back inside a CUDA graph"
        if value in _SHARES and settings.get("compile.mode") == "none":
            return "a memory budget is for the compiler, and compile.mode is none"
        return None
