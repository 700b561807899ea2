"""Activation checkpointing

What it does
------------
`blocks` puts each block that the model repeats (the layers of a transformer, the blocks of a ResNet) under an
activation checkpoint: of its activations only the inputs are kept, and the backward pass runs it again. `budget-0.5` is
for compiled models only: torch.compile then chooses what to compute again, so that the memory for activations lies
half-way between its usual one and that of keeping nothing. Names and state dict stay the same.

Why it helps
------------
The activations kept for the backward pass fill most of the memory in training. Without them a larger batch fits, a
longer sequence, or a model that did not fit at all. By itself it is slower: it pays where the memory is put to use.

When it does not
----------------
A step takes about a third longer. Memory of parameters, gradients and optimizer state stays. Blocks that write over
their inputs fail. Hooks inside a block, and what it counts or draws by Python or NumPy, run a second time. A CUDA graph
needs PyTorch 2.10 for it.

Numerics
--------
exact: random numbers are drawn again from the same state, and running statistics of norms are updated once. A memory
budget changes what compiled kernels round, as compiling does.

References
----------
PyTorch documentation, torch.utils.checkpoint (`use_reentrant=False`), and torch._functorch.config,
`activation_memory_budget`. Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016. Hugging Face, Efficient
training on a single GPU, gradient checkpointing. NVIDIA ECCV 2020 tuning guide.
"""

from advisor.errors import RefusedError
from advisor.figures.sweep import memory_gained
from advisor.recipe import TRAINING, Components, Recipe, Stage, code_of, is_compiled, torch_is_older
from advisor.records import Facts, Mode, Numerics, Proposal, Skip, TrialRecord, Value, Values

_BUDGET = "budget-"
_BUDGETS = ("budget-0.5",)
_FOUND = "blocks = [block for group in repeated_blocks(model) for _, block in group]"
# The first version in which the random generator's state can be read and set while a CUDA graph is captured.
_REWINDS_IN_GRAPHS = (2, 10)


class Checkpointing(Recipe):
    key = "memory.activation_checkpointing"
    values = ("none", "blocks", "budget-0.5")
    modes = TRAINING
    stage = Stage.MODEL
    saves_memory = True
    order = 10  # around blocks that have everything else done to them

    def candidates(self, facts: Facts) -> Proposal:
        budgets = _BUDGETS if is_compiled(facts) else ()
        if facts.workload.repeated_blocks:
            return ["blocks", *budgets]
        return list(budgets) or Skip("the model repeats no block whose activations could be computed again")

    def accepts(self, value: Value) -> bool:
        return value in ("none", "blocks") or _share(value) is not None

    def gain_for(self, facts: Facts, value: Value) -> float:
        # It computes blocks twice: 0.39x to 0.80x (tests/gpu/RESULTS.md). The compiler chooses what costs least.
        return 0.7 if value == "blocks" else 0.85

    def apply(self, workload: Components, value: Value) -> None:
        from torch._functorch import config

        from advisor.step.blocks import repeated_blocks
        from advisor.step.checkpointing import checkpoint_blocks, checkpoints_itself, keep_activations

        if value != "blocks":
            config.activation_memory_budget = _share(value) or 1.0
        if value == "none":
            keep_activations(workload.model)
        elif value == "blocks" and not checkpoints_itself(workload.model):
            blocks = [block for group in repeated_blocks(workload.model) for _, block in group]
            if not blocks:
                name = type(workload.model).__name__
                raise RefusedError(f"{name} repeats no block whose activations could be computed again")
            checkpoint_blocks(blocks)

    def code(self, value: Value) -> str:
        if value == "blocks":
            return code_of("blocks", _FOUND) + code_of("checkpointing", "checkpoint_blocks(blocks)")
        if value == "none":
            return "# activations are kept for the backward pass\n"
        return (
            "from torch._functorch import config as functorch_config\n\n"
            f"functorch_config.activation_memory_budget = {_share(value)}  # before the model is compiled\n"
        )

    def conflict(self, value: Value, settings: Values) -> str | None:
        if value == "none":
            return None
        if value == "blocks":
            if settings.get("step.cuda_graph") and torch_is_older(_REWINDS_IN_GRAPHS):
                return (
                    "checkpoints set the random generator back, which PyTorch cannot do inside a CUDA graph before "
                    "version 2.10"
                )
            return None
        if settings.get("compile.mode") == "none":
            return "a memory budget is for the compiler, and compile.mode is none"
        return None

    def numerics_of(self, value: Value, mode: Mode) -> Numerics:
        return Numerics.EXACT if value in ("none", "blocks") else Numerics.CLOSE

    def why(self, facts: Facts, value: Value) -> str:
        if value != "blocks" or not facts.workload.repeated_blocks:
            return super().why(facts, value)
        name, count = facts.workload.repeated_blocks[0]
        return f"The model repeats {name} {count} times; of each, only the inputs have to be kept."

    def after(self, facts: Facts, record: TrialRecord) -> str:
        return memory_gained(facts, record)


def _share(value: Value) -> float | None:
    """The share of the activations that a budget lets the compiler keep; None for what is no budget."""
    text = str(value).removeprefix(_BUDGET)
    if not str(value).startswith(_BUDGET) or not text.removeprefix("0.").isdigit():
        return None
    share = float(text)
    return share if 0 < share < 1 else None
