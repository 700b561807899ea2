"""Operators beside one another

What it does
------------
Sets how many operators may run at the same time in one process (`torch.set_num_interop_threads`). The value 0 leaves
PyTorch's choice, one thread per core. It is set once, before anything has run in parallel.

Why it helps
------------
TorchScript runs what a model forks (`torch.jit.fork`) beside the rest, each part in a thread of this pool, and each
with as many threads of its own as `cpu.threads` says. A pool as large as the machine then starts many more threads
than there are cores; a small one gives each part cores of its own.

When it does not
----------------
Eager and compiled PyTorch run one operator after another and never use these threads: without a model in TorchScript
that forks there is nothing to set. Parts that take turns anyway gain nothing from a larger pool.

Numerics
--------
exact: the same operators run on the same inputs; only what runs beside what differs.

References
----------
PyTorch documentation, CPU threading and TorchScript inference; torch.set_num_interop_threads; torch.jit.fork.
"""

from advisor.errors import RefusedError
from advisor.recipe import CPU, Components, Recipe, Stage, WholeNumbers
from advisor.records import Bottleneck, Facts, Proposal, Skip, Value


class InteropThreads(Recipe):
    key = "cpu.interop_threads"
    default = 0
    values = WholeNumbers(0, such_as=(0, 1))
    devices = CPU
    attacks = frozenset({Bottleneck.COMPUTE, Bottleneck.LAUNCH})
    partners = frozenset({"threads"})
    stage = Stage.GLOBAL
    keeps_code = True  # a pool of the runtime's
    # Expected speed-up: No workload of RESULTS.md forks; PyTorch's documentation gives no figure.
    gain = 1.05
    codes = {0: "# PyTorch chooses how many operators may run beside one another\n"}
    shown = (
        "if torch.get_num_interop_threads() != {value}:\n"
        "    torch.set_num_interop_threads({value})  # once, before anything has run in parallel\n"
    )

    def candidates(self, facts: Facts) -> Proposal:
        if not facts.workload.has("forked"):
            return Skip(
                "no part of the model is TorchScript that calls torch.jit.fork, so no operators run in parallel"
            )
        usable = facts.workload.usable_cores
        return sorted({1, max(1, usable // 2), usable})

    def apply(self, workload: Components, value: Value) -> None:
        import torch

        if value and torch.get_num_interop_threads() != value:
            try:
                torch.set_num_interop_threads(int(value))
            except RuntimeError as error:
                raise RefusedError("this process has computed in parallel or set the number already") from error
