"""Compiled pointwise chains

What it does
------------
Finds chains of two and more pointwise operations by tracing the model (an addition and its activation, a formula
written out, dropout and the residual sum), and compiles each by itself; everything else runs as before. It is what
`torch.jit.script` on such functions was for.

Why it helps
------------
A chain becomes one kernel that reads its inputs and writes its result once, and compiling a few small functions takes
seconds where the whole model takes minutes, or does not compile at all.

When it does not
----------------
Where the whole model compiles, that fuses the same chains and more. Each chain costs a check of its inputs at every
call, so chains on small tensors lose. Models whose forward branches on values, takes optional arguments or differs
between training and evaluation cannot be traced, and are left alone.

Numerics
--------
close: intermediate results of a chain are not rounded to memory, and dropout draws from another stream.

References
----------
PyTorch documentation, torch.fx and torch.compile. NVIDIA ECCV 2020 tuning guide, fusing pointwise operations with
PyTorch JIT.
"""

from advisor.machine.toolchain import cannot_compile
from advisor.recipe import NOT_COMPILED, Recipe, Stage
from advisor.records import Bottleneck, Facts, Proposal, Skip, Value, Values


class FusePointwise(Recipe):
    key = "compile.pointwise_only"
    attacks = frozenset({Bottleneck.MEMORY, Bottleneck.LAUNCH})
    stage = Stage.COMPILE
    calls = "pointwise.fuse_pointwise_chains(model)"
    codes = {False: "# pointwise operations run one by one\n"}
    saves_memory = True
    expensive = True
    # Expected speed-up: 1.58x and 1.43x on handwritten formulas, 0.78x on a served network (tests/gpu/RESULTS.md).
    gain = 1.1

    def candidates(self, facts: Facts) -> Proposal:
        if facts.workload.fusing_problem:
            return Skip(f"the model {facts.workload.fusing_problem}")
        if not facts.workload.fusable_chains:
            return Skip("the model has no two pointwise operations in a row")
        return cannot_compile(facts) or [True]

    def cost(self, value: Value) -> float:
        return 0.5

    def conflict(self, value: Value, settings: Values) -> str | None:
        if not value:
            return None
        on = next((key for key, off in NOT_COMPILED.items() if settings.get(key, off) != off), None)
        return f"{on} compiles the whole model, pointwise chains included" if on else None

    def why(self, facts: Facts, value: Value) -> str:
        count = facts.workload.fusable_chains
        if not value or not count:
            return super().why(facts, value)
        return f"The model has {count} chain{'' if count == 1 else 's'} of pointwise operations that can be one kernel."
